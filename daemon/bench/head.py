"""``tocsin bench head``: the whole head at the pace of a fleet, CPU by part, and its memory.

A second process sends what agents would: for each node and period one gzipped body with 8 GPUs,
the host and two ``source`` readings. First as fast as they are taken; then at a fleet's own pace,
each node at its own moment, for some cycles of all that the head does of itself (judgements,
scores, the shadow model, checkpoints, the roll into Parquet, points of the fleet).
What is measured then is the processor time of the head's process, all of it, by thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from collectors.slurm.nodes import NodeState
from daemon.assemble import calm_collector
from daemon.bench.figures import Figure, percentile, resident_mebibytes
from daemon.bench.load import NAMES
from daemon.bench.senders import PERIOD_SECONDS, TOKEN, Paced, Senders
from daemon.clock import SystemClock
from daemon.config import Config, SlurmSection
from daemon.demo.source import simulated_source
from daemon.gate.gateway import Gateway, routes
from daemon.gate.tokens import parse_tokens
from daemon.head import Head
from daemon.loop import run_head
from daemon.slurm.simulated import SimulatedSlurm

_OTHERS = "other threads"
# 120 s: in so long everything that the head does of itself comes round.
PERIODS_A_CYCLE = 4


@dataclass(slots=True)
class _Outcome:
    answers: list[float] = field(default_factory=list)
    wall_seconds: float = 0.0
    rushed_cpu_seconds: float = 0.0
    cpu: Counter[str] = field(default_factory=Counter)
    paced: Paced = field(default_factory=lambda: Paced(0.0, 0, []))
    judge_seconds: list[float] = field(default_factory=list)
    checkpoint_seconds: list[float] = field(default_factory=list)
    samples: int = 0
    resident_mebibytes: float = 0.0


def bench_head(
    directory: Path, nodes: int = 1000, steps: int = 2, periods: int | None = None
) -> Iterator[Figure]:
    """``steps`` readings at full speed after a first one that makes everything known, then
    ``periods`` at pace (else a cycle of everything for each step)."""
    periods = steps * PERIODS_A_CYCLE if periods is None else periods
    outcome = run_head(_serve(directory, nodes, steps, periods))
    values = steps * nodes * 8 * len(NAMES)
    yield Figure("head: samples taken", outcome.samples, "samples")
    yield Figure("head: as fast as it takes", values / outcome.wall_seconds, "values/s")
    yield Figure("head: answer at full speed, p99", percentile(outcome.answers, 0.99) * 1e3, "ms")
    rushed = outcome.rushed_cpu_seconds * 100 / (steps * PERIOD_SECONDS)
    yield Figure("head: the same work, spread over its periods", rushed, "% of a core")
    paced = outcome.paced
    share = 100 / paced.wall_seconds
    for part, seconds in sorted(outcome.cpu.items(), key=lambda one: -one[1]):
        yield Figure(f"head: {part}", seconds * share, "% of a core")
    yield Figure(
        f"head: {nodes} nodes every {PERIOD_SECONDS:g} s, all that it does",
        sum(outcome.cpu.values()) * share,
        "% of a core",
        "50 for 10,000 nodes",
    )
    for place, name in ((0.5, "p50"), (0.99, "p99")):
        waited = percentile(paced.answer_seconds, place)
        yield Figure(f"head: answer at pace, {name}", waited * 1e3, "ms")
    yield Figure("head: pushed back at pace", paced.pushed_back, "requests")
    yield Figure("head: one judgement, p50", percentile(outcome.judge_seconds, 0.5), "s")
    yield Figure("head: one judgement, longest", max(outcome.judge_seconds, default=0.0), "s")
    yield Figure("head: one checkpoint, longest", max(outcome.checkpoint_seconds, default=0.0), "s")
    yield Figure("head: resident memory", outcome.resident_mebibytes, "MiB", "2048")


def _head(directory: Path, nodes: int) -> Head:
    config = Config.model_validate(
        {
            "head": {
                "state_dir": directory,
                "socket": directory / "socket",
            },
            "store": {"directory": directory / "store", "reserve_bytes": 0},
            "gateway": {"lines_per_second_limit": 1e9, "burst_lines_limit": 10_000_000},
        }
    )
    names = [f"gpu{number:05d}" for number in range(nodes)]
    states = [NodeState(name, base="mixed", gpus_configured=8) for name in names]
    slurm = SimulatedSlurm(states, time.time_ns)
    source = simulated_source(slurm, SlurmSection().period_seconds, directory / "slurm")
    return Head(config, clock=SystemClock(), adapter=slurm, slurm=source)


async def _serve(directory: Path, nodes: int, steps: int, periods: int) -> _Outcome:
    calm_collector()
    head = _head(directory, nodes)
    outcome = _Outcome()
    head.judge = _timed(head.judge, outcome.judge_seconds)  # type: ignore[method-assign]
    head.checkpoint = _timed(head.checkpoint, outcome.checkpoint_seconds)  # type: ignore[method-assign]
    await head.start()
    app = web.Application()
    gateway = Gateway(
        head.intake.accept,
        parse_tokens(f"* {TOKEN}"),
        head.clock,
        head.config.gateway,
        marks=head.store,
    )
    head.gateway = gateway
    app.add_routes(routes(gateway))
    runner = web.AppRunner(app, auto_decompress=False, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    senders = Senders(runner.addresses[0][1], nodes, steps + 1, whole=True)
    try:
        await senders.ready()
        await senders.send(1)
        await _watched(head)
        before, wall = _cpu_by_part(), time.perf_counter()
        outcome.answers = await senders.send(steps)
        await _watched(head)
        outcome.wall_seconds = time.perf_counter() - wall
        outcome.rushed_cpu_seconds = sum(_less(_cpu_by_part(), before).values())
        await senders.prepare(periods)
        outcome.judge_seconds.clear()
        outcome.checkpoint_seconds.clear()
        before = _cpu_by_part()
        outcome.paced = await senders.pace()
        outcome.cpu = _less(_cpu_by_part(), before)
        outcome.samples = gateway.counts.samples
        outcome.resident_mebibytes = resident_mebibytes()
    finally:
        senders.close()
        await runner.cleanup()
        await head.stop()
    return outcome


def _timed(
    work: Callable[[], Awaitable[None]], seconds: list[float]
) -> Callable[[], Coroutine[Any, Any, None]]:
    """``work``, with how long each of it took kept in ``seconds``."""

    async def timed() -> None:
        begin = time.perf_counter()
        await work()
        seconds.append(time.perf_counter() - begin)

    return timed


async def _watched(head: Head) -> None:
    """Returns when the watch has taken in all that was sent."""
    await head.intake.in_turn(head.watch.features.flush)


def _cpu_by_part() -> Counter[str]:
    """Processor seconds of each kind of thread so far."""
    whole = time.process_time()
    found: Counter[str] = Counter()
    for thread in threading.enumerate():
        if thread.ident is None:
            continue
        with contextlib.suppress(OSError):
            seconds = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            part = _PARTS.get(thread.name.partition("_")[0], _OTHERS)
            found[part] += seconds  # type: ignore[assignment]
    # Threads of libraries and those that have ended.
    found[_OTHERS] += max(0.0, whole - sum(found.values()))  # type: ignore[assignment]
    return found


_PARTS = {
    "MainThread": "event loop: HTTP, decoding, admission",
    "tocsin-commit": "commit thread: pack, compress, sync",
    "tocsin-watch": "watch thread: rules, features, scores",
    "tocsin-checkpoint": "checkpoint thread",
    "tocsin-hand": "hand thread: decisions, ledger",
    "tocsin-roll": "roll thread: Parquet",
    "tocsin-learning": "learning thread: shadow model",
}


def _less(after: Counter[str], before: Counter[str]) -> Counter[str]:
    return Counter({part: seconds - before[part] for part, seconds in after.items()})
