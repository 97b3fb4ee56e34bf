"""Several causes against one node: one that can't drain it keeps no other from doing so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daemon.policy.cases import State
from daemon.policy.decide import explain_node
from daemon.policy.decisions import Action, Decision, Guard, Mode
from tests.daemon.drains.houses import house, node
from tests.daemon.worlds import GENEROUS, House, lost, silent


def by_nvml(onset_ns: int, gpu: int = 5):  # type: ignore[no-untyped-def]
    """NVML says that a GPU is lost: as grave as an Xid 79, and later in order."""
    return replace(
        lost("n1", gpu, onset_ns, "gpu_lost"), code="lost", text="driver says GPU is lost"
    )


def judged(made: House) -> Decision:
    made.clock.pass_seconds(15)
    (decision,) = (one for one in made.cycle() if one.voice != "silence")
    return decision


@pytest.mark.parametrize("kept_back", [Mode.SHADOW, Mode.APPROVE])
def test_a_rule_that_is_kept_back_hides_no_rule_that_may_act(kept_back: Mode) -> None:
    made = house(limits=GENEROUS.model_copy(update={"rules": {"xid": kept_back}}))
    now_ns = made.now_ns()
    made.facts = [lost("n1", 3, now_ns), by_nvml(now_ns)]
    decision = judged(made)
    assert (decision.action, decision.rule) == (Action.DRAIN, "gpu_lost")
    assert node(made, "n1").reason.startswith("tocsin:lost gpu5")
    (other,) = decision.inputs["beside"]
    assert other.startswith("x79 gpu3: fell off the bus (not drained for it: ")
    assert kept_back.value[:6] in other
    again = judged(made)
    assert (again.guard, len(made.ledger.held())) == (Guard.OURS, 1)


def test_a_no_covers_what_stood_beside_and_not_what_comes_after() -> None:
    made = house(limits=GENEROUS.model_copy(update={"rules": {"xid": Mode.APPROVE}}))
    first = made.now_ns()
    made.facts = [lost("n1", 3, first)]
    proposal = judged(made)
    made.facts.append(by_nvml(first + 1, gpu=3))
    made.drains.deny(proposal.id, "ann", made.clock.pass_seconds(1))
    refused = judged(made)
    assert (refused.guard, refused.id) == (Guard.DENIED, proposal.id)
    assert not node(made, "n1").drain
    made.facts.append(by_nvml(made.clock.pass_seconds(60)))
    decision = judged(made)
    assert (decision.action, decision.device) == (Action.DRAIN, "gpu5")
    assert any("ann said no to this case" in one for one in decision.inputs["beside"])


def test_what_may_be_a_readers_fault_hides_nothing_that_was_said() -> None:
    made = house()
    made.silences = [silent("n1", "nvml", "hung")]
    gone = replace(lost("n1", 2, made.now_ns(), "gpu_vanished"), code="vanish")
    made.facts = [gone]
    assert judged(made).guard is Guard.TOOL_FAULT
    made.facts.append(replace(by_nvml(made.now_ns()), severity=2))
    assert judged(made).rule == "gpu_lost"
    assert node(made, "n1").drain


def test_where_nothing_may_act_the_gravest_speaks_as_before() -> None:
    made = house(mode=Mode.SHADOW)
    now_ns = made.now_ns()
    made.facts = [lost("n1", 3, now_ns), by_nvml(now_ns)]
    decision = judged(made)
    assert (decision.guard, decision.rule) == (Guard.SHADOW, "xid")
    assert decision.inputs["beside"] == ["lost gpu5: driver says GPU is lost"]


def test_what_explain_says_of_a_node_is_said_of_the_cause_that_speaks() -> None:
    made = house(limits=GENEROUS.model_copy(update={"rules": {"xid": Mode.SHADOW}}))
    made.facts = [lost("n1", 3, made.now_ns()), by_nvml(made.now_ns())]
    verdicts, _ = explain_node(
        "n1", made.situation(made.adapter.nodes()), made.limits, made.ledger.view(made.now_ns()),
        Mode.ACT, made.now_ns(),
    )  # fmt: skip
    assert all(one.passed for one in verdicts)


def test_a_case_that_waits_for_a_yes_and_got_it_is_not_lost_behind_a_graver_one() -> None:
    made = house(mode=Mode.APPROVE, limits=GENEROUS.model_copy(update={"drains_per_hour": 0}))
    made.facts = [replace(by_nvml(made.now_ns()), severity=2)]
    proposal = judged(made)
    made.drains.approve(proposal.id, "ann", made.clock.pass_seconds(1))
    assert judged(made).guard is Guard.CAP_HOUR
    made.facts.append(lost("n1", 3, made.now_ns()))
    refused = judged(made)
    assert (refused.id, refused.guard) == (proposal.id, Guard.CAP_HOUR)
    assert made.ledger.find(proposal.id).state is State.APPROVED
