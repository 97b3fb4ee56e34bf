"""Links of several planes: one fact a link, placed at the plane that is lost."""

from __future__ import annotations

import json

import pytest

from collectors.events import event
from collectors.sample import Sample, sample
from models.rules import Rules
from models.voices import Entity, Fact, Remedy
from tests.models.test_links import BOOT, NOW, POLLING, SECOND, UP

PLANES = ("1", "2", "3", "4")
WHOLE = {**UP, "rate_bits_per_second": 800e9}
PLANE = {**UP, "rate_bits_per_second": 200e9, "link_width": 1.0, "link_downs_total": 0.0}


class Story:
    """Hosts with one XDR link each; plane N of every host hangs on the switch of plane N."""

    def __init__(
        self, hosts: int = 1, agents: bool = True, *, guid_first: bool = True, swept: bool = True
    ) -> None:
        self.rules = Rules()
        self.swept = swept
        self.agents = agents
        self.now = NOW
        self.hosts = [f"n{k + 1}" for k in range(hosts)]
        self.link = {host: {**WHOLE, "link_downs_total": 0.0} for host in self.hosts}
        self.plane = {(host, plane): dict(PLANE) for host in self.hosts for plane in PLANES}
        self.jobs = 0.0
        tell = (self._ports, self._cables) if guid_first else (self._cables, self._ports)
        for one in tell:
            one()

    def _ports(self) -> None:
        for host in self.hosts if self.agents else ():
            text = f"guid={self._guid(host)}"
            self.tell(
                event(host, "inventory", "port", NOW, text=text, severity=0, device="mlx5_0/1")
            )

    def _cables(self) -> None:
        for k, host in enumerate(self.hosts if self.swept else ()):
            for plane in PLANES:
                text = (
                    f"switch=0xa{plane} switch_port={k + 1} adapter={self._guid(host)} "
                    f"adapter_port={plane} name=leaf-{plane}"
                )
                device = f"HCA-1/1.{plane}"
                self.tell(
                    event(host, "inventory", "link", NOW, text=text, severity=0, device=device)
                )

    def _guid(self, host: str) -> str:
        return f"0xb8cef603{self.hosts.index(host):08x}"

    def tell(self, *samples: Sample) -> None:
        for one in samples:
            self.rules.observe(one, self.now)

    def run(self, minutes: float) -> None:
        for _ in range(int(minutes * 2)):
            self.now += 30 * SECOND
            for k, host in enumerate(self.hosts):
                self.tell(sample("slurm_node", self.now, {"jobs": self.jobs}, node=host))
                boot = {"boot_time_seconds": BOOT / SECOND}
                self.tell(sample("host", self.now, boot, node=host))
                for plane in PLANES if self.swept else ():
                    fields = self.plane[host, plane]
                    switch = {n: v for n, v in fields.items() if n != "link_downs_total"}
                    for guid, port in ((f"0xa{plane}", str(k + 1)), (self._guid(host), plane)):
                        told = switch if guid.startswith("0xa") else fields
                        tags = {"guid": guid, "port": port, "peer_node": host}
                        self.tell(sample("fabric_port", self.now, told, **tags))
                if not self.agents:
                    continue
                tags = {"node": host, "device": "mlx5_0", "port": "1"}
                self.tell(sample("ib_port", self.now, self.link[host], **tags))
                for plane in PLANES:
                    fields = self.plane[host, plane]
                    self.tell(sample("ib_plane", self.now, fields, plane=plane, **tags))

    def lose(self, host: str, *planes: str) -> None:
        for plane in planes:
            self.plane[host, plane] |= POLLING
        left = sum(1 for plane in PLANES if self.plane[host, plane]["state"] == 4.0)
        self.link[host]["rate_bits_per_second"] = 200e9 * left

    def facts(self) -> list[Fact]:
        return self.rules.facts(self.now, dict.fromkeys(self.hosts, 0))


@pytest.mark.parametrize("guid_first", [True, False])
def test_a_lost_plane_is_one_fact_of_its_link_placed_at_its_own_cable(guid_first: bool) -> None:
    told = Story(8, guid_first=guid_first)
    told.run(15)
    assert told.facts() == []
    told.lose("n1", "3")
    told.run(3)
    (fact,) = told.facts()
    assert fact.entity == Entity("link", "n1", "mlx5_0/1")
    assert (fact.code, fact.remedy) == ("ibrate", Remedy.DRAIN)
    assert fact.text == "1 of 4 planes lost or slow (3); likely the cable"
    assert "leaf-3 port 1" in " ".join(fact.evidence)


