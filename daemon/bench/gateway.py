"""``tocsin bench gateway``: HTTP in, store out, at the pace of a fleet.

A second process sends what agents would: one gzipped body for each node and period, over
connections that are kept. What is measured is this process alone.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from collectors.lines import encode
from collectors.sample import Sample
from daemon.bench.figures import Figure, percentile, resident_mebibytes
from daemon.bench.load import NAMES, Fleet
from daemon.clock import SystemClock
from daemon.gateway import BATCH_HEADER, BatchKey, Gateway, GatewayOptions, routes
from daemon.store.commit import GroupCommit
from daemon.store.embedded import Store
from daemon.store.options import StoreOptions
from daemon.tokens import parse_tokens

_TOKEN = "bench-token-0123456789"  # noqa: S105 (for loopback, for seconds)


def bench_gateway(
    directory: Path, nodes: int = 1000, steps: int = 3, period_seconds: float = 30.0
) -> Iterator[Figure]:
    """Sends ``steps`` readings of the fleet through gateway and store, as fast as they take."""
    outcome = asyncio.run(_serve(directory, nodes, steps))
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
    gateway = Gateway(accept, parse_tokens(f"* {_TOKEN}"), SystemClock(), options, marks=store)
    app = web.Application()
    app.add_routes(routes(gateway))
    runner = web.AppRunner(app, auto_decompress=False, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(
        target=_send, args=(theirs, runner.addresses[0][1], nodes, steps), daemon=True
    )
    child.start()
    await asyncio.to_thread(ours.recv)  # the bodies are made
    cpu, wall = time.process_time(), time.perf_counter()
    ours.send("go")
    answers = json.loads(await asyncio.to_thread(ours.recv))
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
    child.join(10)
    return outcome


def _send(pipe: Connection, port: int, nodes: int, steps: int) -> None:
    asyncio.run(_send_all(pipe, port, nodes, steps))


async def _send_all(pipe: Connection, port: int, nodes: int, steps: int) -> None:
    fleet = Fleet(nodes, start_ns=time.time_ns() - steps * 30 * 10**9)
    bodies = [
        gzip.compress(encode(samples[start : start + 8]), 6)
        for samples in fleet.samples(steps)
        for start in range(0, len(samples), 8)
    ]
    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    answers: list[float] = []
    waiting = iter(enumerate(bodies))
    url = f"http://127.0.0.1:{port}/api/v2/write"
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def work() -> None:
            for number, body in waiting:
                headers = {
                    "Authorization": f"Token {_TOKEN}",
                    "Content-Encoding": "gzip",
                    BATCH_HEADER: f"{number % nodes:08x}:{number // nodes + 1}",
                }
                begin = time.perf_counter()
                async with session.post(url, data=body, headers=headers) as response:
                    if response.status != 204:
                        raise RuntimeError(f"{response.status}: {await response.text()}")
                answers.append(time.perf_counter() - begin)

        await asyncio.gather(*(work() for _ in range(64)))
    pipe.send(json.dumps(answers))
