"""A head whose clock ran ahead while it wrote, and was set right: nothing stays known for ever."""

from __future__ import annotations

from daemon.drains.setback import nothing_later
from daemon.policy.cases import State
from daemon.policy.decisions import Action, Mode
from daemon.policy.limits import Limits
from daemon.returns import Returns
from models.features.engine import FeatureEngine
from models.rules import Rules
from models.silence import SilenceTracker
from models.watch import Watch
from tests.daemon.worlds import GENEROUS, SECOND_NS, Clock, House, lost, simulated
from tests.models.rule_samples import NOW, feed, told, xid

AHEAD_SECONDS = 2 * 86_400.0
LIMITS = Limits(**{**GENEROUS.model_dump(), "flap_drains": 3, "flap_window_seconds": 86_400.0})


def drained(made: House) -> None:
    made.facts = [lost("n1", onset_ns=made.clock.pass_seconds(60))]
    made.cycle()
    made.clock.pass_seconds(15)
    made.cycle()


def test_a_fault_after_a_return_under_a_fast_clock_drains_once_that_is_set_right() -> None:
    made = House(simulated(2))
    made.clock.pass_seconds(AHEAD_SECONDS)
    drained(made)
    made.drains.resume("n1", "ann", made.clock.pass_seconds(60))
    made.facts = []
    made.clock.pass_seconds(-AHEAD_SECONDS)
    made.cycle()
    made.clock.pass_seconds(60)
    made.facts = [lost("n1", gpu=5, onset_ns=made.now_ns())]
    made.clock.pass_seconds(15)
    assert made.cycle()[0].action is Action.DRAIN
    assert made.adapter.nodes()["n1"].drain
    said = [one.text for one in made.ledger.audit() if one.verb == "clock_back"]
    assert len(said) == 1
    assert "up to 172800 s ahead of it counts as written now" in said[0]


def test_what_was_known_before_the_step_stays_spent() -> None:
    made = House(simulated(2))
    made.clock.pass_seconds(AHEAD_SECONDS)
    drained(made)
    old = made.facts[0]
    made.drains.resume("n1", "ann", made.clock.pass_seconds(60))
    made.clock.pass_seconds(-AHEAD_SECONDS)
    made.facts = []
    made.cycle()
    made.facts = [old, lost("n1", gpu=5, onset_ns=made.now_ns() - 60 * SECOND_NS)]
    assert all(one.action is not Action.DRAIN for one in made.cycle())
    assert not made.adapter.nodes()["n1"].drain


def test_the_flap_lock_counts_drains_after_an_unlock_that_seemed_to_lie_ahead() -> None:
    made = House(simulated(2), limits=LIMITS)
    made.clock.pass_seconds(AHEAD_SECONDS)
    made.ledger.lock("n1", "ann", made.now_ns())
    made.drains.unlock("n1", "ann", made.now_ns())
    made.clock.pass_seconds(-AHEAD_SECONDS)
    for times in range(3):
        drained(made)
        assert made.ledger.locks() == ({"n1": "tocsin"} if times == 2 else {})
        if times < 2:
            made.drains.resume("n1", "ann", made.clock.pass_seconds(60))
            made.clock.pass_seconds(60)


def test_a_second_unlock_after_the_step_counts_from_then_on() -> None:
    made = House(simulated(2), limits=LIMITS)
    made.clock.pass_seconds(AHEAD_SECONDS)
    made.ledger.lock("n1", "ann", made.now_ns())
    made.ledger.unlock("n1", "ann", made.now_ns())
    made.clock.pass_seconds(-AHEAD_SECONDS)
    nothing_later(made.ledger, made.now_ns())
    assert made.ledger.last_said_ns("n1", "unlock") == made.now_ns() - 1
    made.ledger.lock("n1", "ann", made.clock.pass_seconds(60))
    made.ledger.unlock("n1", "ann", made.clock.pass_seconds(60))
    assert made.ledger.last_said_ns("n1", "unlock") == made.now_ns()
    assert made.ledger.last_said_ns("n1", "lock") == made.now_ns() - 60 * SECOND_NS
    assert made.ledger.last_said_ns("n2", "unlock") == 0


def test_a_drain_that_slurmctld_forgets_right_after_the_step_is_written_again() -> None:
    clock = Clock()
    slurm = simulated(2, clock)
    made = House(slurm)
    made.clock = clock
    made.now_ns = clock.now_ns
    made.clock.pass_seconds(AHEAD_SECONDS)
    drained(made)
    made.facts = []
    made.clock.pass_seconds(-AHEAD_SECONDS)
    made.cycle()
    made.clock.pass_seconds(30)
    slurm.restart()
    slurm.set("n1", state="undrain")
    made.clock.pass_seconds(15)
    made.cycle()
    assert slurm.nodes()["n1"].drain
    assert [case.state for case in made.ledger.held()] == [State.DRAINED]


def test_a_proposal_expires_as_long_after_its_making_as_was_meant() -> None:
    made = House(simulated(2), mode=Mode.APPROVE)
    made.clock.pass_seconds(AHEAD_SECONDS)
    made.facts = [lost("n1", onset_ns=made.now_ns())]
    made.cycle()
    [before] = made.ledger.waiting()
    lasts_ns = before.expires_ns - made.now_ns()
    made.clock.pass_seconds(-AHEAD_SECONDS)
    nothing_later(made.ledger, made.now_ns())
    [after] = made.ledger.waiting()
    assert after.expires_ns == made.now_ns() - 1 + lasts_ns


def test_a_clock_that_goes_on_or_back_by_a_blink_changes_nothing() -> None:
    made = House(simulated(2))
    drained(made)
    assert nothing_later(made.ledger, made.clock.pass_seconds(60)) == 0
    assert nothing_later(made.ledger, made.clock.pass_seconds(-60.5)) == 0
    assert not [one for one in made.ledger.audit() if one.verb == "clock_back"]
    assert nothing_later(made.ledger, made.clock.pass_seconds(-60)) > 40 * SECOND_NS
    assert nothing_later(made.ledger, made.now_ns()) == 0, "once is enough"


def test_the_watch_hears_faults_after_a_return_that_seemed_to_lie_ahead() -> None:
    rules = Rules()
    feed(rules, [xid(79, NOW)])
    ahead_ns = NOW + 7200 * SECOND_NS
    rules.clear("n3", ahead_ns)
    rules.nothing_later(NOW + 20 * SECOND_NS)
    feed(rules, [xid(79, NOW)])
    assert told(rules, NOW + 25 * SECOND_NS) == [], "what was known stays spent"
    feed(rules, [xid(79, NOW + 30 * SECOND_NS)])
    assert told(rules, NOW + 31 * SECOND_NS) == [("x79", "0000:9b:00")]


def test_a_return_after_the_step_is_told_to_the_watch_though_one_ahead_was_told_before() -> None:
    watch = Watch(Rules(), SilenceTracker(), FeatureEngine(), ())
    returns = Returns(watch, {})
    feed(watch.rules, [xid(79, NOW)])
    returns.tell({"n3": NOW + 7200 * SECOND_NS})
    returns.tell({"n3": NOW + 20 * SECOND_NS})
    watch.nothing_later(NOW + 20 * SECOND_NS)
    feed(watch.rules, [xid(79, NOW + 30 * SECOND_NS)])
    assert told(watch.rules, NOW + 31 * SECOND_NS) == [("x79", "0000:9b:00")]
    returns.tell({"n3": NOW + 60 * SECOND_NS})
    assert told(watch.rules, NOW + 61 * SECOND_NS) == []
