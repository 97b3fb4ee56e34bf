"""A second process that sends what the agents of a fleet would, for benchmarks of the head."""

from __future__ import annotations

import asyncio
import gzip
import json
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import aiohttp

from collectors.lines import encode
from collectors.sample import Sample, sample, source_reading
from daemon.bench.load import Fleet
from daemon.gate.gateway import BATCH_HEADER

TOKEN = "bench-token-0123456789"  # noqa: S105 (for loopback, for seconds)


class Senders:
    """One gzipped body for each node and reading, over connections that are kept.

    ``whole`` adds what an agent sends beside its GPUs: the host and its own ``source`` readings.
    """

    def __init__(self, port: int, nodes: int, steps: int, whole: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._child = context.Process(
            target=_work, args=(theirs, port, nodes, steps, whole), daemon=True
        )
        self._child.start()

    async def ready(self) -> None:
        """Returns when all bodies are made."""
        await asyncio.to_thread(self._ours.recv)

    async def send(self, steps: int) -> list[float]:
        """Sends the next ``steps`` readings, as fast as they are taken; seconds of each answer."""
        self._ours.send(steps)
        answers: list[float] = json.loads(await asyncio.to_thread(self._ours.recv))
        return answers

    def close(self) -> None:
        """Ends the process."""
        self._ours.close()
        self._child.join(5)
        if self._child.is_alive():
            self._child.kill()


def _work(pipe: Connection, port: int, nodes: int, steps: int, whole: bool) -> None:
    asyncio.run(_send_all(pipe, port, nodes, steps, whole))


async def _send_all(pipe: Connection, port: int, nodes: int, steps: int, whole: bool) -> None:
    fleet = Fleet(nodes, start_ns=time.time_ns() - steps * 30 * 10**9)
    bodies = [
        gzip.compress(encode(_of_agent(samples[start : start + 8], whole)), 6)
        for samples in fleet.samples(steps)
        for start in range(0, len(samples), 8)
    ]
    pipe.send("ready")
    waiting = iter(enumerate(bodies))
    url = f"http://127.0.0.1:{port}/api/v2/write"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        while True:
            try:
                count = await asyncio.to_thread(pipe.recv)
            except EOFError:
                return
            answers: list[float] = []
            left = iter(range(count * nodes))

            async def work(answers: list[float] = answers, left: object = left) -> None:
                for _ in left:  # type: ignore[attr-defined]
                    number, body = next(waiting)
                    headers = {
                        "Authorization": f"Token {TOKEN}",
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


def _of_agent(gpus: Sequence[Sample], whole: bool) -> list[Sample]:
    if not whole:
        return list(gpus)
    node, time_ns = gpus[0].tag("node"), gpus[0].time_ns
    host = {
        "load_1m": 41.5, "edac_corrected_total": 0.0, "edac_uncorrected_total": 0.0,
        "mce_total": 0.0, "boot_time_seconds": 1.78e9, "blocked_processes": 0.0,
        "oom_kills_total": 0.0, "filesystem_readonly": 0.0, "pressure_cpu_ratio": 0.02,
    }  # fmt: skip
    readings = [
        source_reading(node, name, time_ns, up=True, duration_seconds=0.004, age_seconds=0.0)
        for name in ("nvml", "host")
    ]
    return [*gpus, sample("host", time_ns, host, node=node), *readings]
