"""Policy: which drains are wanted, which guard says no, in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collectors.slurm.nodes import NodeState
from daemon.policy.cases import LedgerView, State
from daemon.policy.decisions import Action, Decision, Guard, Mode
from daemon.policy.limits import Limits
from models.voices import Remedy
from tests.daemon.policy.judging import NOW_NS, case, judge
from tests.daemon.worlds import (
    GENEROUS,
    SECOND_NS,
    START_NS,
    alert,
    by_node,
    cluster,
    idle,
    lost,
    risk,
    silent,
)


def guard_of(decisions: list[Decision]) -> Guard | None:
    assert len(decisions) == 1
    decision = decisions[0]
    assert decision.action is (Action.HOLD if decision.guard else Action.DRAIN)
    assert bool(decision.guard) == bool(decision.guard_text)
    return decision.guard


def test_a_lost_gpu_drains_its_node() -> None:
    decision = judge(lost("n3"))[0]
    assert (decision.node, decision.action, decision.guard) == ("n3", Action.DRAIN, None)
    assert decision.voice == "fact"
    name = decision.id[:4]
    assert decision.reason == (f"tocsin:x79 gpu3 {name}; fell off the bus; tocsin explain {name}")
    assert decision.reason[:20] == f"tocsin:x79 gpu3 {name}"


def test_a_risk_beside_the_fact_stands_in_the_reason() -> None:
    decision = judge(lost("n3"), risks=(risk("n3", 0.97),))[0]
    assert "; risk 0.97/24h; " in decision.reason


def test_the_gravest_and_oldest_fact_speaks_for_a_node_and_the_others_stand_beside() -> None:
    old = replace(lost("n1", 2), onset_ns=START_NS - 5)
    decisions = judge(lost("n1", 5), old, risks=(risk("n1", 0.99),))
    assert len(decisions) == 1
    assert decisions[0].device == "gpu2"
    assert len(decisions[0].inputs["beside"]) == 2


def test_an_alert_is_told_and_drains_nothing() -> None:
    decision = judge(alert("n1"))[0]
    assert decision.action is Action.ALERT


def test_a_record_only_fact_says_nothing() -> None:
    assert judge(replace(lost("n1"), remedy=Remedy.NONE)) == []


def test_silence_is_told_and_never_drains() -> None:
    decisions = judge(silences=(silent("n2"),), nodes=cluster(10))
    assert [one.action for one in decisions] == [Action.ALERT]
    assert decisions[0].voice == "silence"


def test_a_fleet_that_falls_silent_is_one_alert() -> None:
    nodes = cluster(20)
    decisions = judge(silences=tuple(map(silent, nodes)), nodes=nodes)
    assert len(decisions) == 1
    assert decisions[0].action is Action.ALERT
    assert decisions[0].guard is Guard.COMMON_CAUSE
    assert decisions[0].node == ""


# ---- each guard ------------------------------------------------------------------------------


def test_old_node_states_hold() -> None:
    assert guard_of(judge(lost("n1"), age_seconds=1000)) is Guard.SLURM_AWAY
    assert guard_of(judge(lost("n1"), age_seconds=float("inf"))) is Guard.SLURM_AWAY


def test_a_node_that_slurm_does_not_know_holds() -> None:
    assert guard_of(judge(lost("x1"))) is Guard.UNKNOWN_NODE


def test_a_node_of_ours_holds() -> None:
    one = judge(lost("n1"))[0]
    held = case("n1", one)
    decision = judge(lost("n1"), ledger=LedgerView(held={"n1": held}))[0]
    assert decision.guard is Guard.OURS
    assert decision.reason == held.reason


@pytest.mark.parametrize(
    "node",
    [
        idle("n1", flags=frozenset({"DRAIN"}), reason="ops: PSU"),
        idle("n1", flags=frozenset({"DRAIN"}), reason="tocsin:x79 gpu3 0000; from another head"),
        idle("n1", flags=frozenset({"DRAIN"})),
        idle("n1", base="down", reason="bad DIMM"),
        idle("n1", flags=frozenset({"FAIL"}), reason="x"),
        idle("n1", reason="a note"),
    ],
    ids=lambda node: f"{node.words} {node.reason[:12]}",
)
def test_what_somebody_else_has_said_of_a_node_holds(node: NodeState) -> None:
    assert guard_of(judge(lost("n1"), nodes={"n1": node})) is Guard.FOREIGN


@pytest.mark.parametrize(
    ("base", "flags"),
    [
        ("down", {"NOT_RESPONDING"}),
        ("idle", {"NOT_RESPONDING"}),
        ("unknown", set()),
        ("future", set()),
        ("idle", {"POWERED_DOWN"}),
        ("idle", {"POWERING_UP"}),
        ("idle", {"INVALID_REG"}),
        ("idle", {"REBOOT_ISSUED"}),
    ],
)
def test_a_node_that_is_not_registered_and_answering_holds(base: str, flags: set[str]) -> None:
    node = idle("n1", base=base, flags=frozenset(flags))
    assert guard_of(judge(lost("n1"), nodes={"n1": node})) is Guard.NOT_REGISTERED


@pytest.mark.parametrize("flag", ["MAINTENANCE", "REBOOT_REQUESTED"])
def test_maintenance_holds(flag: str) -> None:
    node = idle("n1", flags=frozenset({flag}), reservation="m1")
    assert guard_of(judge(lost("n1"), nodes={"n1": node})) is Guard.MAINTENANCE


def test_a_lock_holds() -> None:
    decision = judge(lost("n1"), ledger=LedgerView(locked={"n1": "ann: under test"}))[0]
    assert decision.guard is Guard.LOCKED
    assert "ann" in decision.guard_text


@pytest.mark.parametrize("state", [State.RETURNED, State.FOREIGN])
def test_a_case_that_ended_never_acts_again(state: State) -> None:
    one = judge(lost("n1"))[0]
    ledger = LedgerView(cases={one.id: case("n1", one, state, ended_ns=NOW_NS)})
    assert guard_of(judge(lost("n1"), ledger=ledger)) is Guard.SPENT


def test_a_fact_older_than_the_last_return_is_spent_and_a_newer_one_is_not() -> None:
    ledger = LedgerView(returned_ns={"n1": START_NS + 1})
    assert guard_of(judge(lost("n1", onset_ns=START_NS), ledger=ledger)) is Guard.SPENT
    assert guard_of(judge(lost("n1", onset_ns=START_NS + 2), ledger=ledger)) is None


def test_a_no_holds_this_case_only() -> None:
    one = judge(lost("n1"))[0]
    ledger = LedgerView(cases={one.id: case("n1", one, State.DENIED, user="ann")})
    decision = judge(lost("n1"), ledger=ledger)[0]
    assert decision.guard is Guard.DENIED
    assert "ann" in decision.guard_text
    assert guard_of(judge(lost("n1", onset_ns=START_NS + 1), ledger=ledger)) is None


@pytest.mark.parametrize("cause", ["hung", "source", "agent"])
def test_a_fact_from_silence_holds_while_our_own_reader_is_silent(cause: str) -> None:
    vanished = lost("n1", rule="gpu_vanished")
    silences = (silent("n1", "nvml", cause),)
    nodes = cluster(10)
    found = by_node(judge(vanished, silences=silences, nodes=nodes)[:1])
    assert found["n1"].guard is Guard.TOOL_FAULT
    # What was said stands, whoever is silent now.
    assert by_node(judge(lost("n1"), silences=silences, nodes=nodes)[:1])["n1"].guard is None


def test_a_fact_from_silence_needs_coverage() -> None:
    vanished = lost("n1", rule="gpu_count")
    half = {"n1": 0.2, "n2": 1.0, "n3": 1.0, "n4": 1.0}
    assert guard_of(judge(vanished, coverage=half)) is Guard.COVERAGE
    fleet = {"n1": 1.0, "n2": 0.0, "n3": 0.0, "n4": 0.0}
    assert guard_of(judge(vanished, coverage=fleet)) is Guard.COVERAGE
    assert guard_of(judge(vanished)) is None


def test_many_nodes_alike_are_one_cause() -> None:
    nodes = cluster(100)
    facts = [lost(f"n{i}") for i in range(1, 12)]
    decisions = judge(*facts, nodes=nodes)
    assert {one.guard for one in decisions} == {Guard.COMMON_CAUSE}
    assert {one.guard for one in judge(*facts[:10], nodes=nodes)} == {None}


@pytest.mark.parametrize("hours", [0, 1, 48])
def test_one_cause_stays_one_cause_however_long_ago_it_was(hours: int) -> None:
    nodes = cluster(100)
    onset_ns = NOW_NS - hours * 3600 * SECOND_NS
    facts = [lost(f"n{i}", onset_ns=onset_ns + i * 20 * SECOND_NS) for i in range(1, 12)]
    assert {one.guard for one in judge(*facts, nodes=nodes)} == {Guard.COMMON_CAUSE}
    groups = {f"n{i}": ("rack r1",) for i in range(1, 20)}
    found = judge(*facts[:7], nodes=nodes, groups=groups)
    assert {one.guard for one in found} == {Guard.COMMON_CAUSE}


def test_nodes_alike_at_different_times_are_different_causes() -> None:
    nodes = cluster(100)
    facts = [lost(f"n{i}", onset_ns=NOW_NS - i * 3600 * SECOND_NS) for i in range(1, 12)]
    assert {one.guard for one in judge(*facts, nodes=nodes)} == {None}


def test_many_nodes_alike_in_one_rack_are_one_cause() -> None:
    nodes = cluster(100)
    groups = {f"n{i}": ("rack r1",) if i < 20 else ("rack r2",) for i in range(1, 101)}
    facts = [lost(f"n{i}") for i in range(1, 8)] + [lost("n50")]
    found = by_node(judge(*facts, nodes=nodes, groups=groups))
    assert found["n1"].guard is Guard.COMMON_CAUSE
    assert "rack r1" in found["n1"].guard_text
    assert found["n50"].guard is None


def test_shadow_is_the_default_and_records_what_it_would_do() -> None:
    assert guard_of(judge(lost("n1"), mode=Mode.SHADOW)) is Guard.SHADOW
    limits = replace_limits(rules={"xid": Mode.SHADOW})
    assert guard_of(judge(lost("n1"), limits=limits)) is Guard.SHADOW


def replace_limits(**changes: object) -> Limits:
    return Limits.model_validate({**GENEROUS.model_dump(), **changes})


def test_a_rule_never_goes_further_than_the_daemon() -> None:
    limits = replace_limits(rules={"xid": Mode.ACT})
    assert guard_of(judge(lost("n1"), limits=limits, mode=Mode.SHADOW)) is Guard.SHADOW
    assert guard_of(judge(lost("n1"), limits=limits, mode=Mode.APPROVE)) is Guard.APPROVAL


def test_an_approved_case_drains() -> None:
    one = judge(lost("n1"), mode=Mode.APPROVE)[0]
    assert one.guard is Guard.APPROVAL
    ledger = LedgerView(cases={one.id: case("n1", one, State.APPROVED, user="ann")})
    assert guard_of(judge(lost("n1"), mode=Mode.APPROVE, ledger=ledger)) is None


def test_an_open_breaker_holds() -> None:
    assert guard_of(judge(lost("n1"), ledger=LedgerView(breaker="too many"))) is Guard.BREAKER


def test_the_breaker_opens_by_drains_by_wrong_verdicts_and_by_too_many_candidates() -> None:
    limits = replace_limits(breaker_drains=3, breaker_wrong_verdicts=2, breaker_candidates=4)
    recent = tuple(NOW_NS - i * SECOND_NS for i in range(3))
    assert guard_of(judge(lost("n1"), limits=limits, ledger=LedgerView(drains_ns=recent))) is (
        Guard.BREAKER
    )
    wrong = LedgerView(wrong_verdicts_ns=recent[:2])
    assert guard_of(judge(lost("n1"), limits=limits, ledger=wrong)) is Guard.BREAKER
    many = judge(*(lost(f"n{i}") for i in range(1, 5)), limits=limits)
    assert {one.guard for one in many} == {Guard.BREAKER}
    closed = LedgerView(drains_ns=recent, breaker_closed_ns=NOW_NS)
    assert guard_of(judge(lost("n1"), limits=limits, ledger=closed)) is None


def test_one_drain_an_hour_leaves_four_refusals_that_name_the_guard() -> None:
    limits = Limits(drains_per_hour=1, drained_share_max=1.0, partition_share_max=1.0)
    nodes = cluster(8)
    decisions = judge(*(lost(f"n{i}") for i in range(1, 6)), nodes=nodes, limits=limits)
    assert [one.action for one in decisions].count(Action.DRAIN) == 1
    held = [one for one in decisions if one.action is Action.HOLD]
    assert [one.guard for one in held] == [Guard.CAP_HOUR] * 4
    assert all("1 drains in the last hour; at most 1" in one.guard_text for one in held)


def test_drains_of_the_last_hour_count_and_older_ones_do_not() -> None:
    limits = replace_limits(drains_per_hour=1)
    recent = LedgerView(drains_ns=(NOW_NS - 3599 * SECOND_NS,))
    old = LedgerView(drains_ns=(NOW_NS - 3601 * SECOND_NS,))
    assert guard_of(judge(lost("n1"), limits=limits, ledger=recent)) is Guard.CAP_HOUR
    assert guard_of(judge(lost("n1"), limits=limits, ledger=old)) is None


@pytest.mark.parametrize(("count", "allowed"), [(1, 1), (4, 1), (64, 3), (1000, 16)])
def test_the_cap_of_the_cluster_is_a_share_and_an_absolute_and_never_less_than_one(
    count: int, allowed: int
) -> None:
    limits = Limits(drains_per_hour=1000, common_cause_nodes=1000, breaker_candidates=2000)
    nodes = cluster(count)
    decisions = judge(*map(lost, nodes), nodes=nodes, limits=limits)
    assert [one.action for one in decisions].count(Action.DRAIN) == allowed
    assert {one.guard for one in decisions} <= {None, Guard.CAP_CLUSTER}


def test_a_partition_keeps_its_share() -> None:
    nodes = cluster(40)
    for i in range(1, 5):
        nodes[f"n{i}"] = idle(f"n{i}", partitions=("batch", "debug"))
    limits = replace_limits(partition_share_max=0.5)
    found = by_node(judge(*(lost(f"n{i}") for i in range(1, 5)), nodes=nodes, limits=limits))
    guards = [found[f"n{i}"].guard for i in range(1, 5)]
    assert guards.count(None) == 2
    assert guards.count(Guard.CAP_PARTITION) == 2


def test_drains_in_our_words_that_the_ledger_does_not_know_count_for_the_caps() -> None:
    """A ledger restored from yesterday's backup must not make today's drains once more."""
    nodes = cluster(40)
    for i in range(1, 4):
        words = f"tocsin:x79 gpu3 000{i}; tocsin explain 000{i}"
        nodes[f"n{i}"] = idle(
            f"n{i}", flags=frozenset({"DRAIN"}), reason=words, reason_time_ns=NOW_NS
        )
    nodes["n4"] = idle("n4", flags=frozenset({"DRAIN"}), reason="ann: PSU", reason_time_ns=NOW_NS)
    facts = tuple(lost(f"n{i}") for i in range(1, 9))
    found = by_node(judge(*facts, nodes=nodes, limits=replace_limits(drained_nodes_max=4)))
    assert [found[f"n{i}"].guard for i in range(1, 5)] == [Guard.FOREIGN] * 4
    guards = [found[f"n{i}"].guard for i in range(5, 9)]
    assert guards.count(None) == 1
    assert guards.count(Guard.CAP_CLUSTER) == 3
    found = by_node(judge(*facts, nodes=nodes, limits=replace_limits(drains_per_hour=4)))
    assert [found[f"n{i}"].guard for i in range(5, 9)].count(None) == 1
    old = {
        name: replace(node, reason_time_ns=NOW_NS - 7200 * SECOND_NS)
        for name, node in nodes.items()
    }
    found = by_node(judge(*facts, nodes=old, limits=replace_limits(drains_per_hour=4)))
    assert [found[f"n{i}"].guard for i in range(5, 9)].count(None) == 4


def test_a_refused_drain_takes_nobodys_place() -> None:
    limits = replace_limits(drains_per_hour=1)
    nodes = cluster(4)
    nodes["n1"] = idle("n1", flags=frozenset({"DRAIN"}), reason="theirs")
    found = by_node(judge(replace(lost("n1"), onset_ns=1), lost("n2"), nodes=nodes, limits=limits))
    assert found["n1"].guard is Guard.FOREIGN
    assert found["n2"].action is Action.DRAIN


# ---- risk ----------------------------------------------------------------------------------------


def test_risk_is_shadow_until_it_is_allowed_even_in_act_mode() -> None:
    assert guard_of(judge(risks=(risk("n1", 0.95),))) is Guard.SHADOW
    limits = replace_limits(risk_mode=Mode.ACT)
    assert guard_of(judge(risks=(risk("n1", 0.95),), limits=limits)) is None
    assert judge(risks=(risk("n1", 0.80),), limits=limits) == []


def test_risks_of_the_parts_combine_to_the_node() -> None:
    limits = replace_limits(risk_mode=Mode.ACT)
    risks = tuple(risk("n1", 0.5, gpu) for gpu in range(4))
    decision = judge(risks=risks, limits=limits)[0]
    assert decision.probability == pytest.approx(1 - 0.5**4)
    assert decision.action is Action.DRAIN


def test_a_risk_needs_a_node_that_is_heard() -> None:
    limits = replace_limits(risk_mode=Mode.ACT)
    risks = (risk("n1", 0.95),)
    nodes = cluster(10)
    silences = (silent("n1", "nvml", "source"),)
    found = judge(risks=risks, limits=limits, silences=silences, nodes=nodes)
    assert found[0].guard is Guard.TOOL_FAULT
    coverage = {**dict.fromkeys(nodes, 1.0), "n1": 0.1}
    assert guard_of(judge(risks=risks, limits=limits, coverage=coverage, nodes=nodes)) is (
        Guard.COVERAGE
    )


def test_a_node_that_just_came_back_is_not_drained_for_a_risk_but_for_a_fact() -> None:
    limits = replace_limits(risk_mode=Mode.ACT)
    ledger = LedgerView(returned_ns={"n1": NOW_NS - 60 * SECOND_NS})
    assert guard_of(judge(risks=(risk("n1", 0.95),), limits=limits, ledger=ledger)) is (
        Guard.HOLD_DOWN
    )
    assert guard_of(judge(lost("n1", onset_ns=NOW_NS), limits=limits, ledger=ledger)) is None


def test_the_same_situation_gives_the_same_decisions() -> None:
    facts = [lost(f"n{i}", gpu) for i in range(1, 5) for gpu in range(3)]
    forward = judge(*facts, limits=Limits(drains_per_hour=2))
    backward = judge(*reversed(facts), limits=Limits(drains_per_hour=2))
    assert [(one.id, one.guard) for one in forward] == [(one.id, one.guard) for one in backward]
