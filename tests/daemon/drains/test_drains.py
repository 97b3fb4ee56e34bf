"""The one place that acts, over a Slurm in memory: intents, collisions, restarts, words."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import replace

import pytest

from daemon.drains.drains import RefusedError
from daemon.drains.ledger import UnknownCaseError
from daemon.operators import OperatorWords
from daemon.policy.cases import State
from daemon.policy.decide import decide
from daemon.policy.decisions import Action, Guard, Mode
from daemon.policy.limits import Limits
from daemon.slurm.adapter import Check, Outcome, SlurmRefused, SlurmUnavailable
from daemon.slurm.simulated import SimulatedSlurm
from tests.daemon.worlds import (
    GENEROUS,
    START_NS,
    Clock,
    House,
    by_node,
    cluster,
    idle,
    lost,
    risk,
    simulated,
)


def house(mode: Mode = Mode.ACT, limits: Limits = GENEROUS, count: int = 4) -> House:
    made = House(simulated(count), mode=mode, limits=limits)
    made.clock.pass_seconds(10)
    return made


def slurm(made: House) -> SimulatedSlurm:
    assert isinstance(made.adapter, SimulatedSlurm)
    return made.adapter


def node(made: House, name: str):  # type: ignore[no-untyped-def]
    return made.adapter.nodes([name])[name]


def test_a_drain_is_made_once_and_then_known_as_ours() -> None:
    made = house()
    made.facts = [lost("n3")]
    first = made.cycle()[0]
    assert (first.action, first.guard) == (Action.DRAIN, None)
    assert node(made, "n3").drain
    assert node(made, "n3").reason == first.reason
    writes = slurm(made).writes_total
    for _ in range(5):
        made.clock.pass_seconds(10)
        assert made.cycle()[0].guard is Guard.OURS
    assert slurm(made).writes_total == writes
    case = made.ledger.case_of("n3")
    assert case is not None
    assert case.state is State.DRAINED
    verbs = [entry.verb for entry in made.ledger.audit(subject=case.id)]
    assert verbs[::-1] == ["intend", "drained"]


def test_decisions_are_recorded_on_change_only() -> None:
    made = house(limits=Limits(drains_per_hour=0))
    made.facts = [lost("n3")]
    for _ in range(5):
        made.cycle()
        made.clock.pass_seconds(10)
    found = made.ledger.decisions(node="n3")
    assert [(one.action, one.guard) for one in found] == [(Action.HOLD, Guard.CAP_HOUR)]


def test_a_busy_node_is_draining_until_its_last_job_ends() -> None:
    made = house()
    slurm(made).put(idle("n3", base="mixed", jobs=("7",)))
    made.facts = [lost("n3")]
    made.cycle()
    assert made.ledger.case_of("n3").state is State.DRAINING  # type: ignore[union-attr]
    slurm(made).put(replace(node(made, "n3"), base="idle", jobs=()))
    made.cycle()
    assert made.ledger.case_of("n3").state is State.DRAINED  # type: ignore[union-attr]


def test_shadow_writes_nothing_and_records_what_it_would_do() -> None:
    made = house(Mode.SHADOW)
    made.facts = [lost("n3")]
    assert made.cycle()[0].guard is Guard.SHADOW
    assert slurm(made).writes_total == 0
    assert made.ledger.decisions(node="n3")[0].guard is Guard.SHADOW


def test_an_operators_drain_between_decision_and_look_is_left_alone() -> None:
    made = house()
    made.facts = [lost("n3")]
    stale = made.adapter.nodes()
    slurm(made).set("n3", state="drain", reason="ops: PSU")
    decision = made.cycle(stale)[0]
    assert (decision.action, decision.guard) == (Action.HOLD, Guard.FOREIGN)
    assert "ops: PSU" in decision.guard_text
    assert node(made, "n3").reason == "ops: PSU"
    assert made.ledger.case_of("n3") is None


def test_an_operators_drain_between_look_and_write_is_theirs() -> None:
    clock = Clock()
    slurm_ = SimulatedSlurm(
        cluster(4).values(), clock.now_ns, lambda: slurm_.set("n3", state="drain", reason="ops")
    )
    made = House(slurm_)
    made.facts = [lost("n3")]
    decision = made.cycle()[0]
    assert decision.guard is Guard.FOREIGN
    assert node(made, "n3").reason == "ops"
    assert made.ledger.find(decision.id).state is State.FOREIGN
    assert made.ledger.audit(subject=decision.id)[0].detail["reason"] == "ops"


def test_a_relabelled_node_is_theirs_for_good() -> None:
    made = house()
    made.facts = [lost("n3")]
    made.cycle()
    slurm(made).set("n3", reason="ann: I look at it")
    made.clock.pass_seconds(10)
    assert made.cycle()[0].guard is Guard.FOREIGN
    with pytest.raises(RefusedError, match="ann: I look at it"):
        made.drains.resume("n3", "bob", made.now_ns())
    assert node(made, "n3").drain
    # When they give it back, the same cause does not drain it again.
    slurm(made).set("n3", state="resume")
    for _ in range(3):
        made.clock.pass_seconds(10)
        made.cycle()
    assert not node(made, "n3").drain


def test_a_node_that_others_give_back_starts_anew() -> None:
    made = house()
    slurm(made).set("n3", state="drain", reason="ops: PSU")
    made.facts = [lost("n3")]
    assert made.cycle()[0].guard is Guard.FOREIGN
    made.clock.pass_seconds(10)
    slurm(made).set("n3", state="resume")
    assert made.cycle() == []
    assert not node(made, "n3").drain
    made.facts = [lost("n3", onset_ns=made.clock.pass_seconds(10))]
    assert made.cycle()[0].action is Action.DRAIN


def test_resume_lifts_our_own_drain_and_the_cause_is_spent() -> None:
    made = house()
    made.facts = [lost("n3")]
    made.cycle()
    made.clock.pass_seconds(10)
    returned = made.drains.resume("n3", "ann", made.now_ns())
    assert returned.node == "n3"
    assert not node(made, "n3").drain
    decision = made.cycle()[0]
    assert decision.guard is Guard.SPENT
    assert not node(made, "n3").drain
    entry = next(e for e in made.ledger.audit(node="n3") if e.verb == "returned")
    assert entry.user == "ann"


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [
        ("drain", "ops", "not tocsin's"),
        ("", "", "nothing to lift"),
        ("down", "DIMM", "not tocsin's"),
    ],
)
def test_resume_refuses_what_is_not_ours(state: str, reason: str, said: str) -> None:
    made = house()
    if state:
        slurm(made).set("n1", state=state, reason=reason)
    before = node(made, "n1")
    with pytest.raises(RefusedError, match=said):
        made.drains.resume("n1", "ann", made.now_ns())
    assert node(made, "n1") == before
    with pytest.raises(RefusedError, match="no node"):
        made.drains.resume("n99", "ann", made.now_ns())


def test_a_drain_that_a_person_lifted_in_slurm_is_not_made_again() -> None:
    made = house()
    made.facts = [lost("n3")]
    made.cycle()
    made.clock.pass_seconds(10)
    slurm(made).set("n3", state="resume")
    assert made.cycle() == []
    made.facts = [lost("n3")]
    made.clock.pass_seconds(10)
    assert made.cycle()[0].guard is Guard.SPENT
    assert not node(made, "n3").drain


def test_a_reading_older_than_our_write_changes_nothing() -> None:
    made = house()
    stale = made.adapter.nodes()
    made.facts = [lost("n3")]
    made.cycle()
    made.clock.pass_seconds(1)
    assert made.cycle(stale)[0].guard is Guard.OURS
    assert node(made, "n3").drain
    assert made.ledger.case_of("n3") is not None


def test_a_drain_that_slurmctld_forgot_in_a_crash_is_written_again() -> None:
    made = house()
    slurm_ = SimulatedSlurm(cluster(4).values(), made.clock.now_ns)
    made.adapter = slurm_
    made.drains._hand.adapter = slurm_
    made.facts = [lost("n3")]
    made.cycle()
    reason = node(made, "n3").reason
    made.clock.pass_seconds(30)
    slurm_.put(idle("n3"))
    slurm_.restart()
    made.clock.pass_seconds(5)
    made.cycle()
    assert node(made, "n3").drain
    assert node(made, "n3").reason == reason
    assert "forgotten" in [entry.verb for entry in made.ledger.audit(node="n3")]
    # A person who lifts it later is obeyed.
    made.clock.pass_seconds(90)
    made.cycle()
    made.clock.pass_seconds(10)
    slurm_.set("n3", state="resume")
    made.cycle()
    assert not node(made, "n3").drain


def test_a_drain_forgotten_long_ago_is_not_forced_upon_anybody() -> None:
    made = house()
    made.facts = [lost("n3")]
    made.cycle()
    slurm(made).put(idle("n3"))
    made.clock.pass_seconds(3 * 86_400)
    slurm(made).restart()
    made.cycle()
    assert not node(made, "n3").drain


class Unsure(SimulatedSlurm):
    """A Slurm whose answers to writes get lost: ``apply`` tells whether the write took place."""

    apply = True
    fail: Exception | None = None

    def drain(self, reasons: Mapping[str, str], check: Check) -> Outcome:
        if self.fail is not None:
            raise self.fail
        if self.apply:
            super().drain(reasons, check)
        return Outcome(unknown=dict.fromkeys(reasons, "no answer came"))


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_outcome_is_settled_by_what_slurm_shows(applied: bool) -> None:
    clock = Clock()
    unsure = Unsure(cluster(4).values(), clock.now_ns)
    made = House(unsure)
    unsure.apply = applied
    made.facts = [lost("n3")]
    made.cycle()
    assert made.ledger.case_of("n3").state is State.INTENT  # type: ignore[union-attr]
    unsure.apply = True
    made.clock.pass_seconds(10)
    made.cycle()
    made.clock.pass_seconds(10)
    made.cycle()
    assert node(made, "n3").drain
    assert made.ledger.case_of("n3").state is State.DRAINED  # type: ignore[union-attr]
    assert unsure.writes_total == 1


def test_an_intent_that_stays_unknown_is_judged_anew_after_a_while() -> None:
    unsure = Unsure(cluster(4).values(), Clock().now_ns)
    made = House(unsure)
    unsure.apply = False
    made.facts = [lost("n3")]
    made.cycle()
    made.facts = []
    made.clock.pass_seconds(700)
    made.cycle()
    assert made.ledger.held() == []
    assert not node(made, "n3").drain


@pytest.mark.parametrize("error", [SlurmUnavailable("away", "stopped"), SlurmRefused("no rights")])
def test_a_drain_that_could_not_be_written_is_a_refusal_and_comes_later_once(
    error: Exception,
) -> None:
    unsure = Unsure(cluster(4).values(), Clock().now_ns)
    made = House(unsure, limits=Limits(drains_per_hour=1, drained_share_max=1.0))
    unsure.fail = error
    made.facts = [lost("n3")]
    for _ in range(3):
        decision = made.cycle()[0]
        assert (decision.action, decision.guard) == (Action.HOLD, Guard.SLURM_AWAY)
        made.clock.pass_seconds(10)
    unsure.fail = None
    made.cycle()
    made.clock.pass_seconds(10)
    made.cycle()
    assert node(made, "n3").drain
    assert unsure.writes_total == 1


def test_slurm_away_while_reconciling_concludes_nothing() -> None:
    made = house()
    made.facts = [lost("n3")]
    made.cycle()
    stale = {**made.adapter.nodes(), "n3": idle("n3")}
    slurm(made).away = "stopped"
    assert made.drains.reconcile(stale, made.now_ns()) == []
    assert made.ledger.case_of("n3") is not None


def test_a_node_that_left_slurm_is_no_longer_held() -> None:
    made = house()
    made.facts = [lost("n3")]
    made.cycle()
    del slurm(made)._nodes["n3"]
    made.cycle()
    assert made.ledger.held() == []


def test_a_down_node_keeps_being_ours_while_its_reason_is() -> None:
    made = house()
    made.facts = [lost("n3")]
    made.cycle()
    slurm(made).put(replace(node(made, "n3"), base="down"))
    made.cycle()
    assert made.ledger.case_of("n3") is not None


def test_a_foreign_node_with_a_fault_gets_a_line_in_its_comment_and_loses_it_when_back() -> None:
    made = house()
    slurm(made).set("n3", state="drain", reason="ops: PSU")
    slurm(made).set("n4", state="drain", reason="ops: PSU")
    slurm(made).put(replace(node(made, "n4"), comment="rack move"))
    made.facts = [lost("n3"), lost("n4")]
    found = by_node(made.cycle())
    assert node(made, "n3").comment == (f"tocsin {found['n3'].short_id}: x79 gpu3 fell off the bus")
    assert node(made, "n3").reason == "ops: PSU"
    assert node(made, "n4").comment == "rack move"
    writes = slurm(made).writes_total
    made.cycle()
    assert slurm(made).writes_total == writes
    slurm(made).set("n3", state="resume")
    slurm(made).set("n4", state="resume")
    made.cycle()
    assert node(made, "n3").comment == ""
    assert node(made, "n4").comment == "rack move"


# ---- restarts ------------------------------------------------------------------------------------


def restarted(made: House) -> House:
    """Another head over the same database and the same Slurm."""
    new = House(made.adapter, database=made.database, limits=made.limits, mode=made.mode)
    new.clock = made.clock
    new.now_ns = made.now_ns
    new.facts = list(made.facts)
    return new


def test_a_restart_after_the_intent_and_before_the_write_writes_once() -> None:
    made = house()
    made.facts = [lost("n3")]

    def die(reasons: Mapping[str, str], check: Check) -> Outcome:
        raise KeyboardInterrupt

    write = slurm(made).drain
    slurm(made).drain = die  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made.cycle()
    slurm(made).drain = write  # type: ignore[method-assign]
    new = restarted(made)
    new.cycle()
    new.cycle()
    assert node(new, "n3").drain
    assert slurm(new).writes_total == 1
    assert new.ledger.case_of("n3").state is State.DRAINED  # type: ignore[union-attr]
    assert [one.action for one in new.ledger.decisions(node="n3")] == [Action.DRAIN]


def test_a_restart_after_the_write_and_before_the_acknowledgement_writes_nothing() -> None:
    made = house()
    made.facts = [lost("n3")]
    write = slurm(made).drain

    def die(reasons: Mapping[str, str], check: Check) -> Outcome:
        write(reasons, check)
        raise KeyboardInterrupt

    slurm(made).drain = die  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made.cycle()
    slurm(made).drain = write  # type: ignore[method-assign]
    new = restarted(made)
    new.cycle()
    assert slurm(new).writes_total == 1
    assert new.ledger.case_of("n3").state is State.DRAINED  # type: ignore[union-attr]
    assert [one.action for one in new.ledger.decisions(node="n3")] == [Action.DRAIN]
    new.drains.resume("n3", "ann", new.now_ns())
    assert not node(new, "n3").drain


def test_a_restart_in_the_midst_of_a_resume_finishes_it() -> None:
    made = house()
    made.facts = [lost("n3")]
    made.cycle()

    def die(names: object, check: Check) -> Outcome:
        raise KeyboardInterrupt

    lift = slurm(made).undrain
    slurm(made).undrain = die  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made.drains.resume("n3", "ann", made.now_ns())
    slurm(made).undrain = lift  # type: ignore[method-assign]
    new = restarted(made)
    new.cycle()
    assert not node(new, "n3").drain
    assert new.ledger.held() == []
    assert next(e for e in new.ledger.audit(node="n3") if e.verb == "returned").user == "ann"


def test_a_restart_in_shadow_writes_no_old_intent() -> None:
    made = house()
    made.facts = [lost("n3")]

    def die(reasons: Mapping[str, str], check: Check) -> Outcome:
        raise KeyboardInterrupt

    write = slurm(made).drain
    slurm(made).drain = die  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made.cycle()
    slurm(made).drain = write  # type: ignore[method-assign]
    made.mode = Mode.SHADOW
    new = restarted(made)
    new.cycle()
    assert slurm(new).writes_total == 0
    assert new.ledger.held() == []


# ---- the words of operators -----------------------------------------------------------------


def test_an_approved_proposal_drains_and_tells_who_approved() -> None:
    made = house(Mode.APPROVE)
    made.facts = [lost("n3")]
    proposal = made.cycle()[0]
    assert proposal.guard is Guard.APPROVAL
    assert [case.id for case in made.ledger.waiting()] == [proposal.id]
    made.drains.approve(proposal.short_id, "ann", made.now_ns())
    assert made.cycle()[0].action is Action.DRAIN
    assert node(made, "n3").drain
    assert ("ann", "approve") in [(e.user, e.verb) for e in made.ledger.audit(node="n3")]


def test_two_people_may_be_needed_and_one_counts_once() -> None:
    limits = Limits.model_validate({**GENEROUS.model_dump(), "approvals_needed": 2})
    made = house(Mode.APPROVE, limits)
    made.facts = [lost("n3")]
    proposal = made.cycle()[0]
    assert made.drains.approve(proposal.id, "ann", made.now_ns()).state is State.PROPOSED
    for ann in ("ann", "page:ann"):  # on the socket, and at the page
        with pytest.raises(RefusedError, match="ann said yes already"):
            made.drains.approve(proposal.id, ann, made.now_ns())
    assert made.cycle()[0].guard is Guard.APPROVAL
    assert made.drains.approve(proposal.id, "bob", made.now_ns()).state is State.APPROVED
    assert made.cycle()[0].action is Action.DRAIN


def test_a_yes_to_a_proposal_that_expired_or_was_denied_counts_no_more() -> None:
    limits = Limits.model_validate({**GENEROUS.model_dump(), "approvals_needed": 2})
    made = house(Mode.APPROVE, limits)
    made.facts = [lost("n3")]
    proposal = made.cycle()[0]
    made.drains.approve(proposal.id, "ann", made.now_ns())
    made.clock.pass_seconds(86_401)
    made.cycle()  # nobody else answered
    made.clock.pass_seconds(10)
    made.cycle()  # it is asked again
    assert [case.id for case in made.ledger.waiting()] == [proposal.id]
    assert made.drains.approve(proposal.id, "bob", made.now_ns()).state is State.PROPOSED
    assert made.drains.approve(proposal.id, "ann", made.now_ns()).state is State.APPROVED
    made.drains.deny(proposal.id, "zoe", made.now_ns())
    assert made.drains.approve(proposal.id, "ann", made.now_ns()).state is State.DENIED
    assert made.drains.approve(proposal.id, "bob", made.now_ns()).state is State.APPROVED


def test_a_yes_that_is_not_used_in_time_expires_too() -> None:
    made = house(Mode.APPROVE)
    made.facts = [lost("n3")]
    proposal = made.cycle()[0]
    made.drains.approve(proposal.id, "ann", made.now_ns())
    made.facts = []
    made.clock.pass_seconds(86_401)
    made.cycle()
    assert made.ledger.find(proposal.id).state is State.WATCH
    made.facts = [lost("n3")]
    assert made.cycle()[0].guard is Guard.APPROVAL
    assert not made.adapter.nodes()["n3"].drain


def test_a_denied_proposal_never_drains_and_a_new_cause_is_asked_again() -> None:
    made = house(Mode.APPROVE)
    made.facts = [lost("n3")]
    proposal = made.cycle()[0]
    made.drains.deny(proposal.id, "ann", made.now_ns())
    assert made.cycle()[0].guard is Guard.DENIED
    made.facts = [lost("n3", onset_ns=START_NS + 5)]
    assert made.cycle()[0].guard is Guard.APPROVAL


def test_a_proposal_that_nobody_answers_expires_and_is_made_again() -> None:
    made = house(Mode.APPROVE)
    made.facts = [lost("n3")]
    proposal = made.cycle()[0]
    made.facts = []
    made.clock.pass_seconds(86_401)
    made.cycle()
    assert made.ledger.waiting() == []
    with pytest.raises(RefusedError):
        made.drains.approve(proposal.id, "ann", made.now_ns())


def test_words_about_nothing_are_refused() -> None:
    made = house()
    for word in ("abcd", "", "xyz!", "%"):
        with pytest.raises(UnknownCaseError):
            made.drains.approve(word, "ann", made.now_ns())
    with pytest.raises(RefusedError):
        made.drains.unlock("n1", "ann", made.now_ns())
    with pytest.raises(RefusedError):
        made.drains.close_breaker("ann", made.now_ns())


def test_a_locked_node_is_left_alone_until_it_is_unlocked() -> None:
    made = house()
    made.drains.lock("n3", "ann", made.now_ns(), "under test")
    made.facts = [lost("n3")]
    assert made.cycle()[0].guard is Guard.LOCKED
    made.drains.unlock("n3", "ann", made.now_ns())
    assert made.cycle()[0].action is Action.DRAIN


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


def test_audit_and_decisions_can_only_grow() -> None:
    made = house()
    made.facts = [lost("n1")]
    made.cycle()
    for table in ("audit", "decisions"):
        for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET node = 'x'"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                made.database.execute(statement)


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


def test_nodes_of_one_cycle_are_written_together() -> None:
    made = house()
    made.facts = [lost(f"n{i}") for i in range(1, 5)]
    found = by_node(made.cycle())
    assert {one.action for one in found.values()} == {Action.DRAIN}
    assert all(one.drain for one in made.adapter.nodes().values())


# ---- words of people that look like ours -----------------------------------------------------


@pytest.mark.parametrize("words", ["; power supply swap, ann: hands off", " reboot it never. bob",
                                   ": reboot issued by hand, ann is on it", "; Not responding to "
                                   "ping, ask ops", " : power"])  # fmt: skip
def test_a_reason_that_a_person_added_to_is_theirs(words: str) -> None:
    made = house()
    made.facts = [lost("n3")]
    made.cycle()
    reason = node(made, "n3").reason + words
    slurm(made).set("n3", user="ann", state="drain", reason=reason)
    made.cycle()
    assert made.ledger.held() == []
    with pytest.raises(RefusedError, match="not tocsin's"):
        made.drains.resume("n3", "bob", made.clock.pass_seconds(5))
    assert node(made, "n3").reason == reason


@pytest.mark.parametrize("words", ["tocsin keeps draining this one, ask bob",
                                   "{note} - ann: RMA 4711 is open"])  # fmt: skip
def test_a_comment_of_a_person_is_never_taken_for_our_note(words: str) -> None:
    made = house()
    slurm(made).set("n3", state="drain", reason="ops: PSU")
    made.facts = [lost("n3")]
    made.cycle()
    theirs = words.format(note=node(made, "n3").comment)
    slurm(made).change("n3", lambda shown: replace(shown, comment=theirs))
    made.facts = [lost("n3", onset_ns=made.clock.pass_seconds(60))]
    made.cycle()
    assert node(made, "n3").comment == theirs
    slurm(made).set("n3", state="resume")
    made.facts = []
    made.cycle()
    assert node(made, "n3").comment == theirs


def test_a_yes_after_a_no_counts_also_when_the_proposals_time_is_over() -> None:
    made = house(Mode.APPROVE, GENEROUS.model_copy(update={"approval_seconds": 600}))
    made.facts = [lost("n3")]
    case = made.cycle()[0].id
    made.drains.deny(case, "ann", made.clock.pass_seconds(10))
    made.drains.approve(case, "bob", made.clock.pass_seconds(3600))
    # For a moment Slurm's reading is too old: the yes must still be there afterwards.
    now_ns = made.clock.pass_seconds(5)
    old = made.situation(made.adapter.nodes(), age_seconds=1e6)
    view = made.ledger.view(now_ns)
    made.drains.carry_out(decide(old, made.limits, view, made.mode, now_ns), now_ns)
    assert made.ledger.find(case).state is State.APPROVED
    made.clock.pass_seconds(5)
    made.cycle()
    assert node(made, "n3").drain
    assert "expire" not in [one.verb for one in made.ledger.audit(subject=case)]


@pytest.mark.parametrize("state", [State.PROPOSED, State.DENIED])
async def test_a_first_of_two_yeses_is_not_told_as_approved(state: State) -> None:
    made = house(Mode.APPROVE, GENEROUS.model_copy(update={"approvals_needed": 2}))
    made.facts = [lost("n3")]
    case = made.cycle()[0].id
    if state is State.DENIED:
        made.drains.deny(case, "zoe", made.clock.pass_seconds(5))

    class Stub:
        """As much of a head as a word needs."""

        drains, clock, decisions = made.drains, made.clock, ()

        async def by_hand(self, function, *arguments):  # type: ignore[no-untyped-def]
            return function(*arguments)

        def look_at_ledger(self) -> None: ...
        def wake(self) -> None: ...

    words = OperatorWords(Stub())  # type: ignore[arg-type]
    assert "another person's is needed too" in await words.approve(case, "ann")
    assert "approved, but its cause is not seen now" in await words.approve(case, "bob")


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
