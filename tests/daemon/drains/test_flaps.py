"""The flap lock: who drains one node again and again hands it to a person."""

from __future__ import annotations

import pytest

from daemon.drains.drains import RefusedError
from daemon.policy.cases import State
from daemon.policy.limits import Limits
from tests.daemon.worlds import GENEROUS, House, lost, simulated

LIMITS = Limits(**{**GENEROUS.model_dump(), "flap_drains": 3, "flap_window_seconds": 86_400.0})


def house(limits: Limits = LIMITS) -> House:
    made = House(simulated(2), limits=limits)
    made.clock.pass_seconds(10)
    return made


def drained_and_returned(made: House, times: int) -> None:
    for _ in range(times):
        drained(made)
        made.drains.resume("n1", "ann", made.clock.pass_seconds(60))


def drained(made: House) -> None:
    made.facts = [lost("n1", onset_ns=made.clock.pass_seconds(60))]
    made.cycle()
    made.clock.pass_seconds(15)
    made.cycle()


def test_the_third_drain_within_the_window_locks_the_node_until_a_person_unlocks_it() -> None:
    made = house()
    drained_and_returned(made, 2)
    assert made.ledger.locks() == {}
    drained(made)
    assert made.ledger.locks() == {"n1": "tocsin"}
    assert "drained 3 times in 1 days" in made.ledger.view(made.now_ns()).locked["n1"]
    with pytest.raises(RefusedError, match="tocsin unlock n1 first"):
        made.drains.resume("n1", "ann", made.now_ns())
    assert made.adapter.nodes()["n1"].drain
    made.drains.unlock("n1", "ann", made.now_ns())
    made.clock.pass_seconds(15)
    made.cycle()
    assert made.ledger.locks() == {}, "what was before a person's word no longer counts"
    made.drains.resume("n1", "ann", made.clock.pass_seconds(1))
    assert not made.adapter.nodes()["n1"].drain


def test_a_person_who_lifts_a_locked_node_in_slurm_has_spoken() -> None:
    made = house()
    drained_and_returned(made, 2)
    drained(made)
    made.adapter.set("n1", state="resume")  # type: ignore[attr-defined]
    made.clock.pass_seconds(15)
    made.facts = []
    made.cycle()
    assert made.ledger.locks() == {}
    drained(made)
    case = made.ledger.case_of("n1")
    assert case is not None
    assert case.state is State.DRAINED
    assert made.ledger.locks() == {}, "it counts anew"


def test_old_drains_and_drains_called_wrong_do_not_count() -> None:
    made = house()
    drained_and_returned(made, 2)
    made.clock.pass_seconds(2 * 86_400)
    drained_and_returned(made, 2)
    last = made.ledger.audit(node="n1")[0].subject
    made.drains.verdict(last, False, "ann", made.now_ns())
    drained(made)
    assert made.ledger.locks() == {}


def test_a_persons_own_lock_is_left_alone() -> None:
    made = house()
    drained_and_returned(made, 2)
    drained(made)
    made.drains.unlock("n1", "ann", made.now_ns())
    made.drains.lock("n1", "ann", made.now_ns(), "mine")
    made.adapter.set("n1", state="resume")  # type: ignore[attr-defined]
    made.clock.pass_seconds(15)
    made.cycle()
    assert made.ledger.locks() == {"n1": "ann"}


def test_a_kill_between_drain_and_lock_costs_nothing() -> None:
    made = house()
    drained_and_returned(made, 2)
    made.facts = [lost("n1", onset_ns=made.clock.pass_seconds(60))]
    made.cycle()  # drained; the lock would come with the next cycle, of another head
    assert made.ledger.locks() == {}
    new = House(made.adapter, database=made.database, limits=LIMITS)
    new.clock.pass_seconds(100_000)
    new.drains.reconcile(new.adapter.nodes(), made.clock.pass_seconds(15))
    assert new.ledger.locks() == {"n1": "tocsin"}
