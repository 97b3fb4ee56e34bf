"""The one door for readings: InfluxDB's write API, for our agents and for anybody's client.

``POST /api/v2/write`` (and v1's ``/write``) takes line protocol, plain or gzip, with a
token. It answers 204 only when the store has the samples durably; good lines are kept when
others are refused, and the refused are named (400). A batch that carries a key it has
already (``X-Tocsin-Batch``) is answered 204 and stored no second time. When more is under
way than it can hold it answers 429 with Retry-After before memory grows.

Source of the answers: https://docs.influxdata.com/influxdb/v2/api/ and v1's ``/write``.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol
from urllib.parse import parse_qs

from aiohttp import web
from pydantic import Field

from collectors.lines import Decoder, LineProblem
from collectors.sample import Sample
from daemon import __version__
from daemon.clock import Clock
from daemon.gate.admission import Admission, AdmissionOptions, cut
from daemon.gate.answers import RefusedError, partial_write, too_large
from daemon.gate.bodies import rest_of, unpacked
from daemon.gate.door import DoorOptions
from daemon.gate.gathering import OTHERS_LEAST, Gathering
from daemon.gate.patience import Patience
from daemon.gate.rates import Rate, Rates
from daemon.gate.said import certificate_name, precision_in
from daemon.gate.tokens import token_in
from daemon.gate.turnstile import Turnstile
from daemon.settings import Section
from daemon.store.errors import StoreUnavailableError

log = logging.getLogger("tocsin.gateway")

BATCH_HEADER = "X-Tocsin-Batch"
URGENT_HEADER = "X-Tocsin-Urgent"
V1_PATH = "/write"
_BATCH_KEY = re.compile(r"([A-Za-z0-9_-]{1,32}):([0-9]{1,18})")
LOUD_TOLD_LIMIT = 5
_JUDGED_AT_ONCE = 5_000
_INLINE_BYTES = 256 * 1024  # larger bodies are unpacked and decoded in a thread


class GatewayOptions(Section):
    """The bounds of the door."""

    body_limit_bytes: int = Field(default=8 * 1024 * 1024, ge=1024)
    unpacked_limit_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    body_deadline_seconds: float = Field(default=30.0, gt=0)
    commit_deadline_seconds: float = Field(default=20.0, gt=0)
    lines_per_second_limit: float = Field(default=2_000.0, gt=0)
    burst_lines_limit: int = Field(default=100_000, ge=1)
    # Of unpacked bytes. An agent says about 2 kB/s; the burst is for what it has spooled.
    bytes_per_second_limit: float = Field(default=128 * 1024.0, gt=0)
    burst_bytes_limit: int = Field(default=512 * 1024 * 1024, ge=1024)
    pending_bytes_limit: int = Field(default=256 * 1024 * 1024, ge=1024)
    pending_samples_limit: int = Field(default=400_000, ge=1)
    # Writes under way at once; and how many more of severe events.
    requests_limit: int = Field(default=1024, ge=1)
    urgent_requests_limit: int = Field(default=256, ge=1)
    requests_per_node_limit: int = Field(default=16, ge=1)
    retry_after_seconds: float = Field(default=5.0, gt=0)
    client_certificates: bool = False
    connections: DoorOptions = DoorOptions()
    admission: AdmissionOptions = AdmissionOptions()


class BatchKey(NamedTuple):
    """Names one batch of one sender: it is stored and judged once."""

    node: str
    instance: str
    sequence: int


class Accept(Protocol):
    """What the gateway hands samples to; the wait for it is over when they are durable."""

    def __call__(
        self, samples: list[Sample], node: str, arrival_ns: int, batch: BatchKey | None = None
    ) -> Awaitable[None]: ...


class Marks(Protocol):
    """Which batches are durable already. The store keeps them beside the samples."""

    def seen(self, batch: BatchKey) -> bool: ...


class TokenSource(Protocol):
    """Whom a token is for: a node, ``*``, or nobody (None)."""

    def node_of(self, token: str) -> str | None: ...


@dataclass(slots=True)
class GatewayCounts:
    """What came to the door since the start."""

    requests: int = 0
    samples: int = 0
    bytes: int = 0
    refused_lines: int = 0
    repeated_batches: int = 0
    unauthorized: int = 0
    pushed_back: int = 0
    failures: int = 0


class _Lease:
    """The bytes that one request holds, as far as they are known."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.size = 0

    def cover(self, size: int, exactly: bool = False) -> None:
        """Holds ``size`` bytes, or more if more are held; raises 429 when all are too many."""
        growth = size - self.size
        if growth <= 0 and not exactly:
            return
        if (
            growth > 0
            and self.gateway.pending_bytes + growth > self.gateway.options.pending_bytes_limit
        ):
            raise self.gateway.push_back("too many bytes under way")
        self.gateway.pending_bytes += growth
        self.size = size

    def release(self) -> None:
        """Holds nothing any more."""
        self.gateway.pending_bytes -= self.size
        self.size = 0


