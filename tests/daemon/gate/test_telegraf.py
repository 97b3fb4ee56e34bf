"""Telegraf against the gateway. Telegraf itself does not run here.

Its requests are written byte for byte as its two outputs send them with their documented
settings (chunked, for it hides the length of a body; gzip; one kept connection), and what it
does with each answer is done as its source has it:
https://github.com/influxdata/telegraf/blob/v1.34.0/plugins/outputs/influxdb_v2/http.go
https://github.com/influxdata/telegraf/blob/v1.34.0/plugins/outputs/influxdb/http.go
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import random
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from daemon.gate.admission import AdmissionOptions
from daemon.gate.gateway import GatewayOptions
from daemon.store.errors import StoreUnavailableError
from daemon.store.tables import to_rows
from tests.daemon.head_stub import RELAY_TOKEN, Head

BOUNDS = AdmissionOptions(past_days_limit=1e6, future_hours_limit=1e6)
AGENT = b"User-Agent: Telegraf/1.34.0 Go/1.24.1\r\n"
START_NS = 1_780_000_000_000_000_000


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"


@dataclass
class Telegraf:
    """One output plugin: its buffer, its one connection, and what it makes of answers."""

    port: int
    batch_metrics: int = 1000
    buffer: deque[bytes] = field(default_factory=deque)
    dropped: list[bytes] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    retries: int = 0
    connections: int = 0

    def head(self) -> bytes:
        return (
            b"POST /api/v2/write?bucket=tocsin&org=tocsin HTTP/1.1\r\nHost: head:8086\r\n"
            + AGENT
            + b"Transfer-Encoding: chunked\r\nAuthorization: Token %s\r\n" % RELAY_TOKEN.encode()
            + b"Content-Encoding: gzip\r\nContent-Type: text/plain; charset=utf-8\r\n"
            + b"Accept-Encoding: gzip\r\n\r\n"
        )

    async def __aenter__(self) -> Telegraf:
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._streams is not None:
            self._streams[1].close()

    async def flush(self) -> None:
        """One interval of ``flush_interval``: whole batches until one is not taken."""
        while self.buffer:
            batch = [
                self.buffer.popleft() for _ in range(min(len(self.buffer), self.batch_metrics))
            ]
            if not await self.write(batch):
                self.buffer.extendleft(reversed(batch))
                return

    async def write(self, batch: Sequence[bytes]) -> bool:
        """Whether ``batch`` is done with: taken, or dropped."""
        status, after = await self.request(self.head(), gzip.compress(b"".join(batch)))
        self.statuses.append(status)
        return await self.judge(status, after, batch)

    async def judge(self, status: int, after: float, batch: Sequence[bytes]) -> bool:
        if 200 <= status < 300:
            self.retries = 0
            return True
        if status == 413 and len(batch) > 1:
            middle = (len(batch) + 1) // 2
            first, second = await self.write(batch[:middle]), await self.write(batch[middle:])
            return first and second
        if status in (401, 403):
            return False
        if status in (429, 502, 503, 504):
            self.retries += 1
            self.waits.append(max(min(self.retries**2 / 40, 60.0), min(after, 600.0)))
            return False
        if 400 <= status < 500:
            self.dropped.extend(batch)
            return True
        return False

    async def request(self, head: bytes, body: bytes) -> tuple[int, float]:
        """(status, Retry-After) of one request on the kept connection."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self.port)
            self.connections += 1
        reader, writer = self._streams
        writer.write(head + chunked(body))
        said = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).decode()
        headers = dict(
            line.lower().split(": ", 1) for line in said.split("\r\n")[1:] if ": " in line
        )
        await reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection") == "close":
            writer.close()
            self._streams = None
        return int(said.split()[1]), float(headers.get("retry-after", 0))


@dataclass
class Telegraf1(Telegraf):
    """``[[outputs.influxdb]]``: to v1's path, and whatever gets a 4xx is dropped."""

    def head(self) -> bytes:
        pair = base64.b64encode(f"telegraf:{RELAY_TOKEN}".encode())
        return (
            b"POST /write?db=tocsin HTTP/1.1\r\nHost: head:8086\r\n"
            + AGENT
            + b"Transfer-Encoding: chunked\r\nAuthorization: Basic %s\r\n" % pair
            + b"Content-Encoding: gzip\r\nContent-Type: text/plain; charset=utf-8\r\n"
            + b"Accept-Encoding: gzip\r\n\r\n"
        )

    async def create_database(self) -> int:
        body = b"q=CREATE+DATABASE+%22tocsin%22"
        head = self.head().replace(b"/write?db=tocsin", b"/query")
        head = head.replace(b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(body))
        head = head.replace(b"Content-Encoding: gzip\r\n", b"")
        head = head.replace(b"text/plain; charset=utf-8", b"application/x-www-form-urlencoded")
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(head + body)
        said = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        writer.close()
        return int(said.split()[1])

    async def judge(self, status: int, after: float, batch: Sequence[bytes]) -> bool:
        if 400 <= status < 500:
            self.dropped.extend(batch)
        return status < 500


