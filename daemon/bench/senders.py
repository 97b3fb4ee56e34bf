"""A second process that sends what the agents of a fleet would, for benchmarks of the head."""

from __future__ import annotations

import asyncio
import gzip
import json
import multiprocessing
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

import aiohttp

from collectors.lines import encode
from collectors.sample import Sample, sample, source_reading
from daemon.bench.load import Fleet
from daemon.gate.gateway import BATCH_HEADER

TOKEN = "bench-token-0123456789"  # noqa: S105 (for loopback, for seconds)


PERIOD_SECONDS = 30.0
# A body takes so long to make, at the most, on a machine that measures anything.
_MAKE_SECONDS = 0.002
_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Paced:
    """What became of readings that were sent at a fleet's own pace."""

    wall_seconds: float
    pushed_back: int
    answer_seconds: list[float]


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
        self._ours.send(["send", steps])
        answers: list[float] = json.loads(await asyncio.to_thread(self._ours.recv))
        return answers

    async def prepare(self, periods: int) -> None:
        """Makes ``periods`` further readings, and returns when the first of them is due."""
        self._ours.send(["prepare", periods])
        await asyncio.to_thread(self._ours.recv)

    async def pace(self) -> Paced:
        """Sends them each at its own moment, the nodes one after the other as agents come."""
        self._ours.send(["pace", 0])
        return Paced(**json.loads(await asyncio.to_thread(self._ours.recv)))

    def close(self) -> None:
        """Ends the process."""
        self._ours.close()
        self._child.join(5)
        if self._child.is_alive():
            self._child.kill()


def _work(pipe: Connection, port: int, nodes: int, steps: int, whole: bool) -> None:
    asyncio.run(_serve(pipe, port, nodes, steps, whole))


async def _serve(pipe: Connection, port: int, nodes: int, steps: int, whole: bool) -> None:
    fleet = Fleet(nodes, start_ns=time.time_ns() - steps * int(PERIOD_SECONDS) * 10**9)
    bodies = deque(_bodies(fleet, steps, whole))
    pipe.send("ready")
    connector = aiohttp.TCPConnector(limit=2 * nodes)
    async with aiohttp.ClientSession(connector=connector) as session:
        posts = _Posts(session, f"http://127.0.0.1:{port}/api/v2/write", nodes)
        while True:
            try:
                word, count = await asyncio.to_thread(pipe.recv)
            except EOFError:
                return
            if word == "send":
                answers = await posts.at_once([bodies.popleft() for _ in range(count * nodes)])
                pipe.send(json.dumps(answers))
            elif word == "prepare":
                due = time.time() + count * nodes * _MAKE_SECONDS
                fleet = Fleet(nodes, start_ns=int(due * 1e9))
                bodies.extend(_bodies(fleet, count, whole))
                await asyncio.sleep(max(0.0, due - time.time()))
                pipe.send("due")
            else:
                paced = await posts.paced(list(bodies))
                bodies.clear()
                pipe.send(json.dumps(asdict(paced)))


def _bodies(fleet: Fleet, steps: int, whole: bool) -> Iterator[bytes]:
    for samples in fleet.samples(steps):
        for start in range(0, len(samples), 8):
            yield gzip.compress(encode(_of_agent(samples[start : start + 8], whole)), 6)


class _Posts:
    """The requests of a fleet's agents."""

    def __init__(self, session: aiohttp.ClientSession, url: str, nodes: int) -> None:
        self._session, self._url, self._nodes = session, url, nodes
        self._number = 0
        self._pushed_back = 0

    async def at_once(self, bodies: Sequence[bytes]) -> list[float]:
        """64 at a time, the next as soon as one is answered."""
        answers: list[float] = []
        left = iter(bodies)

        async def work() -> None:
            answers.extend([await self._post(body) for body in left])

        await asyncio.gather(*(work() for _ in range(64)))
        return answers

    async def paced(self, bodies: Sequence[bytes]) -> Paced:
        """Each body at its moment, however late the answers to others are."""
        begin, tasks = time.perf_counter(), []
        for place, body in enumerate(bodies):
            wait_seconds = begin + place * PERIOD_SECONDS / self._nodes - time.perf_counter()
            if wait_seconds > 0:
                await asyncio.sleep(wait_seconds)
            tasks.append(asyncio.create_task(self._post(body)))
        answers = await asyncio.gather(*tasks)
        return Paced(time.perf_counter() - begin, self._pushed_back, answers)

    async def _post(self, body: bytes) -> float:
        """Seconds until it was taken; who is pushed back comes again, as an agent does."""
        number, self._number = self._number, self._number + 1
        headers = {
            "Authorization": f"Token {TOKEN}",
            "Content-Encoding": "gzip",
            BATCH_HEADER: f"{number % self._nodes:08x}:{number // self._nodes + 1}",
        }
        begin = time.perf_counter()
        while True:
            async with self._session.post(self._url, data=body, headers=headers) as response:
                if response.status == 204:
                    return time.perf_counter() - begin
                if response.status not in (429, 503):
                    raise RuntimeError(f"{response.status}: {await response.text()}")
                wait_seconds = float(response.headers.get("Retry-After", _PATIENCE_SECONDS))
            self._pushed_back += 1
            await asyncio.sleep(wait_seconds)


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
