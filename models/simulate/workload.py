"""Jobs over the simulated nodes: a small scheduler and each job's pattern of utilisation.

Jobs go where Slurm would let them: never to a node that is drained or down. A job ends at
its time, or when one of its nodes goes down.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.simulate.scenario import Workload

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Job:
    """One running job: node indices and GPU indices (over the fleet) that it holds."""

    number: int
    user: str
    name: str
    nodes: tuple[int, ...]
    gpus: tuple[int, ...]
    start_ns: int
    end_ns: int


class Jobs:
    """All running jobs, and per GPU (fleet-wide index) the pattern of the job on it."""

    def __init__(self, options: Workload, nodes: int, gpus: int, seed: int) -> None:
        self.options = options
        self.nodes = nodes
        self.gpus = gpus
        self.rng = np.random.default_rng([seed, 3])
        self.running: dict[int, Job] = {}
        self.holder = np.zeros(nodes * gpus, np.int64)  # job number, 0 = free
        self.level = np.zeros(nodes * gpus)  # mean utilisation ratio
        self.swing = np.zeros(nodes * gpus)  # amplitude of the wave
        self.square = np.zeros(nodes * gpus, bool)  # bursts rather than a wave
        self.period_seconds = np.full(nodes * gpus, 600.0)
        self.phase = np.zeros(nodes * gpus)
        self.memory_ratio = np.zeros(nodes * gpus)
        self.started_ns = np.zeros(nodes * gpus, np.int64)
        self.next_number = 1000
        self.next_end_ns = 0
        self.failed: list[Job] = []  # jobs lost with a node since last asked

    def step(self, now_ns: int, closed: NDArray[np.bool_], down: NDArray[np.bool_]) -> None:
        """Ends and starts jobs. ``closed`` [nodes]: takes no new job; ``down`` [nodes]."""
        self._end(now_ns, down)
        self._start(now_ns, closed | down)

    def utilization(self, now_ns: int) -> NDArray[np.float64]:
        """Utilisation ratio per GPU, before noise and throttling."""
        angle = 2 * math.pi * (now_ns / 1e9 % 86400.0 / self.period_seconds) + self.phase
        wave = np.sin(angle)
        wave = np.where(self.square, np.where(wave > -0.3, 1.0, -1.0), wave)
        value = np.clip(self.level + self.swing * wave, 0.0, 1.0)
        # A job reads its data and compiles before it computes.
        warming = now_ns - self.started_ns < 120 * SECOND_NS
        return np.where(self.holder > 0, np.where(warming, 0.1 * value, value), 0.0)

    def kill(self, nodes: Collection[int]) -> list[Job]:
        """Ends every job on ``nodes`` and returns them."""
        wanted = set(nodes)
        lost = [job for job in self.running.values() if wanted.intersection(job.nodes)]
        for job in lost:
            self._free(job)
        return lost

    def _end(self, now_ns: int, down: NDArray[np.bool_]) -> None:
        held_down = self.holder.reshape(self.nodes, self.gpus)[down]
        if held_down.any():
            self.failed += self.kill(np.flatnonzero(down).tolist())
        if now_ns < self.next_end_ns:
            return
        for job in [job for job in self.running.values() if job.end_ns <= now_ns]:
            self._free(job)
        ends = [job.end_ns for job in self.running.values()]
        self.next_end_ns = min(ends, default=0)

    def _free(self, job: Job) -> None:
        held = list(job.gpus)
        self.holder[held] = 0
        self.memory_ratio[held] = 0.0
        del self.running[job.number]

    def _start(self, now_ns: int, closed: NDArray[np.bool_]) -> None:
        free = self.holder.reshape(self.nodes, self.gpus) == 0
        free[closed] = False
        wanted = self.options.occupancy.value * self.gpus * float((~closed).sum())
        open_busy = int((self.holder.reshape(self.nodes, self.gpus)[~closed] > 0).sum())
        free_count = free.sum(axis=1)
        for _ in range(4 * self.nodes * self.gpus):
            if open_busy >= wanted or not free_count.any():
                return
            rows = self._choose(free, free_count)
            if rows is None:
                return
            self._place(now_ns, rows)
            flat = free.reshape(-1)
            flat[rows] = False
            np.subtract.at(free_count, np.asarray(rows) // self.gpus, 1)
            open_busy += len(rows)

    def _choose(self, free: NDArray[np.bool_], free_count: NDArray[np.int64]) -> list[int] | None:
        rng = self.rng
        empty = np.flatnonzero(free_count == self.gpus)
        if len(empty) and rng.random() < self.options.whole_node_share.value:
            most = min(len(empty), max(1, self.nodes // 4))
            size = min(most, 2 ** int(rng.geometric(0.45) - 1))
            chosen = rng.choice(empty, size, replace=False)
            return [
                int(node) * self.gpus + gpu for node in np.sort(chosen) for gpu in range(self.gpus)
            ]
        size = int(rng.choice([1, 1, 2, 4]))
        room = np.flatnonzero(free_count >= min(size, self.gpus))
        if not len(room):
            room, size = np.flatnonzero(free_count > 0), 1
        if not len(room):
            return None
        # Pack: a node that is partly used first, as Slurm does.
        node = int(room[np.argmin(free_count[room])])
        return [node * self.gpus + int(gpu) for gpu in np.flatnonzero(free[node])[:size]]

    def _place(self, now_ns: int, rows: list[int]) -> None:
        rng = self.rng
        hours = self.options.duration_median_hours.value * math.exp(
            self.options.duration_log_sigma.value * float(rng.standard_normal())
        )
        number = self.next_number
        self.next_number += 1
        end_ns = now_ns + int(min(max(hours, 0.05), 72.0) * 3600) * SECOND_NS
        nodes = tuple(sorted({row // self.gpus for row in rows}))
        kind = _KINDS[int(rng.choice(len(_KINDS), p=_KIND_SHARES))]
        user = f"user{int(rng.integers(1, 40)):02d}"
        self.running[number] = Job(number, user, kind.name, nodes, tuple(rows), now_ns, end_ns)
        self.next_end_ns = min(self.next_end_ns or end_ns, end_ns)
        self.holder[rows] = number
        self.level[rows] = rng.uniform(*kind.level)
        self.swing[rows] = kind.swing
        self.square[rows] = kind.square
        self.period_seconds[rows] = rng.uniform(*kind.period_seconds)
        self.phase[rows] = rng.uniform(0, 2 * math.pi)
        self.memory_ratio[rows] = rng.uniform(*kind.memory)
        self.started_ns[rows] = now_ns


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    level: tuple[float, float]
    swing: float
    square: bool
    period_seconds: tuple[float, float]
    memory: tuple[float, float]


_KINDS = (
    _Kind("train", (0.90, 0.99), 0.02, False, (60, 400), (0.6, 0.95)),
    _Kind("finetune", (0.60, 0.85), 0.30, True, (300, 1800), (0.5, 0.9)),
    _Kind("serve", (0.25, 0.55), 0.20, False, (3600, 14400), (0.4, 0.9)),
    _Kind("notebook", (0.02, 0.15), 0.10, True, (300, 3600), (0.05, 0.3)),
)
_KIND_SHARES = (0.5, 0.25, 0.15, 0.1)
