"""Random interleavings on the real testbed: tocsin, a person, a node's own health script.

The many orders are tried in memory (tests/daemon/test_drains_stateful.py); here a few hundred
steps meet the real slurmctld, its real reasons and its real log.
"""

from __future__ import annotations

import contextlib
import random
import time

import pytest

from collectors.slurm import Options
from daemon.drains import RefusedError
from daemon.limits import Limits
from daemon.slurm.cli import CliAdapter
from tests.daemon.worlds import House, lost
from tests.testbed.slurm.cluster import Cluster

pytestmark = pytest.mark.slurm
LIMITS = Limits(
    drains_per_hour=1000, drained_nodes_max=3, drained_share_max=1.0, partition_share_max=1.0,
    breaker_drains=10_000,
)  # fmt: skip
STEPS = 120


class Play:
    """One random course of events; ``theirs`` is what people have said of each node."""

    def __init__(self, slurm: Cluster, seed: int) -> None:
        self.slurm = slurm
        self.rng = random.Random(seed)
        self.theirs: dict[str, str] = {}
        self.pending: list[tuple[str, str]] = []
        self.made = self.head(None)

    def head(self, old: House | None) -> House:
        new = House(
            CliAdapter(Options(), window=self.window),
            database=old.database if old else None,
            limits=LIMITS,
            now_ns=time.time_ns,
        )
        new.facts = old.facts if old else []
        return new

    def window(self) -> None:
        while self.pending:
            self.drain(*self.pending.pop())

    def drain(self, node: str, word: str) -> None:
        self.slurm.drain(node, word)
        self.theirs[node] = word

    def step(self, number: int) -> str:
        """Something happens; answers what."""
        node = self.rng.choice(self.slurm.nodes)
        what = self.rng.choice(
            [
                "fact",
                "cycle",
                "cycle",
                "person",
                "nhc",
                "at_once",
                "relabel",
                "lift",
                "ours",
                "kill",
            ]
        )
        getattr(self, what)(node, number)
        return f"step {number}: {what} {node}"

    def fact(self, node: str, number: int) -> None:
        self.made.facts.append(lost(node, number % 8, time.time_ns()))

    def cycle(self, node: str, number: int) -> None:
        self.made.cycle()

    def person(self, node: str, number: int) -> None:
        self.drain(node, f"ann: I look at it {number}")

    def nhc(self, node: str, number: int) -> None:
        self.drain(node, f"NHC: check_hw_ib failed {number}")

    def at_once(self, node: str, number: int) -> None:
        self.pending.append((node, f"ann: at the same moment {number}"))
        self.fact(node, number)

    def relabel(self, node: str, number: int) -> None:
        if "DRAIN" in self.slurm.words(node):
            self.theirs[node] = f"ann: mine {number}"
            self.slurm.update(node, reason=self.theirs[node])

    def lift(self, node: str, number: int) -> None:
        if "DRAIN" in self.slurm.words(node):
            self.slurm.update(node, state="undrain")
            self.theirs.pop(node, None)

    def ours(self, node: str, number: int) -> None:
        with contextlib.suppress(RefusedError):
            self.made.drains.resume(node, "bob", time.time_ns())

    def kill(self, node: str, number: int) -> None:
        self.made = self.head(self.made)


@pytest.mark.parametrize("seed", [1, 2])
def test_whoever_comes_when_a_persons_word_stands(slurm: Cluster, seed: int) -> None:
    play = Play(slurm, seed)
    for number in range(STEPS):
        what = play.step(number)
        shown = slurm.show()
        for name, word in play.theirs.items():
            assert shown[name][1] == word, what
            assert "DRAIN" in shown[name][0], what
        assert len(play.made.ledger.held()) <= LIMITS.drained_nodes_max
    play.pending.clear()
    play.made.cycle()
    play.made.cycle()
    held = {case.node: case.reason for case in play.made.ledger.held()}
    shown = slurm.show()
    assert held == {n: reason for n, (_, reason) in shown.items() if reason.startswith("tocsin:")}
    for case in play.made.ledger.held():
        assert play.made.ledger.decisions(case=case.id), case
