"""``tocsin bench head``: the whole head at the pace of a fleet, CPU by part, and its memory.

A second process sends what agents would: for each node and period one gzipped body with 8 GPUs,
the host and two ``source`` readings. What is measured is the head's process alone: event loop
(HTTP, decoding, admission), commit thread (pack, compress, sync), watch thread (rules, silence,
features, newest readings), judgement and checkpoint, each by the processor clock of its thread.
The checkpoint is written when it is asked for, so that it falls into no other part's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from collectors.slurm.nodes import NodeState
from daemon.assemble import calm_collector
from daemon.bench.figures import Figure, percentile, resident_mebibytes
from daemon.bench.load import NAMES
from daemon.bench.senders import TOKEN, Senders
from daemon.clock import SystemClock
from daemon.config import Config, HeadSection
from daemon.demo.source import simulated_source
from daemon.gate.gateway import Gateway, routes
from daemon.gate.tokens import parse_tokens
from daemon.head import SCORE_SECONDS, Head
from daemon.slurm.simulated import SimulatedSlurm

_OTHERS = "other threads"
JUDGE_SECONDS = HeadSection().judge_seconds
CHECKPOINT_SECONDS = HeadSection().checkpoint_seconds


@dataclass(slots=True)
class _Outcome:
    cpu: Counter[str] = field(default_factory=Counter)
    scored_cpu_seconds: list[float] = field(default_factory=list)
    plain_cpu_seconds: list[float] = field(default_factory=list)
    checkpoint_cpu_seconds: list[float] = field(default_factory=list)
    judge_wall_seconds: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    wall_seconds: float = 0.0
    samples: int = 0
    resident_mebibytes: float = 0.0


def bench_head(
    directory: Path, nodes: int = 1000, steps: int = 4, period_seconds: float = 30.0
) -> Iterator[Figure]:
    """``steps`` readings of the fleet after a first one that makes everything known."""
    outcome = asyncio.run(_serve(directory, nodes, steps))
    whole = sum(outcome.cpu.values())
    paced = 100 / (steps * period_seconds)
    yield Figure("head: samples taken", outcome.samples, "samples")
    for part, seconds in sorted(outcome.cpu.items(), key=lambda one: -one[1]):
        yield Figure(f"head: {part}", seconds * paced, "% of a core")
    scored = sum(outcome.scored_cpu_seconds) / steps
    plain = sum(outcome.plain_cpu_seconds) / steps
    # Of the judgements, one in so many scores.
    among = max(1.0, SCORE_SECONDS / JUDGE_SECONDS)
    judged = (scored + (among - 1) * plain) / among
    kept = sum(outcome.checkpoint_cpu_seconds) / steps
    yield Figure("head: one judgement with scores, CPU", scored, "s")
    yield Figure("head: one judgement between, CPU", plain, "s")
    yield Figure("head: one judgement with scores", max(outcome.judge_wall_seconds), "s", "1")
    yield Figure("head: one checkpoint, CPU", kept, "s")
    yield Figure(
        f"head: {nodes} nodes every {period_seconds:g} s, readings alone",
        whole * paced,
        "% of a core",
    )
    yield Figure(
        f"head: {nodes} nodes every {period_seconds:g} s, judged every {JUDGE_SECONDS:g} s",
        whole * paced + judged * 100 / JUDGE_SECONDS + kept * 100 / CHECKPOINT_SECONDS,
        "% of a core",
        "50 for 10,000 nodes",
    )
    values = steps * nodes * 8 * len(NAMES)
    yield Figure("head: as fast as it takes", values / outcome.wall_seconds, "values/s")
    yield Figure("head: answer, p99", percentile(outcome.answers, 0.99) * 1000, "ms")
    yield Figure("head: resident memory", outcome.resident_mebibytes, "MiB", "2048")


def _head(directory: Path, nodes: int) -> Head:
    config = Config.model_validate(
        {
            "head": {
                "state_dir": directory,
                "socket": directory / "socket",
                "judge_seconds": 300.0,
                "checkpoint_seconds": 3600.0,
            },
            "store": {"directory": directory / "store", "reserve_bytes": 0},
            "gateway": {"lines_per_second_limit": 1e9, "burst_lines_limit": 10_000_000},
        }
    )
    names = [f"gpu{number:05d}" for number in range(nodes)]
    states = [NodeState(name, base="mixed", gpus_configured=8) for name in names]
    slurm = SimulatedSlurm(states, time.time_ns)
    source = simulated_source(slurm, 3600.0, directory / "slurm")
    return Head(config, clock=SystemClock(), adapter=slurm, slurm=source)


async def _serve(directory: Path, nodes: int, steps: int) -> _Outcome:
    calm_collector()
    head = _head(directory, nodes)
    outcome = _Outcome()
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
        for _ in range(steps):
            before, wall = _cpu_by_part(), time.perf_counter()
            outcome.answers += await senders.send(1)
            await _watched(head)
            outcome.wall_seconds += time.perf_counter() - wall
            outcome.cpu += _less(_cpu_by_part(), before)
            outcome.samples = gateway.counts.samples
            head.watch.forget_scores()
            wall = time.perf_counter()
            outcome.scored_cpu_seconds.append(await _spent(head.judge()))
            outcome.judge_wall_seconds.append(time.perf_counter() - wall)
            outcome.plain_cpu_seconds.append(await _spent(head.judge()))
            outcome.checkpoint_cpu_seconds.append(await _spent(head.checkpoint()))
        outcome.resident_mebibytes = resident_mebibytes()
    finally:
        senders.close()
        await runner.cleanup()
        await head.stop()
    return outcome


async def _spent(work: Awaitable[None]) -> float:
    """Processor seconds of ``work``, all threads together."""
    cpu = time.process_time()
    await work
    return time.process_time() - cpu


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
    "tocsin-watch": "watch thread: rules, silence, features",
}


def _less(after: Counter[str], before: Counter[str]) -> Counter[str]:
    return Counter({part: seconds - before[part] for part, seconds in after.items()})
