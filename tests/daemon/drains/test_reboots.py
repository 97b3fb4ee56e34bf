"""Reboots of nodes that we hold: only where advised, drained and empty; once, and budgeted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from daemon.drains.reboots import Rebooter, RebootOptions
from daemon.policy.cases import State
from daemon.policy.decisions import Mode
from daemon.policy.limits import Limits
from daemon.slurm.adapter import SlurmRefused, SlurmUnavailable
from daemon.slurm.simulated import SimulatedSlurm
from daemon.store.database import Database
from models.voices import Fact
from tests.daemon.worlds import GENEROUS, Clock, House, idle, lost


class Asks:
    """``RebootTools``: what was asked, and what becomes of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []
        self.cancelled: list[str] = []
        self.fails: Exception | None = None
        self.then: Callable[[], None] = lambda: None

    def reboot(self, node: str, resume: bool) -> None:
        if self.fails is not None:
            raise self.fails
        self.asked.append((node, resume))
        self.then()

    def cancel(self, node: str) -> None:
        self.cancelled.append(node)


class World:
    """A house whose drained nodes may be rebooted. ``cycle`` as the head does."""

    def __init__(
        self, mode: Mode = Mode.ACT, database: Database | None = None,
        slurm: SimulatedSlurm | None = None, tools: Asks | None = None, **reboot: object,
    ) -> None:  # fmt: skip
        options = {"when": "advised", **reboot}
        limits = Limits.model_validate({**GENEROUS.model_dump(), "reboot": options})
        nodes = [idle(f"n{i}") for i in range(1, 5)]
        self.slurm = slurm or SimulatedSlurm(nodes, Clock().now_ns)
        self.house = House(self.slurm, mode=mode, limits=limits, database=database)
        self.tools = tools or Asks()
        self.locked: set[str] = set()
        self.rebooter = Rebooter(
            self.tools, self.slurm, self.house.ledger, limits.reboot, mode,
            lambda node: node in self.locked,
        )  # fmt: skip

    def faulty(self, *nodes: str, make: Callable[[str], Fact] = lost) -> None:
        self.house.facts = [
            replace(make(name), onset_ns=self.house.clock.pass_seconds(1)) for name in nodes
        ]

    def cycle(self, times: int = 1) -> None:
        for _ in range(times):
            self.house.cycle()
            self.rebooter.step(self.house.clock.pass_seconds(15))

    def boot(self, name: str) -> None:
        now_ns = self.house.clock.pass_seconds(60)
        reason = self.slurm.nodes([name])[name].reason + " : reboot issued"
        self.slurm.change(name, lambda node: replace(node, boot_time_ns=now_ns, reason=reason))

    def verbs(self, node: str = "n1") -> list[str]:
        return [one.verb for one in self.house.ledger.audit(node=node)][::-1]

    def nodes(self) -> list[str]:
        return [name for name, _ in self.tools.asked]


def test_a_node_that_lost_a_gpu_is_rebooted_once_and_stays_drained_and_ours() -> None:
    world = World()
    world.faulty("n1")
    world.cycle(4)
    assert world.tools.asked == [("n1", False)]
    world.boot("n1")
    world.house.facts = []
    world.cycle(3)
    assert world.tools.asked == [("n1", False)]
    assert world.verbs() == ["intend", "drained", "reboot", "reboot_done"]
    case = world.house.ledger.case_of("n1")
    assert case is not None
    assert case.state is State.DRAINED
    assert world.slurm.nodes()["n1"].drain


def test_off_by_default_and_never_in_shadow_or_approve() -> None:
    assert RebootOptions().when == "never"
    for world in (World(when="never"), World(mode=Mode.SHADOW), World(mode=Mode.APPROVE)):
        world.faulty("n1")
        world.cycle(3)
        assert world.tools.asked == []


def test_a_step_that_is_no_reboot_is_left_to_people() -> None:
    world = World()
    world.faulty("n1", make=lambda name: replace(lost(name), code="x48"))  # reset
    world.cycle(3)
    assert world.slurm.nodes()["n1"].drain
    assert world.tools.asked == []


def test_a_node_with_a_job_waits_for_its_end() -> None:
    world = World()
    world.slurm.put(idle("n1", base="mixed", jobs=("7",)))
    world.faulty("n1")
    world.cycle(3)
    assert world.tools.asked == []
    world.slurm.change("n1", lambda node: replace(node, base="idle", jobs=()))
    world.cycle(2)
    assert world.nodes() == ["n1"]


def test_nodes_of_others_and_nodes_that_changed_hands_are_never_rebooted() -> None:
    world = World()
    world.slurm.set("n1", state="drain", reason="ops: PSU")
    world.faulty("n1", "n2")
    world.house.cycle()
    world.slurm.set("n2", reason="ann: I look at it")
    world.rebooter.step(world.house.clock.pass_seconds(15))
    world.cycle(2)
    assert world.tools.asked == []