def metrics(count: int) -> list[bytes]:
    """What inputs.cpu and inputs.system say, with a node tag set in [global_tags]."""
    lines = []
    for number in range(count):
        time = START_NS + number * 10**9
        node = b"n%d" % (number % 5)
        lines.append(
            b"cpu,cpu=cpu-total,node=%s usage_idle=98.5,usage_user=%d.25,usage_iowait=0i %d\n"
            % (node, number, time)
            if number % 2
            else b'system,node=%s load1=0.5,n_cpus=2i,uptime_format="1 day,  2:03" %d\n'
            % (node, time)
        )
    return lines


def stored(head: Head) -> int:
    return sum(len(to_rows(head.store.read(m, 0, 2**62))) for m in ("cpu", "system"))


@pytest.fixture
async def head(tmp_path: Path) -> AsyncIterator[Head]:
    started = await Head(tmp_path / "store", GatewayOptions(admission=BOUNDS)).start()
    yield started
    await started.stop()


@pytest.mark.parametrize("output", [Telegraf, Telegraf1])
async def test_both_outputs_deliver_every_metric_over_one_connection(
    head: Head, output: type[Telegraf]
) -> None:
    async with output(head.port) as telegraf:
        if isinstance(telegraf, Telegraf1):
            assert await telegraf.create_database() == 200
        telegraf.buffer.extend(metrics(3500))
        await telegraf.flush()
        assert telegraf.statuses == [204] * 4
        assert telegraf.connections == 1
    assert stored(head) == 3500
    assert to_rows(head.store.read("system", 0, 2**62))[0]["uptime_format"] == "1 day,  2:03"


@pytest.mark.parametrize("output", [Telegraf, Telegraf1])
async def test_a_head_in_trouble_costs_neither_output_a_metric(
    tmp_path: Path, output: type[Telegraf]
) -> None:
    head = await Head(tmp_path / "store", GatewayOptions(admission=BOUNDS)).start()
    whole, rng = head.gateway.accept, random.Random(5)

    async def sometimes(*arguments: object) -> None:
        if rng.random() < 0.4:
            raise StoreUnavailableError("store /x: No space left on device; free space there")
        await whole(*arguments)  # type: ignore[arg-type]

    head.gateway.accept = sometimes  # type: ignore[assignment]
    async with output(head.port, batch_metrics=100) as telegraf:
        telegraf.buffer.extend(metrics(1500))
        for turn in range(200):
            # Now and then it holds all that it may: that is 429 for v2 and 503 for v1.
            head.gateway.pending_bytes = 10**12 if turn % 5 == 2 else 0
            await telegraf.flush()
            if not telegraf.buffer:
                break
        head.gateway.pending_bytes = 0
    assert telegraf.dropped == []
    assert not telegraf.buffer
    assert stored(head) == 1500
    if output is Telegraf:
        assert {429, 503} <= set(telegraf.statuses)
        assert min(telegraf.waits) >= 1.0
    else:
        assert set(telegraf.statuses) == {204, 503}
    await head.stop()


async def test_a_bad_metric_costs_itself_only_although_telegraf_drops_its_batch(
    head: Head,
) -> None:
    async with Telegraf(head.port) as telegraf:
        lines = metrics(1000)
        lines[500] = b"cpu,cpu=cpu0,node=n1,job_id=77 usage_idle=1 %d\n" % START_NS
        telegraf.buffer.extend(lines)
        await telegraf.flush()
        assert telegraf.statuses == [400]
        assert len(telegraf.dropped) == 1000
    assert stored(head) == 999


async def test_what_is_too_large_is_taken_in_halves(tmp_path: Path) -> None:
    options = GatewayOptions(admission=BOUNDS, pending_samples_limit=300)
    head = await Head(tmp_path / "store", options).start()
    async with Telegraf(head.port) as telegraf:
        telegraf.buffer.extend(metrics(1000))
        await telegraf.flush()
        assert telegraf.statuses[:3] == [413, 413, 204]
    assert stored(head) == 1000
    await head.stop()


async def test_a_wrong_token_keeps_the_metrics_in_its_buffer(head: Head) -> None:
    async with Telegraf(head.port) as telegraf:
        sound = telegraf.head
        telegraf.head = lambda: sound().replace(b"relay", b"wrong")  # type: ignore[method-assign]
        telegraf.buffer.extend(metrics(10))
        await telegraf.flush()
        assert (telegraf.statuses, len(telegraf.buffer)) == ([401], 10)
        telegraf.head = sound  # type: ignore[method-assign]
        await telegraf.flush()
    assert stored(head) == 10
