"""``tocsin bench gateway``: HTTP in, store out, at the pace of a fleet.

A second process sends what agents would: one gzipped body for each node and period, over
connections that are kept. What is measured is this process alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from collectors.sample import Sample
from daemon.bench.figures import Figure, percentile, resident_mebibytes
from daemon.bench.load import NAMES
from daemon.bench.senders import TOKEN, Senders
from daemon.clock import SystemClock
from daemon.gate.gateway import BatchKey, Gateway, GatewayOptions, routes
from daemon.gate.tokens import parse_tokens
from daemon.loop import run_head
from daemon.store.commit import GroupCommit
from daemon.store.embedded import Store
from daemon.store.options import StoreOptions


def bench_gateway(
    directory: Path, nodes: int = 1000, steps: int = 3, period_seconds: float = 30.0
) -> Iterator[Figure]:
    """Sends ``steps`` readings of the fleet through gateway and store, as fast as they take."""
    outcome = run_head(_serve(directory, nodes, steps))
    values = outcome["samples"] * len(NAMES)
    cpu = outcome["cpu_seconds"]
    yield Figure(f"gateway: {nodes} nodes, values taken", values, "values")
    yield Figure("gateway: as fast as it takes", values / outcome["wall_seconds"], "values/s")
    yield Figure("gateway: with store", cpu / values * 1e6, "CPU s/million values")
    at_pace = nodes * 8 * len(NAMES) / period_seconds
    yield Figure(
        f"gateway: {nodes} nodes every {period_seconds:g} s",
        cpu / values * at_pace * 100,
        "% of a core",
        "50 for 10,000 nodes with features",
    )
    yield Figure("gateway: answer, p50", percentile(outcome["answers"], 0.5) * 1000, "ms")
    yield Figure("gateway: answer, p99", percentile(outcome["answers"], 0.99) * 1000, "ms")
    yield Figure("gateway: resident memory", outcome["resident_mebibytes"], "MiB", "2048 in all")


async def _serve(directory: Path, nodes: int, steps: int) -> dict[str, Any]:
    store = Store(directory, StoreOptions(directory=directory, reserve_bytes=0))
    commit = GroupCommit(store)
    taken = 0

    async def accept(
        samples: Sequence[Sample], node: str, arrival_ns: int, batch: BatchKey | None = None
    ) -> None:
        nonlocal taken
        await commit.write(samples, batch)
        taken += len(samples)

    options = GatewayOptions()
    gateway = Gateway(accept, parse_tokens(f"* {TOKEN}"), SystemClock(), options, marks=store)
    app = web.Application()
    app.add_routes(routes(gateway))
    runner = web.AppRunner(app, auto_decompress=False, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    senders = Senders(runner.addresses[0][1], nodes, steps)
    await senders.ready()
    cpu, wall = time.process_time(), time.perf_counter()
    answers = await senders.send(steps)
    outcome = {
        "samples": taken,
        "answers": answers,
        "wall_seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "resident_mebibytes": resident_mebibytes(),
    }
    await runner.cleanup()
    await commit.close()
    store.close()
    senders.close()
    return outcome