@pytest.mark.parametrize("flag", ["MAINTENANCE", "REBOOT_REQUESTED", "NOT_RESPONDING"])
def test_a_node_that_is_being_looked_after_is_left_alone(flag: str) -> None:
    world = World()
    world.faulty("n1")
    world.house.cycle()
    world.slurm.change("n1", lambda node: replace(node, flags=node.flags | {flag}))
    world.cycle(2)
    assert world.tools.asked == []


def test_a_locked_node_and_one_that_somebody_rebooted_wait() -> None:
    world = World()
    world.locked = {"n1"}
    world.faulty("n1", "n2")
    world.house.cycle()
    world.boot("n2")
    world.cycle(2)
    assert world.tools.asked == []


def test_the_budget_holds_at_once_and_a_day() -> None:
    world = World(per_day=3, at_once=2)
    world.faulty("n1", "n2", "n3", "n4")
    world.cycle(3)
    assert world.nodes() == ["n1", "n2"]
    world.boot("n1")
    world.cycle(2)
    assert world.nodes() == ["n1", "n2", "n3"]
    world.boot("n2")
    world.boot("n3")
    world.cycle(2)
    assert len(world.nodes()) == 3
    world.house.clock.pass_seconds(86_400)
    world.cycle(2)
    assert world.nodes() == ["n1", "n2", "n3", "n4"]


def test_a_refusal_is_told_and_not_asked_again() -> None:
    world = World()
    world.tools.fails = SlurmRefused("Node reboot program not configured", "refused")
    world.faulty("n1")
    world.cycle(3)
    assert world.verbs()[2:] == ["reboot", "reboot_refused"]


def test_a_request_without_an_answer_is_never_made_twice() -> None:
    world = World()
    world.tools.fails = SlurmUnavailable("slurmctld does not answer", "hung")
    world.faulty("n1")
    world.cycle()
    world.tools.fails = None
    world.cycle(3)
    assert world.tools.asked == []
    assert "unknown_outcome" in world.verbs()


def test_what_was_certainly_not_sent_is_asked_again() -> None:
    world = World()
    world.tools.fails = SlurmUnavailable("another head holds the lease", "standby", not_sent=True)
    world.faulty("n1")
    world.cycle()
    world.tools.fails = None
    world.cycle()
    assert world.nodes() == ["n1"]


def test_a_node_that_does_not_come_back_is_told_of_and_holds_up_no_other() -> None:
    world = World(back_seconds=60.0)
    world.faulty("n1", "n2")
    world.cycle()
    world.slurm.change("n1", lambda node: replace(node, base="down"))
    world.house.clock.pass_seconds(60)
    world.cycle(2)
    assert world.nodes() == ["n1", "n2"]
    assert "not back after 60 s" in world.house.ledger.audit(node="n1")[0].text


def test_a_kill_after_the_request_asks_for_no_second_one() -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    world = World()
    world.tools.then = kill
    world.faulty("n1")
    with pytest.raises(Killed):
        world.cycle()
    later = World(database=world.house.database, slurm=world.slurm)
    later.house.clock.pass_seconds(600)
    later.house.facts = world.house.facts
    later.cycle(3)
    assert later.tools.asked == []
    later.boot("n1")
    later.cycle()
    assert later.verbs()[-1] == "reboot_done"


def test_into_service_after_the_boot_only_where_the_site_says_so() -> None:
    world = World(after="resume")
    world.faulty("n1")
    world.cycle()
    assert world.tools.asked == [("n1", True)]


@pytest.mark.parametrize("taken", [True, False])
def test_a_node_that_a_person_took_in_the_moment_of_our_word_is_not_rebooted_later(
    taken: bool,
) -> None:
    world = World()

    def a_person_resumes_it_and_a_job_starts() -> None:
        if taken:
            world.slurm.set("n1", user="ann", state="resume")
        # Slurm reboots it when it is empty: until then the reboot waits.
        asked = frozenset({"REBOOT_REQUESTED"})
        world.slurm.change(
            "n1",
            lambda node: replace(
                node, base="mixed" if taken else "idle", jobs=("7",) if taken else (),
                flags=node.flags | asked,
            ),
        )  # fmt: skip

    world.tools.then = a_person_resumes_it_and_a_job_starts
    world.faulty("n1")
    world.cycle()
    assert world.tools.asked == [("n1", False)]
    assert world.tools.cancelled == (["n1"] if taken else [])
    told = [one.text for one in world.house.ledger.audit(node="n1") if one.verb != "reboot"]
    assert any("it was taken meanwhile; taken back" in one for one in told) == taken


def test_a_node_that_a_person_took_when_its_reboot_had_begun_is_told_to_its_owner() -> None:
    world = World()

    def a_person_relabels_it() -> None:
        world.slurm.set("n1", user="ann", reason="ann: I look at it")
        world.slurm.change(
            "n1", lambda node: replace(node, flags=node.flags | {"REBOOT_ISSUED"})
        )  # fmt: skip

    world.tools.then = a_person_relabels_it
    world.faulty("n1")
    world.cycle()
    assert world.tools.cancelled == []
    told = [one.text for one in world.house.ledger.audit(node="n1")]
    assert any("'ann: I look at it'" in one and "tell its owner" in one for one in told)
    world.cycle(3)
    assert world.tools.asked == [("n1", False)]