@dataclass
class Gateway:
    """Everything between a request and ``accept``."""

    accept: Accept
    tokens: TokenSource
    clock: Clock
    options: GatewayOptions = field(default_factory=GatewayOptions)
    marks: Marks | None = None
    rng: random.Random = field(default_factory=random.Random)
    counts: GatewayCounts = field(default_factory=GatewayCounts)

    def __post_init__(self) -> None:
        self.admission = Admission(self.options.admission)
        self._decoder = Decoder()
        self.rates = Rates(
            Rate(self.options.lines_per_second_limit, self.options.burst_lines_limit),
            Rate(self.options.bytes_per_second_limit, self.options.burst_bytes_limit),
        )
        self._in_flight: dict[BatchKey, asyncio.Future[None]] = {}
        self.turnstile = Turnstile(
            self.options.requests_limit,
            self.options.urgent_requests_limit,
            self.options.requests_per_node_limit,
            self.options.retry_after_seconds,
            self.rng,
        )
        self._gathering = Gathering()
        self._patience = Patience(self.options.commit_deadline_seconds)
        self.pending_bytes = 0
        self._pending_samples = 0

    async def write(self, request: web.Request) -> web.Response:
        """``POST /api/v2/write`` and ``POST /write``."""
        self.counts.requests += 1
        try:
            node = self._sender(request)
            # Most have no query, and to look for one costs as much as a line.
            precision = precision_in(request.query) if "?" in request.raw_path else "ns"
            batch = _batch(request.headers, node)
            if batch is not None and self.marks is not None and self.marks.seen(batch):
                self.counts.repeated_batches += 1
                return web.Response(status=204)
            if batch is not None and batch in self._in_flight:
                return await self._join(batch)
            urgent = URGENT_HEADER in request.headers
            wait_seconds = self.turnstile.enter(node, urgent, self.clock.monotonic())
            if wait_seconds:
                text = "too many writes under way"
                raise RefusedError(429, "too many requests", text, wait_seconds)
            try:
                return await self._take(request, node, precision, batch)
            finally:
                self.turnstile.leave(node)
        except RefusedError as refused:
            if refused.status in (429, 503):
                self.counts.pushed_back += 1
            if refused.status == 429 and request.path == V1_PATH:
                # InfluxDB 1 says 503, and Telegraf's output for it throws away what gets a 4xx.
                refused.status = 503
            return refused.response()

    async def ping(self, request: web.Request) -> web.Response:
        """``GET /ping``, as InfluxDB answers it. Needs no token and tells nothing."""
        return web.Response(
            status=204,
            headers={
                "X-Influxdb-Build": "tocsin",
                "X-Influxdb-Version": f"v2-tocsin-{__version__}",
            },
        )

    async def health(self, request: web.Request) -> web.Response:
        """``GET /health``, as InfluxDB 2 answers it."""
        full = self._pending_samples > self.options.pending_samples_limit
        state = ("fail", "more is under way than the store takes") if full else ("pass", "ready")
        body = {
            "name": "tocsin",
            "status": state[0],
            "message": state[1],
            "version": __version__,
            "checks": [],
        }
        return web.json_response(body, status=503 if full else 200)

    async def query(self, request: web.Request) -> web.Response:
        """``/query``: v1 clients begin with CREATE DATABASE; nothing else is answered."""
        try:
            self._sender(request)
        except RefusedError as refused:
            return refused.response()
        statement = request.query.get("q", "")
        if request.method == "POST" and not statement and 0 < (request.content_length or 0) < 4096:
            try:
                async with asyncio.timeout(self.options.body_deadline_seconds):
                    form = parse_qs((await request.read()).decode("utf-8", "replace"))
            except (TimeoutError, ConnectionError, web.RequestPayloadError):
                form = {}
            statement = form.get("q", [""])[0]
        if statement.strip().upper().startswith("CREATE DATABASE"):
            return web.json_response({"results": [{"statement_id": 0}]})
        text = "the gateway answers no queries; ask the store behind it"
        return RefusedError(400, "invalid", text).response()

    # The steps of a write.

    def _sender(self, request: web.Request) -> str:
        """The node that the request may write for; raises 401."""
        if self.options.client_certificates and (name := certificate_name(request)):
            return name
        authorization = request.headers.get("Authorization", "")
        token = token_in(authorization) if len(authorization) < 4096 else ""
        node = self.tokens.node_of(token) if token else None
        if node is None:
            self.counts.unauthorized += 1
            what = "unknown token" if token else "no token; send Authorization: Token ..."
            raise RefusedError(401, "unauthorized", what)
        return node

    async def _join(self, batch: BatchKey) -> web.Response:
        """The same batch is being stored already: its outcome is the answer."""
        self.counts.repeated_batches += 1
        try:
            async with asyncio.timeout(self.options.commit_deadline_seconds):
                await asyncio.shield(self._in_flight[batch])
        except Exception as error:
            raise self._unavailable(error) from error
        return web.Response(status=204)

    async def _take(
        self, request: web.Request, node: str, precision: str, batch: BatchKey | None
    ) -> web.Response:
        self._turn_away(node)
        size = max(request.content_length or 0, 1024)
        if size > self.options.body_limit_bytes:
            raise too_large(self.options.body_limit_bytes)
        lease = _Lease(self)
        try:
            lease.cover(size)
            body = await self._body(request, lease)
            if (
                len(body) < _INLINE_BYTES
                and self.turnstile.under_way > OTHERS_LEAST
                and URGENT_HEADER not in request.headers
            ):
                await self._gathering.others()
            arrival_ns = self.clock.now_ns()
            samples, problems = await self._read(body, node, precision, arrival_ns)
            self.counts.bytes += len(body)
            del body
            await self._store(samples, node, arrival_ns, batch)
        finally:
            lease.release()
        if problems:
            self.counts.refused_lines += len(problems)
            raise partial_write(problems, len(samples))
        return web.Response(status=204)

    async def _body(self, request: web.Request, lease: _Lease) -> bytes:
        """The body, unpacked; bounded before and after (a small gzip can be a large text)."""
        encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("gzip", "identity", ""):
            raise RefusedError(415, "invalid", f"content encoding {encoding[:40]!r}: use gzip")
        # The server may have unpacked the body already; then the bound after unpacking holds.
        limit = max(self.options.body_limit_bytes, self.options.unpacked_limit_bytes)
        try:
            if request.content.is_eof():  # it came with its headers, as an agent's mostly does
                body = request.content.read_nowait()
                if len(body) > limit:
                    raise too_large(limit)
                lease.cover(len(body))
            else:
                async with asyncio.timeout(self.options.body_deadline_seconds):
                    body = await rest_of(request.content, lease.cover, limit)
        except TimeoutError:
            raise RefusedError(408, "request timeout", "the body did not come in time") from None
        except (web.RequestPayloadError, ConnectionError) as error:
            raise RefusedError(400, "invalid", f"body: {error}") from error
        if not body.startswith(b"\x1f\x8b"):
            return body
        if len(body) > self.options.body_limit_bytes:
            raise too_large(self.options.body_limit_bytes)
        if len(body) > _INLINE_BYTES // 4:
            # What it will be is not known: it counts as the most that it may be, meanwhile.
            lease.cover(self.options.unpacked_limit_bytes)
            body = await asyncio.to_thread(unpacked, body, self.options.unpacked_limit_bytes)
        else:
            body = unpacked(body, self.options.unpacked_limit_bytes)
        lease.cover(len(body), exactly=True)
        return body

    async def _read(
        self, body: bytes, node: str, precision: str, arrival_ns: int
    ) -> tuple[list[Sample], list[LineProblem]]:
        """The samples that may enter, and the problems of the other lines."""
        # A line of two bytes becomes an object of two hundred: counted before it is read.
        lines = body.count(b"\n") + (not body.endswith(b"\n"))
        if lines > self.options.pending_samples_limit:
            text = f"over {self.options.pending_samples_limit} lines; send fewer at once"
            raise RefusedError(413, "request too large", text)
        self._turn_away(node)  # once more: its other requests may have spent the rest meanwhile
        self.rates.spend(node, lines, len(body), self.clock.monotonic())
        if len(body) > _INLINE_BYTES:
            decoded = await asyncio.to_thread(self._decoder.decode, body, arrival_ns, precision)
        else:
            decoded = self._decoder.decode(body, arrival_ns, precision)
        has_text = b'"' in body
        if (
            not decoded.problems
            and not has_text
            and len(decoded.samples) < _JUDGED_AT_ONCE
            and self.admission.knows_all(decoded.samples, node, arrival_ns)
        ):
            return decoded.samples, []
        kept: list[Sample] = []
        problems = decoded.problems
        foreign = bool(decoded.samples) and not problems
        for place, (number, sample) in enumerate(
            zip(decoded.numbers, decoded.samples, strict=True), 1
        ):
            if place % _JUDGED_AT_ONCE == 0:
                await asyncio.sleep(0)  # a large body must not hold up everybody else's
            refusal = self.admission.judge(sample, node, arrival_ns)
            if refusal is None and has_text:
                refusal = self.admission.judge_text(sample)
            if refusal is None:
                kept.append(cut(sample) if has_text else sample)
                foreign = False
            else:
                foreign = foreign and refusal.foreign
                series = ",".join([sample.measurement, *(f"{k}={v}" for k, v in sample.tags)])
                problems.append(LineProblem(number, series[:200], refusal.problem))
        if foreign and not kept:
            # Not a matter of single lines: the sender's name or token is wrong. It keeps them.
            self.counts.refused_lines += len(problems)
            raise RefusedError(403, "forbidden", problems[0].problem)
        return kept, problems

    async def _store(
        self, samples: list[Sample], node: str, arrival_ns: int, batch: BatchKey | None
    ) -> None:
        if not samples and batch is None:
            return
        # Once more: the same batch may have come on another connection while this one was read.
        if batch is not None and batch in self._in_flight:
            await self._join(batch)
            return
        if batch is not None and self.marks is not None and self.marks.seen(batch):
            self.counts.repeated_batches += 1
            return
        if self._pending_samples + len(samples) > self.options.pending_samples_limit:
            raise self.push_back("too many samples under way")
        # Apart from the wait for it: a sender that hangs up must not undo what is half stored.
        stored = asyncio.get_running_loop().create_future()
        self._pending_samples += len(samples)
        try:
            work = asyncio.ensure_future(self.accept(samples, node, arrival_ns, batch))
        except Exception as error:
            self._pending_samples -= len(samples)
            raise self._unavailable(error) from error
        if batch is not None:
            self._in_flight[batch] = work
        work.add_done_callback(partial(self._settled, len(samples), batch, stored))
        self._patience.bound(stored)
        try:
            await stored
        except Exception as error:
            raise self._unavailable(error) from error
        self.counts.samples += len(samples)

    def _settled(
        self,
        samples: int,
        batch: BatchKey | None,
        stored: asyncio.Future[None],
        work: asyncio.Future[None],
    ) -> None:
        """What was handed on is durable, or is not and never will be."""
        self._pending_samples -= samples
        if batch is not None:
            self._in_flight.pop(batch, None)
        if work.cancelled():
            stored.cancel()
            return
        error = work.exception()
        if stored.done():  # nobody waits any more
            return
        if error is None:
            stored.set_result(None)
        else:
            stored.set_exception(error)

    # Bounds and answers.

    def _turn_away(self, node: str) -> None:
        """Raises 429 for a sender that has said more than its share."""
        wait_seconds = self.rates.wait(node, self.clock.monotonic())
        if wait_seconds:
            text = f"node {node} sends too many lines or bytes"
            raise RefusedError(429, "too many requests", text, wait_seconds)

    def loud(self) -> str:
        """Which senders are over their share or a budget now, in words; empty: none."""
        told = [f"{node} sends too much" for node in self.rates.loud(self.clock.monotonic())]
        told += [f"{node or 'a relay'}: {why}" for node, why in sorted(self.admission.cut.items())]
        more = len(told) - LOUD_TOLD_LIMIT
        return "; ".join(told[:LOUD_TOLD_LIMIT]) + (f"; and {more} more" if more > 0 else "")

    def push_back(self, why: str) -> RefusedError:
        """The answer to one who must come again later."""
        wait = self.options.retry_after_seconds * self.rng.uniform(0.5, 1.5)
        return RefusedError(429, "too many requests", why, wait)

    def _unavailable(self, error: Exception) -> RefusedError:
        self.counts.failures += 1
        wait = self.options.retry_after_seconds * self.rng.uniform(0.5, 1.5)
        if isinstance(error, StoreUnavailableError):
            return RefusedError(503, "unavailable", str(error), wait)
        if isinstance(error, TimeoutError):
            return RefusedError(503, "unavailable", "the store did not answer in time", wait)
        log.error("accept failed: %s: %s", type(error).__name__, error, exc_info=error)
        return RefusedError(500, "internal error", "the head failed; see its journal", wait)


def routes(gateway: Gateway) -> list[web.RouteDef]:
    """The handlers for aiohttp.

    Serve them with ``web.AppRunner(app, auto_decompress=False)``: then the bounds hold
    before unpacking too, in every version of aiohttp.
    """
    return [
        web.post("/api/v2/write", gateway.write),
        web.post(V1_PATH, gateway.write),
        web.post("/query", gateway.query),
        web.get("/query", gateway.query),
        web.get("/ping", gateway.ping),
        web.get("/health", gateway.health),
    ]


def _batch(headers: Mapping[str, str], node: str) -> BatchKey | None:
    text = headers.get(BATCH_HEADER)
    if text is None:
        return None
    found = _BATCH_KEY.fullmatch(text)
    if found is None:
        raise RefusedError(400, "invalid", f"{BATCH_HEADER} must look like INSTANCE:NUMBER")
    return BatchKey(node, found[1], int(found[2]))