def test_a_link_that_is_down_as_a_whole_is_one_fact_and_no_five() -> None:
    told = Story()
    told.run(15)
    told.lose("n1", *PLANES)
    told.link["n1"] |= {**POLLING, "link_downs_total": 1.0}
    told.jobs = 1.0
    for plane in PLANES:
        told.plane["n1", plane]["link_downs_total"] = 1.0
    told.run(3)
    assert [(fact.code, fact.remedy) for fact in told.facts()] == [
        ("ibdown", Remedy.DRAIN),
        ("ibflap", Remedy.DRAIN),
    ]


def test_a_switch_of_one_plane_that_fails_drains_nobody_and_blames_no_other() -> None:
    told = Story(8)
    told.run(15)
    for host in told.hosts[:6]:
        told.lose(host, "2")
    told.lose("n8", "4")
    told.run(3)
    facts = {fact.entity.node: fact for fact in told.facts()}
    assert sorted(facts) == ["n1", "n2", "n3", "n4", "n5", "n6", "n8"]
    assert {facts[host].remedy for host in told.hosts[:6]} == {Remedy.ALERT}
    assert facts["n1"].text == "1 of 4 planes lost or slow (2); likely the switch"
    assert facts["n8"].remedy is Remedy.DRAIN, "its plane hangs on a switch that is well"


def test_without_a_sweep_a_plane_that_many_hosts_lose_at_once_is_the_fault_of_none() -> None:
    told = Story(5, swept=False)
    told.run(15)
    for host in told.hosts[:4]:
        told.lose(host, "2")
    told.run(3)
    facts = told.facts()
    assert [fact.entity.node for fact in facts] == told.hosts[:4]
    assert {fact.remedy for fact in facts} == {Remedy.ALERT}
    told = Story(5, swept=False)
    told.run(15)
    told.lose("n1", "2")
    told.run(3)
    (fact,) = told.facts()
    assert fact.remedy is Remedy.DRAIN


def test_drops_of_one_plane_are_for_a_person_and_those_of_the_link_count_once() -> None:
    told = Story()
    told.run(15)
    told.plane["n1", "2"]["link_downs_total"] = 2.0
    told.run(1)
    (fact,) = told.facts()
    assert (fact.code, fact.remedy) == ("ibflap", Remedy.ALERT)
    assert fact.text.startswith("plane 2 went down 2 times in 24 h")
    told = Story()
    told.run(15)
    for plane in PLANES:
        told.plane["n1", plane]["link_downs_total"] = 1.0
    told.link["n1"]["link_downs_total"] = 1.0
    told.run(5)
    assert told.facts() == [], "four planes that drop once are one drop"


def test_without_an_agent_the_drops_of_planes_are_not_added_up() -> None:
    told = Story(agents=False)
    told.run(15)
    for plane in PLANES:
        told.plane["n1", plane]["link_downs_total"] = 1.0
    told.run(15)
    assert told.facts() == []
    for plane in PLANES:
        told.plane["n1", plane]["link_downs_total"] = 2.0
    told.run(15)
    (fact,) = told.facts()
    assert (fact.code, fact.remedy) == ("ibflap", Remedy.ALERT)
    assert fact.text.startswith("all 4 planes went down 2 times")


def test_planes_that_contradict_their_link_are_for_a_person() -> None:
    told = Story()
    told.run(15)
    told.lose("n1", *PLANES)
    told.link["n1"]["rate_bits_per_second"] = 800e9
    told.run(3)
    (fact,) = told.facts()
    assert fact.remedy is Remedy.ALERT


def test_what_is_known_of_planes_outlives_a_restart_of_the_head() -> None:
    told = Story(8)
    told.run(15)
    told.lose("n1", "3")
    told.run(3)
    again = Rules()
    again.load(json.loads(json.dumps(told.rules.dump())))
    before, told.rules = told.facts(), again
    told.run(1)
    assert [fact.text for fact in told.facts()] == [fact.text for fact in before]


def test_what_was_known_of_a_plane_when_the_node_came_back_is_spent() -> None:
    told = Story()
    told.run(15)
    told.lose("n1", "3")
    told.run(3)
    assert told.facts()
    told.rules.clear("n1", told.now)
    told.run(1)
    assert told.facts() == []
    told.lose("n1", "4")
    told.run(3)
    (fact,) = told.facts()
    assert "1 of 4 planes lost or slow (4)" in fact.text
