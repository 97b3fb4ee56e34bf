"""What the head knows of Slurm while Slurm changes, is read anew, and goes away."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from collectors.sample import Problem
from collectors.slurm.nodes import Nodes, NodeState
from daemon.demo.source import SimulatedReader, simulated_source
from daemon.slurm.simulated import SimulatedSlurm
from daemon.slurm_desk import SlurmDesk
from tests.daemon.worlds import Clock, cluster


class SlowReader(SimulatedReader):
    """slurmctld answers with what was so when it was asked; meanwhile ``during`` happens."""

    def __init__(self, slurm: SimulatedSlurm) -> None:
        super().__init__(slurm)
        self.during = lambda: None

    def nodes(
        self, names: Iterable[str] | None = None, deadline_seconds: float = 10.0
    ) -> tuple[Nodes, list[Problem]]:
        found = super().nodes(names, deadline_seconds)
        self.during()
        return found


class Desk:
    """A desk over a Slurm in memory, with a clock that is moved by hand."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.slurm = SimulatedSlurm(cluster(3).values(), self.clock.now_ns)
        source = simulated_source(self.slurm, 30.0, folder)
        source.reader = self.reader = SlowReader(self.slurm)
        groups = {"rack": {"r1": "n[1-2]"}}
        self.desk = SlurmDesk(source, self.slurm, groups, self.clock.monotonic)

    def read(self) -> bool:
        self.clock.pass_seconds(1)
        up = self.desk.read(self.clock.now_ns()).up
        self.desk.show(self.desk.source.latest)
        return up

    def drained(self) -> set[str]:
        return {name for name, node in self.desk.nodes.items() if node.drain}


@pytest.fixture
def made(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_nothing_is_known_before_the_first_reading(made: Desk) -> None:
    assert made.desk.nodes == {}
    assert made.desk.age_seconds == float("inf")
    assert made.desk.fault


def test_a_reading_is_as_old_as_it_is(made: Desk) -> None:
    assert made.read()
    made.clock.pass_seconds(42)
    assert made.desk.age_seconds == 42.0
    assert made.desk.fault == ""
    assert made.desk.expected_gpus() == {"n1": 8, "n2": 8, "n3": 8}


def test_a_reading_is_judged_by_only_when_it_is_shown(made: Desk) -> None:
    """Between the two the ledger is held against it: who came back in it is not known before."""
    made.slurm.set("n2", state="drain", reason="ann: PSU")
    made.read()
    made.slurm.set("n2", state="resume")
    made.clock.pass_seconds(60)
    assert made.desk.read(made.clock.now_ns()).up
    assert made.drained() == {"n2"}
    assert made.desk.age_seconds == 60.0
    made.clock.pass_seconds(5)
    made.desk.show(made.desk.source.latest)
    assert made.drained() == set()
    assert made.desk.age_seconds == 5.0, "since it was read, not since it is shown"
    made.desk.show(made.desk.source.latest)
    assert made.desk.age_seconds == 5.0


def test_a_reading_that_nobody_looked_through_is_not_shown(made: Desk) -> None:
    """A cycle that ended late puts its own in the place of the one that was looked through."""
    made.slurm.set("n2", state="drain", reason="ann: PSU")
    made.read()
    made.slurm.set("n2", state="resume")
    made.desk.read(made.clock.now_ns())
    looked_through = made.desk.source.latest
    made.desk.read(made.clock.now_ns())
    made.desk.show(looked_through)
    assert made.drained() == {"n2"}
    made.desk.show(made.desk.source.latest)
    assert made.drained() == set()


def test_a_slurm_that_is_away_leaves_the_last_reading_and_its_age(made: Desk) -> None:
    made.read()
    made.slurm.away = "Connection refused"
    made.clock.pass_seconds(600)
    assert not made.read()
    assert set(made.desk.nodes) == {"n1", "n2", "n3"}
    assert made.desk.age_seconds > 600
    assert "Connection refused" in made.desk.fault
    made.desk.read_again(["n1"])  # nor does a second look raise
    made.slurm.away = ""
    assert made.read()
    assert made.desk.age_seconds < 2


def test_a_reading_that_began_before_a_second_look_does_not_undo_it(made: Desk) -> None:
    made.read()

    def drained_meanwhile() -> None:
        made.clock.pass_seconds(0.5)
        made.slurm.set("n2", state="drain", reason="tocsin:x79")
        made.desk.read_again(["n2"])

    made.reader.during = drained_meanwhile
    made.read()
    assert made.desk.nodes["n2"].drain, "the old answer knew of no drain"
    made.reader.during = lambda: None
    made.slurm.set("n2", state="undrain")
    made.read()
    assert not made.desk.nodes["n2"].drain, "a later reading is believed again"


def test_a_node_that_left_slurm_is_forgotten(made: Desk, tmp_path: Path) -> None:
    made.read()
    made.desk.read_again(["n3"])
    left = SimulatedSlurm([NodeState("n1", base="idle")], made.clock.now_ns)
    made.desk.source.reader = SlowReader(left)
    made.read()
    assert set(made.desk.nodes) == {"n1"}


def test_groups_are_joined_from_all_who_know_them(made: Desk) -> None:
    made.slurm.put(NodeState("n3", base="idle", features=("rack9",)))
    made.read()
    groups = made.desk.groups({"n1": ("leaf sw7",)})
    assert set(groups["n1"]) == {"rack r1", "leaf sw7"}
    assert groups["n2"] == ("rack r1",)
    assert groups["n3"] == ("rack rack9",)


def test_what_is_read_anew_while_a_reading_is_taken_in_stays(made: Desk) -> None:
    """The hand's thread writes, and the reader's thread reads: neither undoes the other."""
    desk, slurm = made.desk, made.slurm
    assert made.read()
    hand: list[threading.Thread] = []

    class Meanwhile(dict[str, tuple[float, NodeState]]):
        """While the reading looks what is newer than itself, a drain is read back."""

        def items(self) -> Any:
            found = super().items()
            if not hand:
                slurm.set("n1", state="drain", reason="tocsin: just now")
                hand.append(threading.Thread(target=desk.saw, args=(slurm.nodes(["n1"]),)))
                hand[0].start()
                hand[0].join(0.3)  # it ends at once where nothing holds it up
            return found

    desk._again = Meanwhile()
    assert made.read()
    hand[0].join()
    assert desk.nodes["n1"].drain
