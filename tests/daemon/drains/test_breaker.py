"""Caps and the breaker, through the whole of policy, ledger and drains."""

from __future__ import annotations

from daemon.drains.drains import Drains
from daemon.policy.cases import State
from daemon.policy.decisions import Action, Guard, Mode
from daemon.policy.limits import Limits
from tests.daemon.drains.houses import house, node, restarted, slurm
from tests.daemon.worlds import (
    GENEROUS,
    SECOND_NS,
    by_node,
    lost,
    risk,
)


def test_the_breaker_opens_stays_open_over_a_restart_and_is_closed_by_a_person() -> None:
    limits = Limits.model_validate({**GENEROUS.model_dump(), "breaker_drains": 2})
    made = house(limits=limits, count=8)
    for i in (1, 2):
        made.facts = [lost(f"n{i}", onset_ns=made.now_ns())]
        assert made.cycle()[0].action is Action.DRAIN
        made.clock.pass_seconds(60)
    new = restarted(made)
    new.facts = [lost("n3", onset_ns=new.now_ns())]
    assert new.cycle()[0].guard is Guard.BREAKER
    assert new.ledger.view(new.now_ns()).breaker
    # An open breaker stops drains, never returns.
    new.drains.resume("n1", "ann", new.now_ns())
    assert not node(new, "n1").drain
    new.clock.pass_seconds(60)
    new.drains.close_breaker("ann", new.now_ns())
    new.clock.pass_seconds(60)
    assert new.cycle()[0].action is Action.DRAIN


def test_wrong_verdicts_are_kept_and_open_the_breaker() -> None:
    limits = Limits.model_validate({**GENEROUS.model_dump(), "breaker_wrong_verdicts": 1})
    made = house(limits=limits)
    made.facts = [lost("n1")]
    decision = made.cycle()[0]
    made.drains.resume("n1", "ann", made.clock.pass_seconds(10))
    case = made.drains.verdict(decision.short_id, False, "ann", made.clock.pass_seconds(10))
    assert case.state is State.RETURNED
    assert made.ledger.find(decision.id).verdict is False
    made.facts = [lost("n2", onset_ns=made.now_ns())]
    assert made.cycle()[0].guard is Guard.BREAKER


def test_five_at_once_under_a_cap_of_one_an_hour() -> None:
    limits = Limits(drains_per_hour=1, drained_share_max=1.0, partition_share_max=1.0)
    made = house(limits=limits, count=8)
    made.facts = [lost(f"n{i}") for i in range(1, 6)]
    for _ in range(4):
        made.cycle()
        made.clock.pass_seconds(10)
    assert sum(one.drain for one in made.adapter.nodes().values()) == 1
    recorded = [made.ledger.decisions(node=f"n{i}") for i in range(1, 6)]
    guards = [one[0].guard for one in recorded]
    assert guards.count(Guard.CAP_HOUR) == 4
    assert guards.count(None) == 1
    made.clock.pass_seconds(3700)
    made.cycle()
    assert sum(one.drain for one in made.adapter.nodes().values()) == 2


def test_what_only_watches_and_what_is_out_already_opens_no_breaker() -> None:
    limits = GENEROUS.model_copy(
        update={"breaker_candidates": 5, "risk_mode": Mode.SHADOW, "common_cause_nodes": 1000}
    )
    made = house(limits=limits, count=20)
    # A risk in shadow cries wolf, and a rack that people hold has faults.
    made.risks = [risk(f"n{i}", 0.95) for i in range(1, 11)]
    for i in range(11, 19):
        slurm(made).set(f"n{i}", state="drain", reason="ops: rack move")
    made.facts = [lost(f"n{i}") for i in range(11, 20)]
    found = by_node(made.cycle())
    assert made.ledger.view(made.now_ns()).breaker == ""
    assert found["n19"].guard is None
    assert node(made, "n19").drain
    assert found["n1"].guard is Guard.SHADOW
    # Nodes in service that are to be drained do open it.
    made.risks = []
    made.facts = [lost(f"n{i}", onset_ns=made.clock.pass_seconds(1)) for i in range(1, 7)]
    assert {one.guard for one in made.cycle()} == {Guard.BREAKER}
    assert "6 nodes ask for a drain at once" in made.ledger.view(made.now_ns()).breaker


def test_a_breaker_that_was_closed_while_the_clock_ran_ahead_opens_all_the_same() -> None:
    limits = Limits.model_validate({**GENEROUS.model_dump(), "breaker_drains": 2})
    made = house(limits=limits, count=8)
    made.ledger.open_breaker("looked odd", made.now_ns())
    made.clock.pass_seconds(30 * 86_400)
    made.drains.close_breaker("ann", made.now_ns())
    made.clock.pass_seconds(-30 * 86_400)
    for i in (1, 2):
        made.facts = [lost(f"n{i}", onset_ns=made.now_ns())]
        assert made.cycle()[0].action is Action.DRAIN
        made.clock.pass_seconds(60)
    made.facts = [lost("n3", onset_ns=made.now_ns())]
    assert made.cycle()[0].guard is Guard.BREAKER
    made.drains.close_breaker("ann", made.clock.pass_seconds(60))
    made.clock.pass_seconds(60)
    assert made.cycle()[0].action is Action.DRAIN, "what she has looked at is settled"


def test_a_clock_that_is_set_back_gives_no_second_budget_for_the_hour() -> None:
    made = house(limits=GENEROUS.model_copy(update={"drains_per_hour": 2}), count=8)
    for back_seconds, i in ((0, 1), (-1800, 2), (-86_400, 3), (-86_400 * 30, 4)):
        made.clock.pass_seconds(back_seconds)
        made.facts = [lost(f"n{i}", onset_ns=made.now_ns())]
        made.cycle()
    assert len(made.ledger.held()) == 2


def test_a_clock_that_is_set_forward_gives_no_second_budget_for_the_hour() -> None:
    made = house(limits=GENEROUS.model_copy(update={"drains_per_hour": 2}), count=8)
    made.drains = Drains(
        made.adapter, made.ledger, made.limits, made.mode, made.clock.monotonic
    )  # fmt: skip

    def drained(*numbers: int) -> set[str]:
        made.facts = [lost(f"n{i}", onset_ns=made.now_ns() + i) for i in numbers]
        made.cycle()
        made.clock.pass_seconds(60)
        return {case.node for case in made.ledger.held()}

    assert drained(1, 2, 3) == {"n1", "n2"}
    made.clock._now_ns += 7_200 * SECOND_NS
    assert drained(3, 4) == {"n1", "n2"}
    (told, _) = made.ledger.decisions(node="n3", limit=2)
    assert told.guard is Guard.CAP_HOUR
    assert "the clock was set forward" in told.guard_text
    made.clock.pass_seconds(3_600)
    assert drained(3, 4) == {"n1", "n2", "n3", "n4"}
