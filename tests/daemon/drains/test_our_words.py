"""A reason of ours that stands there again after its drain had ended: whose is it?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from daemon.drains.drains import RefusedError
from daemon.policy.cases import Case, State
from daemon.slurm.simulated import SimulatedSlurm
from tests.daemon.worlds import Clock, House, cluster, lost


def returned() -> tuple[House, SimulatedSlurm, Case]:
    """n3 was drained by tocsin and came back; a week later slurmctld is started anew."""
    clock = Clock()
    slurm = SimulatedSlurm(cluster(4).values(), clock.now_ns)
    made = House(slurm)
    made.clock, made.now_ns = clock, clock.now_ns
    clock.pass_seconds(10)
    made.facts = [lost("n3")]
    made.cycle()
    (case,) = made.ledger.held()
    made.facts = []
    clock.pass_seconds(60)
    made.cycle()
    before = slurm.nodes(["n3"])["n3"]
    made.drains.resume("n3", "bob", clock.now_ns())
    for seconds in (10, 7 * 86_400):
        clock.pass_seconds(seconds)
        made.cycle()
    slurm.restart()
    clock.pass_seconds(10)
    made.cycle()
    assert before.reason == case.reason
    return made, slurm, case


def test_a_person_who_takes_up_our_words_keeps_the_drain() -> None:
    made, slurm, case = returned()
    slurm.set("n3", user="ann", state="drain", reason=case.reason)
    for seconds in (10, 200):
        made.clock.pass_seconds(seconds)
        made.cycle()
    assert made.ledger.held() == []
    with pytest.raises(RefusedError, match="set by ann, which is not tocsin's to lift"):
        made.drains.resume("n3", "bob", made.now_ns())
    assert slurm.nodes(["n3"])["n3"].drain


def test_a_slurmctld_that_goes_back_to_before_the_return_shows_our_drain_again() -> None:
    made, slurm, case = returned()
    slurm.set("n3", user="tocsin", state="drain", reason=case.reason)
    slurm.change("n3", lambda node: replace(node, reason_time_ns=case.intent_ns))
    made.clock.pass_seconds(10)
    made.cycle()
    (held,) = made.ledger.held()
    assert (held.id, held.state) == (case.id, State.DRAINED)
    assert made.drains.resume("n3", "bob", made.now_ns()).node == "n3"
