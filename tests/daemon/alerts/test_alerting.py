"""Which alerts are active: one cause, one alert."""

from __future__ import annotations

from dataclasses import replace

from daemon.alerts.active import (
    WARNING,
    Alert,
    GroupOptions,
    active_alerts,
    names,
    of_senders,
    phrase,
)
from daemon.policy.decisions import Action, Decision, Guard, Mode, decision_id
from models.voices import Silence

NOW_NS = 1_788_000_000_000_000_000
OPTIONS = GroupOptions()


def decision(node: str, action: Action = Action.DRAIN, guard: Guard | None = None) -> Decision:
    case = decision_id(node, "xid", "gpu3", NOW_NS)
    reason = f"tocsin:x79 gpu3 {case[:4]}; fell off the bus; tocsin explain {case[:4]}"
    return Decision(
        id=case,
        time_ns=NOW_NS,
        node=node,
        device="gpu3",
        component="gpu",
        action=action,
        voice="fact",
        rule="xid",
        code="x79",
        mode=Mode.ACT,
        reason=reason,
        guard=guard,
        guard_text="1 of 1 drains this hour are used" if guard else "",
        severity=3,
        advice="restart the node",
    )


def silence(node: str, source: str = "", cause: str = "agent") -> Silence:
    return Silence(node, source, cause, NOW_NS - 120 * 10**9, 120.0, f"{node} not heard for 120 s")


def alerts_of(
    decisions: list[Decision], silences: list[Silence] | None = None, nodes: int = 64
) -> list[Alert]:
    return active_alerts(decisions, silences or [], nodes, NOW_NS, OPTIONS)


def test_a_drain_is_told_with_part_cause_advice_and_how_to_learn_more() -> None:
    (alert,) = alerts_of([decision("n3")])
    assert alert.title == "n3 taken out of service: gpu3 fell off the bus (x79)"
    assert "restart the node" in alert.text
    assert f"tocsin explain {alert.id[:4]}" in alert.text
    assert alert.settle_seconds == 0


def test_a_drain_and_its_later_cycles_are_one_alert_in_one_state() -> None:
    (first,) = alerts_of([decision("n3")])
    (later,) = alerts_of([decision("n3", Action.HOLD, Guard.OURS)])
    assert (first.key, first.shape) == (later.key, later.shape)


def test_drains_that_a_cap_refuses_are_one_alert_that_names_them_all() -> None:
    held = [decision(f"n{i}", Action.HOLD, Guard.CAP_HOUR) for i in (1, 2, 3)]
    held.append(decision("n4", Action.HOLD, Guard.CAP_CLUSTER))
    found = alerts_of([decision("n9"), *held])
    assert [alert.state for alert in found] == ["drained", "caps"]
    assert found[1].nodes == ("n1", "n2", "n3", "n4")
    assert "4 drains refused" in found[1].title
    assert "1 of 1 drains this hour are used" in found[1].text


def test_a_fleet_that_falls_silent_is_one_alert() -> None:
    (alert,) = alerts_of([], [silence(f"n{i:02}") for i in range(64)])
    assert alert.severity == 3
    assert "whole fleet is silent" in alert.title
    assert "nothing is drained" in alert.title
    assert len(alert.covers) == 64
    assert alert.settle_seconds > 0


def test_a_few_silent_nodes_of_many_are_told_by_name() -> None:
    found = alerts_of([], [silence("n1"), silence("n2")])
    assert [alert.title for alert in found] == ["n1 is silent", "n2 is silent"]


def test_a_silent_node_is_not_told_again_for_each_of_its_sources() -> None:
    sources = [silence("n1", source, "source") for source in ("nvml", "host")]
    found = alerts_of([], [silence("n1"), *sources])
    assert [alert.key for alert in found] == ["silence/n1"]


def test_one_source_that_is_silent_on_many_nodes_is_one_alert() -> None:
    found = alerts_of([], [silence(f"n{i}", "nvml", "source") for i in range(6)])
    assert [alert.key for alert in found] == ["silence/source/nvml"]
    assert "6 nodes without nvml" in found[0].title


def test_a_hung_source_is_called_hung() -> None:
    (alert,) = alerts_of([], [silence("n1", "nvml", "hung")])
    assert alert.title == "n1: nvml hangs"


