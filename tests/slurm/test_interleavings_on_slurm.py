"""Random interleavings on the real testbed, against a model of the rules.

tocsin, a person, a node's own health script, dying and rebooting nodes, and a slurmctld that
crashes take turns. The model knows nothing but the words that people said: whatever else bears
tocsin's mark is tocsin's. The rules that hold after each of tocsin's turns: a drain with a
person's word stands unchanged, even one set between tocsin's look and its write; no new drain
past the budget; no second drain where one stands; every drain of ours has its case and its
decision. At the end the ledger and Slurm agree. One ledger goes through all courses, for a
slurmctld that crashes may go back to before a course began.

Few courses run each time; ``TOCSIN_INTERLEAVINGS=200`` runs as many (some 40 minutes).
The same in memory, with kills inside a write: tests/daemon/drains/test_drains_stateful.py.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from collectors.slurm.source import Options
from daemon.drains.drains import RefusedError
from daemon.policy.cases import State
from daemon.policy.limits import Limits
from daemon.slurm.adapter import SlurmUnavailable
from daemon.slurm.cli import CliAdapter
from daemon.store.database import Database
from tests.daemon.worlds import House, lost
from tests.testbed.slurm.cluster import Cluster, wait_for

COURSES = int(os.environ.get("TOCSIN_INTERLEAVINGS", "2"))
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120 + 60 * COURSES)]
STEPS = 20
CAP = 2
LIMITS = Limits(
    drains_per_hour=1000, drained_nodes_max=CAP, drained_share_max=1.0, partition_share_max=1.0,
    breaker_drains=10_000, flap_drains=1000,
)  # fmt: skip
NODES = st.sampled_from(["n1", "n2", "n3", "n4"])
WHICH = st.integers(0, 3)
MARK = "tocsin:"


class Course(RuleBasedStateMachine):
    """One random course of events."""

    slurm: ClassVar[Cluster]
    database: ClassVar[Database]
    said: ClassVar[set[str]]  # every word of people and health scripts
    played: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.slurm.reset()
        self.said.add("reset")
        self.pending: list[tuple[str, str]] = []
        self.came_between: dict[str, str] = {}
        self.dead: set[str] = set()
        self.steps: list[str] = []
        self.house = self._head(None)
        self._step("course")
        self._turn()

    def _head(self, old: House | None) -> House:
        new = House(
            CliAdapter(Options(), window=self._window),
            database=self.database,
            limits=LIMITS,
            now_ns=time.time_ns,
        )
        new.facts = old.facts if old else []
        return new

    def _step(self, what: str) -> int:
        self.steps.append(what)
        if what == "course":
            print("course", self.played["course"] + 1, dict(self.played), flush=True)
        self.played[what.split()[0]] += 1
        return int(self.played.total())

    def _window(self) -> None:
        while self.pending:
            node, word = self.pending.pop()
            self._drain(node, word)
            self.came_between[node] = word

    def _drain(self, node: str, word: str) -> None:
        self.said.add(word)
        self.slurm.drain(node, word)

    def _ours(self, reason: str) -> bool:
        return reason.startswith(MARK) and reason not in self.said

    # ---- tocsin ----------------------------------------------------------------------------

    @rule()
    def cycle(self) -> None:
        self._step("cycle")
        self._turn()

    @rule(nodes=st.sets(NODES, min_size=1))
    def faults(self, nodes: set[str]) -> None:
        number = self._step(f"fault {' '.join(sorted(nodes))}")
        self.house.facts.extend(lost(node, number % 8, time.time_ns()) for node in sorted(nodes))
        self._turn()

    @rule(node=NODES)
    def fault_as_a_person_speaks(self, node: str) -> None:
        number = self._step(f"at_once {node}")
        self.pending.append((node, f"ann: at the same moment {number}"))
        self.house.facts.append(lost(node, number % 8, time.time_ns()))
        self._turn()

    @rule()
    def head_restarts(self) -> None:
        self._step("head")
        self.house = self._head(self.house)
        self._turn()

    @rule(which=WHICH)
    def person_wants_it_back(self, which: int) -> None:
        node = self._drained(which)
        self._step(f"resume {node}")
        before = self.slurm.show()[node]
        with contextlib.suppress(RefusedError):
            self.house.drains.resume(node, "bob", time.time_ns())
        words, reason = before
        if reason in self.said:
            shown = self.slurm.show()[node]
            assert shown[1] == reason, (node, shown, self.steps)
            assert ("DRAIN" in shown[0]) == ("DRAIN" in words), (node, shown, self.steps)

    # ---- people and scripts ----------------------------------------------------------------

    @rule(node=NODES)
    def person(self, node: str) -> None:
        self._drain(node, f"ann: I look at it {self._step(f'person {node}')}")

    @rule(node=NODES)
    def person_who_writes_like_tocsin(self, node: str) -> None:
        self._drain(node, f"{MARK}x79 by hand {self._step(f'alike {node}')}")

    @rule(node=NODES)
    def health_script(self, node: str) -> None:
        self._drain(node, f"NHC: check_hw_ib failed {self._step(f'nhc {node}')}")

    @rule(which=WHICH, alike=st.booleans())
    def person_relabels(self, which: int, alike: bool) -> None:
        node = self._drained(which)
        number = self._step(f"relabel {node}")
        self.said.add(word := f"{MARK}x79 mine {number}" if alike else f"ann: mine {number}")
        self.slurm.run("scontrol", "update", f"nodename={node}", f"reason={word}", check=False)

    @rule(which=WHICH)
    def person_lifts(self, which: int) -> None:
        node = self._drained(which)
        self._step(f"lift {node}")
        # A slurmctld that has just come back refuses it until the node has registered.
        self.slurm.run("scontrol", "update", f"nodename={node}", "state=undrain", check=False)

    def _drained(self, which: int) -> str:
        """One of the drained nodes, ours first; any node where none is."""
        shown = self.slurm.show()
        names = [name for name, (words, _) in shown.items() if "DRAIN" in words]
        names.sort(key=lambda name: not self._ours(shown[name][1]))
        return (names or list(self.slurm.nodes))[which % (len(names) or len(self.slurm.nodes))]

    # ---- what fails ------------------------------------------------------------------------

    @rule(node=NODES)
    def node_dies(self, node: str) -> None:
        self._step(f"dies {node}")
        if node not in self.dead:
            self.slurm.node("kill-node", node)
            self.dead.add(node)

    @rule(node=NODES)
    def node_is_started(self, node: str) -> None:
        self._step(f"starts {node}")
        self._start(node)

    @rule(node=NODES)
    def node_reboots(self, node: str) -> None:
        self._step(f"reboots {node}")
        if node not in self.dead:
            self.slurm.node("stop-node", node)
        self.slurm.node("start-node", node, "-b")
        self.dead.discard(node)

    @rule(looked_at=st.sampled_from([False, False, False, True]))
    def controller_crashes(self, looked_at: bool) -> None:
        self._step("crash")
        self.slurm.kill_controller()
        if looked_at:
            self._step("away")
            with pytest.raises(SlurmUnavailable):
                self.house.cycle()
        self.slurm.start_controller()

    @rule()
    def controller_restarts(self) -> None:
        self._step("restart")
        self.slurm.stop_controller()
        self.slurm.start_controller()

    def _start(self, node: str) -> None:
        if node in self.dead:
            self.slurm.node("start-node", node)
            self.dead.discard(node)

    # ---- the rules -------------------------------------------------------------------------

    def _turn(self) -> None:
        """tocsin's turn, and what must be true of it."""
        before = self.slurm.show()
        theirs = {
            name: reason
            for name, (words, reason) in before.items()
            if reason in self.said and "DRAIN" in words
        }
        self.came_between = {}
        log_bytes = self.slurm.log_size()
        self.house.cycle()
        self.pending.clear()
        after = self.slurm.show()
        for name, word in {**theirs, **self.came_between}.items():
            assert after[name][1] == word, (name, word, after[name], self.steps)
            assert "DRAIN" in after[name][0], (name, word, after[name], self.steps)
        written = [
            line.split("node ", 1)[1].split()[0]
            for line in self.slurm.updates_since(log_bytes)
            if f"reason set to: {MARK}" in line
        ]
        assert len(written) == len(set(written)), (written, self.steps)
        for name in written:
            words, reason = before[name]
            assert not (self._ours(reason) and "DRAIN" in words), (name, self.steps)
        ledger = self.house.ledger
        if written:
            assert len(ledger.held()) <= CAP, self.steps
        for name, (words, reason) in after.items():
            if self._ours(reason) and "DRAIN" in words:
                case = ledger.find(reason.split()[2].rstrip(";"))
                assert (case.node, case.reason) == (name, reason), self.steps
                assert ledger.decisions(case=case.id), (case, self.steps)

    def teardown(self) -> None:
        for node in tuple(self.dead):
            self._start(node)
        wait_for(self._settled, "every node has registered")
        for _ in range(3):
            self._turn()
        ledger = self.house.ledger
        held = {case.node: case.reason for case in ledger.held()}
        shown = {
            name: reason
            for name, (words, reason) in self.slurm.show().items()
            if self._ours(reason) and "DRAIN" in words
        }
        # A crash may bring back words of ours that a person had replaced: they stay a person's.
        for name, reason in shown.items():
            if name not in held:
                case = ledger.find(reason.split()[2].rstrip(";"))
                assert case.state is State.FOREIGN, (case, self.steps)
        assert held == {name: shown[name] for name in shown if name in held}, self.steps

    def _settled(self) -> bool:
        return not any(
            words & {"UNKNOWN", "NOT_RESPONDING", "NO_RESPOND"}
            for words, _ in self.slurm.show().values()
        )


def test_whatever_comes_when_the_rules_hold(slurm: Cluster) -> None:
    Course.slurm = slurm
    Course.database = Database(":memory:")
    Course.said = set()
    Course.played = Counter()
    run_state_machine_as_test(
        Course,
        settings=settings(
            max_examples=COURSES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            # What a real cluster does is not repeated exactly: no search for a smaller course.
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert Course.played["course"] >= COURSES
    print("played:", dict(sorted(Course.played.items())))
