"""What a kill, a lost answer or a crash leaves behind is settled by what Slurm shows."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from daemon.policy.cases import State
from daemon.policy.decisions import Action, Guard, Mode
from daemon.policy.limits import Limits
from daemon.slurm.adapter import Check, Outcome, SlurmRefused, SlurmUnavailable
from daemon.slurm.simulated import SimulatedSlurm
from tests.daemon.drains.houses import house, node, restarted, slurm
from tests.daemon.worlds import (
    Clock,
    House,
    cluster,
    idle,
    lost,
)


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


@pytest.mark.parametrize("seen_again", [False, True])
def test_a_drain_that_slurmctld_makes_after_it_was_given_up_is_still_ours(seen_again: bool) -> None:
    """It hung for longer than an intent lasts, and worked off its backlog when it came back."""
    unsure = Unsure(cluster(4).values(), Clock().now_ns)
    made = House(unsure)
    unsure.apply = False
    made.facts = [lost("n3")]
    made.cycle()
    (case,) = made.ledger.held()
    made.facts = []
    made.clock.pass_seconds(700)
    made.cycle()
    assert made.ledger.find(case.id).state is State.ABANDONED
    unsure.set("n3", user="tocsin", state="drain", reason=case.reason)
    made.facts = [lost("n3")] if seen_again else []
    made.clock.pass_seconds(10)
    made.cycle()
    (held,) = made.ledger.held()
    assert (held.id, held.state) == (case.id, State.DRAINED)
    assert made.ledger.view(made.now_ns()).drains_ns == (made.now_ns(),)
    assert "late" in [entry.verb for entry in made.ledger.audit(node="n3")]
    assert made.drains.resume("n3", "ann", made.now_ns()).node == "n3"
    assert not node(made, "n3").drain


def test_a_person_who_writes_what_shadow_proposed_keeps_the_drain() -> None:
    made = house(Mode.SHADOW)
    made.facts = [lost("n3")]
    reason = made.cycle()[0].reason
    slurm(made).set("n3", user="ann", state="drain", reason=reason)
    made.cycle()
    assert made.ledger.held() == []
    acts = House(made.adapter, database=made.database, mode=Mode.ACT)
    acts.clock.pass_seconds(60)
    acts.facts = list(made.facts)
    assert acts.cycle()[0].guard is Guard.FOREIGN
    assert acts.ledger.held() == []


def test_a_drain_that_is_made_between_two_looks_is_done_and_not_taken_back() -> None:
    class Late(SimulatedSlurm):
        """The answer to the first write never comes; it is made when the second one looks."""

        backlog: Mapping[str, str] = {}

        def drain(self, reasons: Mapping[str, str], check: Check) -> Outcome:
            if not self.backlog:
                self.backlog = dict(reasons)
                return Outcome(unknown=dict.fromkeys(reasons, "no answer came"))
            for name, reason in self.backlog.items():
                self.set(name, user="tocsin", state="drain", reason=reason)
            return super().drain(reasons, check)

    late = Late(cluster(4).values(), Clock().now_ns)
    made = House(late)
    made.facts = [lost("n3")]
    made.cycle()
    made.clock.pass_seconds(10)
    made.cycle()
    assert node(made, "n3").drain
    assert made.ledger.case_of("n3").state is State.DRAINED  # type: ignore[union-attr]
    assert late.writes_total == 1


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


class Forgetful(SimulatedSlurm):
    """Answers all nodes as they are, and none where it is asked for some by name."""

    forgets = False

    def nodes(self, names=None):  # type: ignore[no-untyped-def]
        return {} if self.forgets and names is not None else super().nodes(names)


@pytest.mark.parametrize("shown", ["drained", "nothing"])
def test_a_node_that_one_of_two_readings_leaves_out_is_not_given_away(shown: str) -> None:
    made = house()
    slurm_ = Forgetful(cluster(4).values(), made.clock.now_ns)
    made.adapter = slurm_
    made.drains._hand.adapter = slurm_
    made.facts = [lost("n3")]
    made.cycle()
    (case,) = made.ledger.held()
    made.clock.pass_seconds(30)
    older = {**slurm_.nodes(), "n3": idle("n3")} if shown == "nothing" else slurm_.nodes()
    slurm_.forgets = True
    made.cycle(older)
    assert made.ledger.find(case.id).held, "the two readings contradict each other"
    slurm_.forgets = False
    made.cycle()
    assert made.ledger.find(case.id).held
    assert isinstance(made.drains.resume("n3", "ann", made.clock.pass_seconds(1)), tuple)


def test_a_node_that_both_readings_leave_out_is_gone() -> None:
    made = house()
    made.facts = [lost("n3")]
    made.cycle()
    (case,) = made.ledger.held()
    made.clock.pass_seconds(30)
    del slurm(made)._nodes["n3"]
    made.cycle()
    assert made.ledger.find(case.id).state is State.FOREIGN