def test_one_code_on_many_nodes_is_one_alert_that_covers_the_single_ones() -> None:
    few = alerts_of([decision(f"n{i}", Action.HOLD, Guard.SHADOW) for i in range(4)])
    many = alerts_of([decision(f"n{i}", Action.HOLD, Guard.SHADOW) for i in range(5)])
    assert len(few) == 4
    assert len(many) == 1
    assert {alert.key for alert in few} < many[0].covers
    assert "5 nodes would be drained (shadow) (x79)" in many[0].title


def test_a_rack_that_falls_silent_is_one_alert_and_not_the_fleets() -> None:
    (alert,) = alerts_of([], [silence(f"n{i}") for i in range(8)])
    assert alert.title.startswith("8 nodes silent: n0, n1")
    assert alert.severity == 2


def test_a_drained_node_is_one_alert_whatever_else_is_wrong_with_it() -> None:
    worn = replace(
        decision("n3", Action.ALERT), id="b" * 16, code="pending", severity=1,
        reason="tocsin:pending gpu3 bbbb; row remap waits for a reset",
    )  # fmt: skip
    (before,) = alerts_of([worn])
    lost = replace(decision("n3", Action.HOLD, Guard.OURS), id="c" * 16, severity=2)
    found = alerts_of([worn, lost, decision("n3", Action.HOLD, Guard.OURS)], [silence("n3")])
    assert [alert.key for alert in found] == ["drained/n3"]
    assert found[0].severity == 3
    assert "also: n3: gpu3 row remap waits for a reset (pending)" in found[0].text
    assert before.key in found[0].covers


def test_the_silence_of_a_node_that_is_out_of_service_is_no_news() -> None:
    silences = [silence("n1"), silence("n2")]
    found = active_alerts([], silences, 64, NOW_NS, OPTIONS, out_of_service={"n1"})
    assert [alert.node for alert in found] == ["n2"]


def test_two_common_causes_are_two_alerts() -> None:
    def held(node: str, cause: str) -> Decision:
        one = decision(node, Action.HOLD, Guard.COMMON_CAUSE)
        return replace(one, inputs={"cause": cause})

    found = alerts_of([held("n1", "rack r1"), held("n2", "rack r1"), held("n3", "leaf s7")])
    assert sorted(alert.nodes for alert in found) == [("n1", "n2"), ("n3",)]


def test_a_drain_that_waits_for_a_person_says_what_to_type() -> None:
    (alert,) = alerts_of([decision("n3", Action.HOLD, Guard.APPROVAL)])
    assert f"tocsin approve {alert.id[:4]}" in alert.text


def test_a_fault_on_a_node_that_others_drained_is_a_warning() -> None:
    (alert,) = alerts_of([decision("n3", Action.HOLD, Guard.FOREIGN)])
    assert alert.severity == 1


def test_what_a_person_has_settled_is_quiet() -> None:
    for guard in (Guard.LOCKED, Guard.DENIED, Guard.SPENT):
        assert alerts_of([decision("n3", Action.HOLD, guard)]) == []
    assert alerts_of([decision("n3", Action.RESUME)]) == []


def test_every_guard_gives_an_alert_or_is_quiet_by_intent() -> None:
    for guard in Guard:
        found = alerts_of([decision("n3", Action.HOLD, guard)])
        assert len(found) == (0 if guard in (Guard.LOCKED, Guard.DENIED, Guard.SPENT) else 1)


def test_the_loudest_comes_first() -> None:
    found = alerts_of([decision("n3", Action.HOLD, Guard.FOREIGN), decision("n4")])
    assert [alert.node for alert in found] == ["n4", "n3"]


def test_a_reason_of_others_is_quoted_whole() -> None:
    one = replace(decision("n3"), reason="odd reason", code="", voice="risk", probability=0.5)
    assert phrase(one) == "odd reason (risk 0.50)"


def test_names_stay_short() -> None:
    assert names(tuple(f"n{i}" for i in range(10))).endswith("n7 and 2 more")


def test_senders_that_are_cut_are_one_warning() -> None:
    assert of_senders("", NOW_NS) == []
    (told,) = of_senders("n1 sends too much; n2: event budget: ...", NOW_NS)
    assert (told.severity, told.key) == (WARNING, "gateway/senders")
    assert told.text.startswith("n1 sends too much; n2")
