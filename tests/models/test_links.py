"""Where a link's fault is placed, and when it is a fact."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from collectors.events import event
from collectors.sample import Sample, sample
from models.link_state import PORT_LIMIT, LinkThresholds
from models.links import End, LinkView, Part, place
from models.rulebook import RULES
from models.rules import Rules
from models.voices import Entity, Fact, Remedy

SECOND = 10**9
MINUTE = 60 * SECOND
NOW = 1_796_000_000 * SECOND
BOOT = NOW - 86_400 * SECOND
LEAF = "0xfc6a1c0300200000"

UP = {"state": 4.0, "physical_state": 5.0, "rate_bits_per_second": 400e9, "link_width": 4.0}
POLLING = {"state": 1.0, "physical_state": 2.0}
DISABLED = {"state": 1.0, "physical_state": 3.0}
NOT_CONFIGURED = {"state": 2.0, "physical_state": 5.0}


def end(fields: dict[str, float], **growth: float) -> End:
    return End(fields, {f"{name}_total": value for name, value in growth.items()}, True)


HEALTHY = LinkView(end(UP), end(UP), "leaf-0-0", 4, 8, 1, 8, 1, True, False, 400e9)


# ---- placement -------------------------------------------------------------------------------


def test_a_healthy_link_has_no_fault() -> None:
    assert place(HEALTHY).part is Part.NONE


@pytest.mark.parametrize(
    ("host", "switch", "part", "certainty"),
    [
        (POLLING, POLLING, Part.CABLE, "likely"),
        (POLLING, DISABLED, Part.SWITCH_PORT, "sure"),
        (DISABLED, POLLING, Part.HOST, "sure"),
        (POLLING, UP, Part.ADAPTER, "likely"),
        (NOT_CONFIGURED, NOT_CONFIGURED, Part.MANAGER, "open"),
        (UP | {"rate_bits_per_second": 200e9, "link_width": 2.0}, UP, Part.CABLE, "likely"),
    ],
)
def test_a_link_that_is_down_or_narrow_is_placed_by_both_ends(
    host: dict[str, float], switch: dict[str, float], part: Part, certainty: str
) -> None:
    placement = place(replace(HEALTHY, host=end(host), switch=end(switch)))
    assert (placement.part, placement.certainty) == (part, certainty)
    assert placement.advice
    assert placement.reasons


@pytest.mark.parametrize(
    ("host", "switch", "part", "certainty"),
    [
        ({"symbol_errors": 500.0}, {"symbol_errors": 80.0}, Part.CABLE, "likely"),
        ({"symbol_errors": 500.0}, {}, Part.CABLE, "open"),
        ({}, {"receive_errors": 500.0}, Part.CABLE, "open"),
        ({}, {"excessive_buffer_overruns": 1.0}, Part.ADAPTER, "likely"),
        ({"excessive_buffer_overruns": 1.0}, {}, Part.SWITCH_PORT, "likely"),
        ({"receive_remote_physical_errors": 9.0}, {}, Part.ELSEWHERE, "sure"),
        ({}, {"transmit_discards": 4000.0}, Part.HOST, "open"),
        ({"symbol_errors": 3.0}, {"symbol_errors": 2.0}, Part.NONE, "sure"),
    ],
)
def test_errors_are_placed_by_who_receives_them(
    host: dict[str, float], switch: dict[str, float], part: Part, certainty: str
) -> None:
    placement = place(replace(HEALTHY, host=end(UP, **host), switch=end(UP, **switch)))
    assert (placement.part, placement.certainty) == (part, certainty)


def test_several_adapters_that_receive_errors_are_the_hosts_fault() -> None:
    view = replace(HEALTHY, host=end(UP, symbol_errors=99.0), node_sick_ports=4)
    assert place(view).part is Part.HOST


def test_all_links_of_a_host_down_at_once_are_the_hosts_fault() -> None:
    view = replace(HEALTHY, host=end(POLLING), switch=end(POLLING), node_sick_ports=8)
    assert place(view).part is Part.HOST


def test_many_hosts_of_a_switch_in_trouble_are_the_switchs_fault() -> None:
    view = replace(HEALTHY, host=end(POLLING), switch=end(POLLING), switch_sick_hosts=3)
    assert place(view).part is Part.SWITCH
    assert place(replace(view, switch_hosts=32)).part is Part.CABLE
    assert place(replace(HEALTHY, switch_sick_hosts=8)).part is Part.NONE


def test_without_a_subnet_manager_it_is_the_manager() -> None:
    view = replace(HEALTHY, host=end(NOT_CONFIGURED), switch=end(NOT_CONFIGURED), manager_up=False)
    assert (place(view).part, place(view).certainty) == (Part.MANAGER, "sure")


def test_a_host_that_is_not_heard_may_be_off() -> None:
    placement = place(replace(HEALTHY, host=End(), switch=end(POLLING)))
    assert (placement.part, placement.certainty) == (Part.HOST, "open")


# ---- facts -----------------------------------------------------------------------------------


class Story:
    """A cluster told to the rules, half a minute at a time."""

    def __init__(self, nodes: int = 1) -> None:
        self.rules = Rules()
        self.nodes = [f"n{k + 1}" for k in range(nodes)]
        self.now = NOW
        self.boot = dict.fromkeys(self.nodes, BOOT)
        self.fields = {node: {**UP, "link_downs_total": 0.0} for node in self.nodes}
        self.silent: set[str] = set()
        self.switch: dict[str, dict[str, float]] = {}  # where the other end says something else
        self.jobs = dict.fromkeys(self.nodes, 0.0)
        for k, node in enumerate(self.nodes):
            text = (
                f"switch={LEAF} switch_port={k + 1} adapter=0xb8cef6030010{k:04x} "
                "adapter_port=1 name=leaf-0-0"
            )
            self.tell(
                event(node, "inventory", "link", NOW, text=text, severity=0, device="mlx5_0/1")
            )

    def tell(self, *samples: Sample) -> None:
        for one in samples:
            self.rules.observe(one, self.now)

    def run(self, minutes: float) -> None:
        for _ in range(int(minutes * 2)):
            self.now += 30 * SECOND
            for k, node in enumerate(self.nodes):
                self.tell(sample("slurm_node", self.now, {"jobs": self.jobs[node]}, node=node))
                told = self.switch.get(node, self.fields[node])
                switch = {n: v for n, v in told.items() if n != "link_downs_total"}
                tags = {"guid": LEAF, "port": str(k + 1), "peer_node": node}
                self.tell(sample("fabric_port", self.now, switch, **tags))
                if node in self.silent:
                    continue
                boot = {"boot_time_seconds": self.boot[node] / SECOND}
                tags = {"device": "mlx5_0", "port": "1"}
                self.tell(sample("ib_port", self.now, self.fields[node], node=node, **tags))
                self.tell(sample("host", self.now, boot, node=node))

    def facts(self) -> list[Fact]:
        return self.rules.facts(self.now, dict.fromkeys(self.nodes, 0))


@pytest.fixture
def story() -> Story:
    told = Story()
    told.run(15)
    assert told.facts() == []
    return told


def test_a_link_down_for_a_minute_is_a_drain_that_names_port_and_part(story: Story) -> None:
    story.fields["n1"] |= POLLING
    story.run(1)
    assert story.facts() == []
    story.run(1)
    (fact,) = story.facts()
    assert fact.entity == Entity("link", "n1", "mlx5_0/1")
    assert (fact.rule, fact.code, fact.remedy) == ("link_down", "ibdown", Remedy.DRAIN)
    assert fact.text == "link down; likely the cable"
    assert fact.rule in RULES
    assert fact.onset_ns == story.now - 3 * 30 * SECOND
    assert "leaf-0-0 port 1" in " ".join(fact.evidence)
    story.fields["n1"] |= UP
    story.run(0.5)
    assert story.facts() == []


def test_a_link_that_was_never_in_use_says_nothing() -> None:
    told = Story()
    told.fields["n1"] = dict(POLLING)
    told.run(30)
    assert told.facts() == []


def test_a_narrow_link_is_a_drain_and_a_link_that_was_always_so_is_not(story: Story) -> None:
    story.fields["n1"] |= {"rate_bits_per_second": 200e9, "link_width": 2.0}
    story.run(2)
    (fact,) = story.facts()
    assert (fact.rule, fact.remedy) == ("link_degraded", Remedy.DRAIN)
    assert fact.text == "link at 200 of 400 Gb/s; likely the cable"
    split = Story()
    split.fields["n1"] |= {"rate_bits_per_second": 200e9, "link_width": 2.0}
    split.run(30)
    assert split.facts() == []


def test_one_drop_is_nothing_two_in_a_day_are_a_drain(story: Story) -> None:
    story.fields["n1"]["link_downs_total"] = 1.0
    story.run(20)
    assert story.facts() == []
    story.fields["n1"]["link_downs_total"] = 2.0
    story.run(1)
    (fact,) = story.facts()
    assert (fact.rule, fact.code, fact.remedy) == ("link_flaps", "ibflap", Remedy.DRAIN)
    assert fact.text == "link went down 2 times in 24 h"
    story.run(24 * 60)
    assert story.facts() == []


def test_one_drop_under_a_job_is_a_drain(story: Story) -> None:
    story.jobs["n1"] = 1.0
    story.run(1)
    story.fields["n1"]["link_downs_total"] = 1.0
    story.run(1)
    (fact,) = story.facts()
    assert (fact.code, fact.text) == ("ibflap", "link went down under a job")


def test_drops_by_a_restart_of_the_node_are_no_fact(story: Story) -> None:
    story.jobs["n1"] = 1.0
    story.silent.add("n1")
    story.run(5)
    story.silent.clear()
    story.boot["n1"] = story.now - 2 * MINUTE
    story.fields["n1"]["link_downs_total"] = 3.0
    story.run(5)
    assert story.facts() == []


def test_a_counter_that_went_back_is_no_drop(story: Story) -> None:
    story.fields["n1"]["link_downs_total"] = 1.0
    story.run(1)
    story.fields["n1"]["link_downs_total"] = 0.0
    story.run(20)
    assert story.facts() == []


def test_a_stale_reading_is_no_evidence(story: Story) -> None:
    story.fields["n1"] |= POLLING
    story.run(3)
    assert story.facts()
    story.silent.add("n1")
    story.run(5)
    assert story.facts() == []


def test_without_an_agent_drops_are_told_for_a_person_only(story: Story) -> None:
    story.silent.add("n1")
    story.run(15)

    def over_the_fabric(downs: float) -> None:
        story.now += 30 * SECOND
        tags = {"guid": "0xb8cef60300100000", "port": "1", "peer_node": "n1"}
        story.tell(sample("fabric_port", story.now, {"link_downs_total": downs}, **tags))

    over_the_fabric(4.0)
    over_the_fabric(6.0)
    assert story.facts() == []
    story.run(15)
    (fact,) = story.facts()
    assert (fact.code, fact.remedy) == ("ibflap", Remedy.ALERT)


def test_a_switch_that_fails_alerts_and_drains_nobody() -> None:
    told = Story(8)
    told.run(15)
    for node in told.nodes[:3]:
        told.fields[node] |= POLLING
    told.run(3)
    facts = told.facts()
    assert [fact.entity.node for fact in facts] == ["n1", "n2", "n3"]
    assert {fact.remedy for fact in facts} == {Remedy.ALERT}
    assert facts[0].text == "link down; likely the switch"
    assert "3 of the 8 hosts" in facts[0].evidence[0]


def test_a_switch_that_restarts_drains_not_even_the_host_that_is_read_first() -> None:
    told = Story(8)
    told.jobs = dict.fromkeys(told.nodes, 1.0)
    told.run(15)
    seen: list[Fact] = []
    for node in told.nodes:
        # Each agent reads at a moment of its own, and the judge is woken by each.
        told.now += 3 * SECOND
        told.fields[node]["link_downs_total"] = 1.0
        tags = {"device": "mlx5_0", "port": "1"}
        told.tell(sample("ib_port", told.now, told.fields[node], node=node, **tags))
        told.tell(sample("host", told.now, {"boot_time_seconds": BOOT / SECOND}, node=node))
        seen += told.facts()
    told.run(3)
    facts = told.facts()
    assert {fact.remedy for fact in seen + facts} == {Remedy.ALERT}
    assert [fact.entity.node for fact in facts] == told.nodes
    assert "8 of the 8 hosts" in facts[0].evidence[0]


def test_a_drop_waits_for_no_neighbour_that_is_not_heard_and_not_for_long() -> None:
    told = Story(8)
    told.jobs["n1"] = 1.0
    told.run(15)
    told.fields["n1"]["link_downs_total"] = 1.0
    told.silent |= set(told.nodes[1:])
    told.run(2)
    assert told.facts() == []
    told.run(1)
    (fact,) = told.facts()
    assert (fact.entity.node, fact.code, fact.remedy) == ("n1", "ibflap", Remedy.DRAIN)


def test_a_lost_subnet_manager_alerts_and_drains_nobody(story: Story) -> None:
    story.fields["n1"] |= NOT_CONFIGURED
    story.tell(sample("fabric", story.now, {"manager_up": 0.0}, subnet="ib"))
    story.run(6)
    (fact,) = story.facts()
    assert (fact.code, fact.remedy) == ("ibinit", Remedy.ALERT)
    # It is back, and this port is the last that it comes to: also after a restart of the head.
    story.tell(sample("fabric", story.now, {"manager_up": 1.0}, subnet="ib"))
    (fact,) = story.facts()
    assert fact.remedy is Remedy.ALERT
    story.rules.load(story.rules.dump())
    story.run(5)
    (fact,) = story.facts()
    assert fact.remedy is Remedy.ALERT
    story.run(10)
    (fact,) = story.facts()
    assert fact.remedy is Remedy.DRAIN


def test_what_was_known_when_the_node_came_back_is_spent(story: Story) -> None:
    story.fields["n1"] |= POLLING
    story.fields["n1"]["link_downs_total"] = 2.0
    story.run(3)
    assert {fact.code for fact in story.facts()} == {"ibdown", "ibflap"}
    story.rules.clear("n1", story.now)
    story.run(3)
    assert story.facts() == []
    story.fields["n1"] |= UP
    story.run(1)
    story.fields["n1"] |= POLLING
    story.run(3)
    assert [fact.code for fact in story.facts()] == ["ibdown"]


def test_what_is_known_outlives_a_restart_of_the_head(story: Story) -> None:
    story.fields["n1"] |= POLLING
    story.fields["n1"]["link_downs_total"] = 2.0
    story.run(3)
    before = story.facts()
    state = json.loads(json.dumps(story.rules.dump()))
    story.rules = Rules()
    story.rules.load(state)
    assert [(fact.code, fact.onset_ns) for fact in story.facts()] == [
        (fact.code, fact.onset_ns) for fact in before
    ]
    story.run(1)
    assert story.facts()[0].text == before[0].text
    story.fields["n1"]["link_downs_total"] = 3.0
    story.run(1)
    assert any("3 times" in fact.text for fact in story.facts())


def test_a_state_of_an_older_version_without_links_is_loaded() -> None:
    rules = Rules()
    rules.load({"nodes": {}})
    assert rules.facts(NOW, {}) == []


def test_nonsense_costs_no_memory_and_no_fact() -> None:
    rules = Rules()
    for k in range(2000):
        tags = {"device": f"d{k}", "port": "1"}
        rules.observe(sample("ib_port", NOW + k, UP, node="n1", **tags), NOW)
    rules.observe(sample("ib_port", NOW, UP, node="n1"), NOW)
    rules.observe(
        event("n1", "inventory", "link", NOW, text="switch= x=y =", severity=0, device="/"), NOW
    )
    assert len(rules.dump()["links"]["ports"]) == PORT_LIMIT
    assert rules.dump()["links"]["cables"] == []
    assert rules.facts(NOW, {"n1": 0}) == []


def test_a_host_that_moved_to_another_switch_counts_there() -> None:
    told = Story(4)
    links = told.rules.links
    for node in told.nodes[:3]:
        text = (
            f"switch=0x2 switch_port={node[1:]} adapter=0xb8cef60300100{node} adapter_port=1 name=x"
        )
        told.tell(event(node, "inventory", "link", NOW, text=text, severity=0, device="mlx5_0/1"))
    told.run(15)
    view = links.view(("n1", "mlx5_0", "1"), {})
    assert (view.switch_name, view.switch_hosts) == ("x", 3)
    assert links.view(("n4", "mlx5_0", "1"), {}).switch_hosts == 1


@pytest.mark.parametrize("port_first", [True, False])
def test_a_port_is_known_by_its_guid_whatever_the_description_calls_it(port_first: bool) -> None:
    told = Story()
    told.rules = Rules()
    guid = "0xb8cef60300100001"
    text = f"switch={LEAF} switch_port=1 adapter={guid} adapter_port=1 name=leaf-0-0"
    cable = event("n1", "inventory", "link", NOW, text=text, severity=0, device="HCA-1/1")
    port = event("n1", "inventory", "port", NOW, text=f"guid={guid}", severity=0, device="mlx5_0/1")
    told.tell(*([port, cable] if port_first else [cable, port]))
    told.run(15)
    told.fields["n1"] |= POLLING
    told.run(3)
    (fact,) = told.facts()
    assert fact.entity.device == "mlx5_0/1"
    assert "leaf-0-0 port 1" in " ".join(fact.evidence)
    cables = told.rules.dump()["links"]["cables"]
    assert [row[0] for row in cables] == [["n1", "mlx5_0", "1"]]
    again = Rules()
    again.load(json.loads(json.dumps(told.rules.dump())))
    assert again.dump() == told.rules.dump()


def test_thresholds_are_named_with_their_units() -> None:
    for name in LinkThresholds.__dataclass_fields__:
        assert name.endswith(("_seconds", "_count", "_ratio", "_intervals")), name
