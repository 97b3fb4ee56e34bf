"""Agents that run in tests: sources that count, hang and fail, and what arrived of them."""

import asyncio
import gzip
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.lines import decode
from collectors.sample import Batch, SourceUnavailable, sample
from daemon.agent.cycle import Agent
from daemon.agent.options import AgentOptions, SpoolOptions, UplinkOptions
from daemon.agent.spool import Spool
from daemon.store.tables import to_rows
from tests.daemon.head_stub import NODE_TOKEN, Head


async def until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        await asyncio.sleep(0.01)


@dataclass
class Counter:
    """A source that counts its cycles."""

    name: str = "counter"
    period_seconds: float = 0.05
    deadline_seconds: float = 1.0
    cycles: int = 0
    closed: int = 0

    def collect(self, now_ns: int) -> Batch:
        self.cycles += 1
        reading = sample("host", now_ns, {"cycles": float(self.cycles)}, node="n1")
        return Batch(self.name, (reading,))

    def close(self) -> None:
        self.closed += 1


@dataclass
class Log(Counter):
    """A source with a cursor: it must not be acknowledged before its lines are safe."""

    name: str = "log"
    lines: list[tuple[str, float]] = field(default_factory=list)
    taken: int = 0
    acknowledged: int = 0

    def collect(self, now_ns: int) -> Batch:
        samples = []
        for text, severity in self.lines[self.acknowledged :]:
            self.taken += 1
            fields = {"text": text, "severity": severity}
            tags = {"node": "n1", "kind": "xid", "code": str(self.taken)}
            samples.append(sample("event", now_ns, fields, **tags))
        self._read = len(self.lines)
        return Batch(self.name, tuple(samples))

    def acknowledge(self) -> None:
        self.acknowledged = self._read


@dataclass
class Stuck(Counter):
    """A source that hangs from its first cycle until it is released."""

    name: str = "stuck"
    deadline_seconds: float = 0.05
    release: threading.Event = field(default_factory=threading.Event)

    def collect(self, now_ns: int) -> Batch:
        self.cycles += 1
        self.release.wait(30)
        return Batch(self.name, (sample("host", now_ns, {"late": 1.0}, node="n1"),))


@dataclass
class Failing(Counter):
    """A source that is missing on one cycle and broken on the next."""

    name: str = "failing"

    def collect(self, now_ns: int) -> Batch:
        self.cycles += 1
        if self.cycles % 2:
            raise SourceUnavailable("no such device; load the driver")
        raise KeyError("a bug")


def options(
    tmp_path: Path, url: str, token: str = NODE_TOKEN, limit_bytes: int = 2**20, **uplink: Any
) -> AgentOptions:
    token_file = tmp_path / "token"
    token_file.write_text(token + "\n")
    defaults: dict[str, Any] = {
        "batch_seconds": 0.1,
        "backoff_limit_seconds": 0.3,
        "urgent_backoff_limit_seconds": 0.1,
        "drain_batches_per_second": 1000,
        "request_deadline_seconds": 5,
    }
    return AgentOptions(
        node="n1",
        uplink=UplinkOptions(head_url=url, token_file=token_file, **(defaults | uplink)),
        spool=SpoolOptions(directory=tmp_path / "spool", limit_bytes=limit_bytes),
    )


class Running:
    """An agent that runs while the block is entered."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.stop = asyncio.Event()

    async def __aenter__(self) -> Agent:
        self.task = asyncio.create_task(self.agent.run(self.stop))
        return self.agent

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, 90)


def numbers(head: Head) -> list[float]:
    rows = to_rows(head.store.read("host", 0, 2**62))
    return [row["cycles"] for row in rows if "cycles" in row]


def arrived_or_spooled(head: Head, tmp_path: Path) -> list[float]:
    """The cycles that the head has, then those that a clean stop left on disk (a slow machine)."""
    spool = Spool(tmp_path / "spool" / "normal")
    found = numbers(head)
    while (entry := spool.oldest(time.time_ns())) is not None:
        samples = decode(gzip.decompress(entry.body), 0).samples
        left = [s.number("cycles") for s in samples if s.measurement == "host"]
        found.extend(cycle for cycle in left if cycle is not None)
        spool.done(entry)
    return found
