"""``tocsin bench return``: a head that was away, and all its agents come back at once.

A second process is the agents: each has so many batches spooled, a token and an address of its
own, waits as an agent does that has been refused for long (up to a minute, full jitter), and
then sends in order at its bounded rate, with the agent's own answer to every refusal. Beside
them one more node sends a severe event each half second: how long those take is what counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import multiprocessing
import random
import resource
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from aiohttp import web

from collectors.lines import encode
from collectors.sample import Sample, Value, sample
from daemon.agent.delivery import Answer, Delivery, retry_after_seconds
from daemon.agent.options import UplinkOptions
from daemon.bench.figures import Figure, percentile, resident_mebibytes
from daemon.bench.load import NAMES, Fleet
from daemon.clock import SystemClock
from daemon.gate.gateway import (
    BATCH_HEADER,
    URGENT_HEADER,
    BatchKey,
    Gateway,
    GatewayOptions,
    routes,
)
from daemon.gate.tokens import parse_tokens
from daemon.listen import Address, Listeners
from daemon.loop import run_head
from daemon.store.commit import GroupCommit
from daemon.store.embedded import Store
from daemon.store.options import StoreOptions

# Full jitter over this long is how agents wait for a head that has been away for minutes.
SPREAD_SECONDS = UplinkOptions().backoff_limit_seconds
_PROBE_SECONDS = 0.5
_VARIANTS = 40
_DEADLINE_SECONDS = 1800.0


def bench_return(
    directory: Path, nodes: int = 1000, batches: int = 12, spread_seconds: float = SPREAD_SECONDS
) -> Iterator[Figure]:
    """Serves gateway and store to ``nodes`` agents with ``batches`` spooled batches each."""
    found = run_head(_serve(directory, nodes, batches, spread_seconds))
    name = f"return of {nodes} agents"
    values = found["samples"] * len(NAMES)
    yield Figure(f"{name}: batches each", batches, "batches of 8 GPUs")
    yield Figure(f"{name}: batches that did not arrive once", found["wrong"], "batches", "0")
    yield Figure(f"{name}: all drained after", found["wall_seconds"], "s")
    yield Figure(f"{name}: taken meanwhile", values / found["wall_seconds"], "values/s")
    yield Figure(f"{name}: most connections open at once", found["connections"], "connections")
    yield Figure(f"{name}: asked to come again", found["pushed_back"], "requests")
    yield Figure(f"{name}: answer, p99", percentile(found["answers"], 0.99) * 1000, "ms")
    yield Figure(f"{name}: a severe event meanwhile, p50", _ms(found["probes"], 0.5), "ms")
    yield Figure(f"{name}: a severe event meanwhile, p99", _ms(found["probes"], 0.99), "ms")
    yield Figure(f"{name}: head's processor", found["cpu_seconds"], "CPU s")
    yield Figure(f"{name}: head's largest memory", found["resident_mebibytes"], "MiB", "2048")


def _ms(seconds: list[float], share: float) -> float:
    return percentile(seconds, share) * 1000


async def _serve(
    directory: Path, nodes: int, batches: int, spread_seconds: float
) -> dict[str, Any]:
    _many_files()
    store = Store(directory, StoreOptions(directory=directory, reserve_bytes=0))
    commit = GroupCommit(store)
    times: dict[BatchKey, int] = {}
    taken = 0

    async def accept(
        samples: Sequence[Sample], node: str, arrival_ns: int, batch: BatchKey | None = None
    ) -> None:
        nonlocal taken
        await commit.write(samples, batch)
        if batch is not None:
            times[batch] = times.get(batch, 0) + 1
            taken += len(samples)

    tokens = parse_tokens("\n".join(f"{_node(n)} {_token(n)}" for n in range(nodes + 1)))
    gateway = Gateway(accept, tokens, SystemClock(), GatewayOptions(), marks=store)
    app = web.Application()
    app.add_routes(routes(gateway))
    listeners = Listeners()
    # Our own address range stands for the agents' addresses; see _address.
    address = await listeners.open_tcp(app, Address("0.0.0.0", 0))  # noqa: S104
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(
        target=_agents, args=(theirs, address.port, nodes, batches, spread_seconds), daemon=True
    )
    child.start()
    await asyncio.to_thread(ours.recv)
    ours.send("go")
    cpu, wall = time.process_time(), time.perf_counter()
    connections, memory = 0, 0.0
    answer = asyncio.ensure_future(asyncio.to_thread(ours.recv))
    while not answer.done():
        await asyncio.wait({answer}, timeout=0.25)
        connections = max(connections, listeners.doors[0].open)
        memory = max(memory, resident_mebibytes())
    found: dict[str, Any] = json.loads(answer.result())
    found |= {
        "wall_seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "connections": connections,
        "resident_mebibytes": memory,
        "pushed_back": gateway.counts.pushed_back,
        "samples": taken,
        "wrong": nodes * batches - sum(1 for count in times.values() if count == 1),
    }
    ours.close()
    await asyncio.to_thread(child.join, 10)
    await listeners.close()
    await commit.close()
    store.close()
    return found


def _many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _node(number: int) -> str:
    return f"gpu{number:05d}"


def _token(number: int) -> str:
    return f"token-of-the-node-{number:05d}"


def _address(number: int) -> str:
    """An address of loopback for each agent: the head bounds connections of one address."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


