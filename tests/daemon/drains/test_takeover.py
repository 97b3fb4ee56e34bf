"""A backup slurmctld that takes over without the state: our drains are forgotten, not lifted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daemon.policy.cases import State
from daemon.slurm.adapter import SlurmUnavailable
from daemon.slurm.simulated import SimulatedSlurm
from tests.daemon.worlds import Clock, House, cluster, lost


class Pair:
    """Two slurmctlds; the backup has been running for a day when the head begins."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.backup_ns = self.clock.now_ns() - 86_400 * 10**9
        self.clock.pass_seconds(60)
        self.slurm = Asked(cluster(4).values(), self.clock.now_ns)
        self.house = House(self.slurm)
        self.house.clock = self.clock
        self.house.now_ns = self.clock.now_ns
        self.clock.pass_seconds(60)
        self.house.facts = [lost("n1"), lost("n3")]
        self.cycle(2)
        self.house.facts = []

    def cycle(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.pass_seconds(15)
            self.house.cycle()

    @property
    def drained(self) -> set[str]:
        return {name for name, node in self.slurm.nodes().items() if node.drain}

    def said(self, node: str) -> list[str]:
        return [one.verb for one in self.house.ledger.audit(node=node)]


class Asked(SimulatedSlurm):
    """Counts how often it is asked when it was started; ``fails`` is what it answers instead."""

    asked = 0
    fails: SlurmUnavailable | None = None

    def controller_start_ns(self) -> int:
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        return super().controller_start_ns()


def test_a_backup_without_the_state_gets_the_drains_again() -> None:
    pair = Pair()
    pair.clock.pass_seconds(120)  # SlurmctldTimeout: nobody answers, nothing is read
    pair.slurm.taken_over(pair.backup_ns, "n1", "n3")
    pair.cycle()
    assert pair.drained == {"n1", "n3"}
    for node in ("n1", "n3"):
        assert "forgotten" in pair.said(node)
        assert "returned" not in pair.said(node)


def test_a_node_that_has_not_registered_yet_gets_its_drain_when_it_has() -> None:
    pair = Pair()
    pair.slurm.taken_over(pair.backup_ns, "n1", "n3")
    for node in ("n1", "n3"):
        pair.slurm.change(node, lambda one: replace(one, flags=frozenset({"NOT_RESPONDING"})))
    pair.cycle(3)
    assert pair.drained == set()
    assert {case.node for case in pair.house.ledger.held()} == {"n1", "n3"}
    for node in ("n1", "n3"):
        pair.slurm.change(node, lambda one: replace(one, flags=frozenset()))
    pair.cycle()
    assert pair.drained == {"n1", "n3"}
    assert pair.said("n3").count("forgotten") == 1
    assert [case.state for case in pair.house.ledger.held()] == [State.DRAINED] * 2


def test_a_person_who_lifts_a_drain_right_after_the_takeover_is_obeyed() -> None:
    pair = Pair()
    pair.slurm.taken_over(pair.backup_ns, "n1", "n3")
    pair.cycle()
    pair.slurm.set("n3", state="resume")
    pair.cycle()
    assert pair.drained == {"n1"}
    case = pair.house.ledger.case_of("n3")
    assert case is None


def test_a_person_is_obeyed_after_a_takeover_that_kept_the_state() -> None:
    pair = Pair()
    pair.house.drains.not_read()
    pair.slurm.taken_over(pair.backup_ns)
    pair.cycle()  # the drains stand: this one is remembered now
    pair.slurm.set("n3", state="resume")
    pair.cycle()
    assert pair.drained == {"n1"}
    assert "forgotten" not in pair.said("n3")


def test_a_person_is_obeyed_where_the_one_that_took_over_did_not_say_its_start() -> None:
    """On a busy machine the question for the start may fail where the nodes were read."""
    pair = Pair()
    pair.house.drains.not_read()
    pair.slurm.taken_over(pair.backup_ns)
    pair.slurm.fails = SlurmUnavailable("timed out", "hung")
    pair.cycle()
    pair.slurm.fails = None
    pair.slurm.set("n3", state="resume")
    pair.cycle()
    assert pair.drained == {"n1"}
    assert "forgotten" not in pair.said("n3")


@pytest.mark.parametrize("cycles", range(5))
def test_a_person_is_obeyed_soon_after_a_reconfigure(cycles: int) -> None:
    """From 23.11 on ``scontrol reconfigure`` starts slurmctld anew, and loses nothing."""
    pair = Pair()
    pair.cycle(cycles)
    pair.slurm.taken_over(pair.clock.now_ns())
    pair.cycle()  # the drains stand in the one that was started anew, asked for its start or not
    pair.slurm.set("n3", state="resume")
    pair.cycle()
    assert pair.drained == {"n1"}
    assert "forgotten" not in pair.said("n3")


def test_a_takeover_that_nobody_saw_is_known_soon_and_costs_few_requests() -> None:
    pair = Pair()
    pair.slurm.asked = 0
    pair.slurm.taken_over(pair.backup_ns)
    pair.cycle(40)  # ten minutes
    assert pair.slurm.asked <= 11
    pair.slurm.set("n3", state="resume")
    pair.cycle()
    assert pair.drained == {"n1"}


def test_where_slurmctld_does_not_say_when_it_was_started_nothing_is_concluded_yet() -> None:
    pair = Pair()
    pair.slurm.taken_over(pair.backup_ns, "n1", "n3")
    pair.slurm.fails = SlurmUnavailable("Socket timed out", "hung")
    pair.cycle(3)
    assert "returned" not in pair.said("n1")
    assert {case.node for case in pair.house.ledger.held()} == {"n1", "n3"}
    pair.slurm.fails = None
    pair.cycle()
    assert pair.drained == {"n1", "n3"}


def test_one_that_never_says_it_leaves_a_drain_that_is_gone_to_people_in_the_end() -> None:
    pair = Pair()
    pair.slurm.fails = SlurmUnavailable("Socket timed out", "hung")
    pair.slurm.set("n3", state="resume")
    pair.cycle(60)  # a quarter of an hour; forgotten_seconds is ten minutes
    assert pair.drained == {"n1"}
    assert "returned" in pair.said("n3")


def test_an_adapter_that_cannot_tell_takes_it_for_a_persons_word_at_once() -> None:
    pair = Pair()
    pair.slurm.fails = SlurmUnavailable("slurmrestd does not tell it", "missing")
    pair.slurm.set("n3", state="resume")
    pair.cycle()
    assert pair.drained == {"n1"}
    assert pair.house.ledger.find(_id(pair.house, "n3")).state is State.RETURNED


def _id(house: House, node: str) -> str:
    return next(one.subject for one in house.ledger.audit(node=node) if one.subject)


def test_within_the_cap_what_was_forgotten_takes_nobodys_place() -> None:
    pair = Pair()
    pair.slurm.taken_over(pair.backup_ns, "n1", "n3")
    pair.house.facts = [lost("n4", onset_ns=pair.clock.now_ns())]
    limits = pair.house.limits.model_copy(update={"drained_nodes_max": 2})
    pair.house.limits = limits
    pair.cycle()
    assert len(pair.house.ledger.held()) == 2
    assert pair.drained == {"n1", "n3"}


def test_a_slurmctld_whose_clock_is_ahead_of_ours_overrules_no_person() -> None:
    pair = Pair()
    # Restarted, and its clock says that this is in five minutes.
    pair.slurm.taken_over(pair.clock.now_ns() + 300 * 10**9)
    pair.house.drains.not_read()
    pair.cycle()
    pair.slurm.set("n3", state="resume")
    pair.cycle()
    assert pair.drained == {"n1"}
    assert "forgotten" not in pair.said("n3")