def _agents(pipe: Connection, port: int, nodes: int, batches: int, spread_seconds: float) -> None:
    _many_files()
    logging.getLogger("tocsin.delivery").disabled = True  # what it would say is counted
    asyncio.run(_return(pipe, port, nodes, batches, spread_seconds))


async def _return(
    pipe: Connection, port: int, nodes: int, batches: int, spread_seconds: float
) -> None:
    bodies = _bodies()
    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    answers: list[float] = []
    probes: list[float] = []
    probe = asyncio.create_task(_probe(port, nodes, probes))
    async with asyncio.timeout(_DEADLINE_SECONDS):
        await asyncio.gather(
            *(
                _Agent(port, number, answers).drain(bodies, batches, spread_seconds)
                for number in range(nodes)
            )
        )
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    # A sample of the answers is enough for a percentile, and goes through the pipe.
    pipe.send(json.dumps({"answers": answers[:: max(1, len(answers) // 50_000)], "probes": probes}))


def _bodies() -> list[bytes]:
    """Lines of one node with marks where its name and the time belong."""
    steps = Fleet(1, start_ns=0, period_seconds=0).samples(_VARIANTS)
    return [
        encode(samples).replace(b"gpu00000", b"<node>").replace(b" 0\n", b" <time>\n")
        for samples in steps
    ]


class _Agent:
    """What an agent is to the head: one kept connection, and its own manner of trying again."""

    def __init__(self, port: int, number: int, answers: list[float]) -> None:
        self.port = port
        self.number = number
        self.answers = answers
        self.rng = random.Random(number)  # noqa: S311 (spreads load, guards nothing)
        self.options = UplinkOptions()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def drain(self, bodies: list[bytes], batches: int, spread_seconds: float) -> None:
        """Sends all batches in order, and says goodbye."""
        limit = self.options.backoff_limit_seconds
        delivery = Delivery(self.post, "head", Path("/dev/null"), 0, limit, self.rng)
        delivery.has_failed_for_long()
        await asyncio.sleep(self.rng.uniform(0, spread_seconds))
        begin_ns = time.time_ns() - batches * 10 * 10**9
        name = _node(self.number).encode()
        for sequence in range(1, batches + 1):
            body = bodies[(self.number + sequence) % len(bodies)]
            at = b"%d" % (begin_ns + sequence * 10 * 10**9)
            packed = gzip.compress(body.replace(b"<node>", name).replace(b"<time>", at), 1)
            while (pause := await delivery.send(packed, f"run:{sequence}")) is not None:  # noqa: ASYNC110
                await asyncio.sleep(pause)
            await asyncio.sleep(1.0 / self.options.drain_batches_per_second)
        self.close()

    async def post(self, body: bytes, key: str) -> Answer:
        """One request."""
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(self.options.request_deadline_seconds):
                answer = await self._ask(body, key)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            self.close()
            return Answer(0, type(error).__name__.encode())
        self.answers.append(time.perf_counter() - begin)
        return answer

    async def _ask(self, body: bytes, key: str) -> Answer:
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                "127.0.0.1", self.port, local_addr=(_address(self.number), 0)
            )
        reader, writer = self._streams
        head = (
            f"POST /api/v2/write HTTP/1.1\r\nHost: head\r\nContent-Encoding: gzip\r\n"
            f"Authorization: Token {_token(self.number)}\r\nContent-Length: {len(body)}\r\n"
        )
        head += f"{BATCH_HEADER}: {key}\r\n\r\n" if key else f"{URGENT_HEADER}: 1\r\n\r\n"
        writer.write(head.encode() + body)
        said = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in said[1:] if ": " in line)
        text = await reader.readexactly(int(fields.get("content-length", 0)))
        if fields.get("connection") == "close":
            self.close()
        asked = retry_after_seconds(fields.get("retry-after", ""))
        return Answer(int(said[0].split()[1]), text, asked)

    def close(self) -> None:
        """Lets go of the connection."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


async def _probe(port: int, number: int, probes: list[float]) -> None:
    """A severe event now and then; how long each took until it was durable."""
    agent = _Agent(port, number, [])
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            fields: dict[str, Value] = {"text": "NVRM: Xid 79", "severity": 3.0}
            tags = {"node": _node(number), "kind": "xid", "code": "79"}
            line = encode([sample("event", time.time_ns(), fields, **tags)])
            begin = time.perf_counter()
            while (await agent.post(gzip.compress(line), "")).status != 204:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            probes.append(time.perf_counter() - begin)
            await asyncio.sleep(_PROBE_SECONDS)
    agent.close()
