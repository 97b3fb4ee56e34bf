"""GPUs of nodes that run dcgm-exporter, scraped from the head: such a node needs no agent.

Thousands of exporters over kept connections, each under a deadline of its own. An exporter that
does not answer is asked less and less often and from a lane of its own, so that it delays no
other. Every exporter has a ``source`` reading of its own, whatever happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from pydantic import Field

from collectors.events import EVENT_METRICS, spaced
from collectors.gpu.dcgm_exporter_text import board_samples, device_of, scraped
from collectors.gpu.dcgm_xids import Xids
from collectors.gpu.fabric import FabricWatch
from collectors.gpu.findings import Findings
from collectors.gpu.metrics import GPU_METRICS
from collectors.inventory import Inventory
from collectors.options import Options as SourceOptions
from collectors.sample import (
    Batch,
    Context,
    Problem,
    Sample,
    SourceUnavailable,
    clip,
    source_reading,
)
from collectors.slurm.hostlist import expand
from collectors.told import Told

NAME = "dcgm_exporters"
# The ``source`` tag of the reading of each single exporter.
TARGET_NAME = "dcgm_exporter"
METRICS = (*GPU_METRICS, *EVENT_METRICS)

STATE_FILE = "dcgm-exporter-xids.json"
PROBLEMS_MOST = 200


class Options(SourceOptions):
    """Settings of the exporters' source.

    ``nodes`` are Slurm host lists (``gpu[001-512]``) whose exporter is at ``url`` with ``{node}``
    replaced; ``targets`` maps further nodes to their full URL. ``authorization_file`` holds the
    value of the Authorization header, ``ca_file`` the authority of the exporters' certificates.
    """

    period_seconds: float = Field(default=15.0, gt=0, le=86_400)
    deadline_seconds: float = Field(default=12.0, gt=0, le=3_600)
    nodes: tuple[str, ...] = ()
    url: str = Field(default="http://{node}:9400/metrics", pattern=r"^https?://.*\{node\}")
    targets: dict[str, str] = Field(default_factory=dict)
    timeout_seconds: float = Field(default=5.0, gt=0, le=300)
    concurrency: int = Field(default=128, ge=1, le=4_096)
    body_bytes: int = Field(default=8 * 1024 * 1024, ge=1024)
    pause_most_seconds: float = Field(default=300.0, gt=0)
    inventory_period_seconds: float = Field(default=86_400.0, gt=0)
    authorization_file: str = ""
    ca_file: str = ""


def make(options: Options, context: Context) -> DcgmExporters:
    """The source of all exporters."""
    return DcgmExporters(options, context)


@dataclass
class _Target:
    """One exporter between rounds. ``last_good`` and ``not_before`` are monotonic seconds."""

    node: str
    url: str
    inventory: Inventory
    failures: int = 0
    not_before: float = 0.0
    last_good: float | None = None
    fault: str = ""
    duration_seconds: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    health: Told = field(default_factory=lambda: Told("DCGM calls it well again"))
    fabric: FabricWatch = field(init=False)

    def __post_init__(self) -> None:
        self.fabric = FabricWatch(self.node)


class DcgmExporters:
    """Scrapes all exporters, one round a cycle. See the module's words."""

    name = NAME

    def __init__(
        self,
        options: Options,
        context: Context,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.period_seconds = options.period_seconds
        self.deadline_seconds = options.deadline_seconds
        self._options = options
        self._context = context
        self._monotonic = monotonic
        self._started = monotonic()
        self._targets = [
            _Target(node, url, Inventory(node, options.inventory_period_seconds))
            for node, url in _urls(options).items()
        ]
        self._xids = Xids(context.state_dir / STATE_FILE)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._http: aiohttp.ClientSession | None = None

    def collect(self, now_ns: int) -> Batch:
        """One round over the exporters that are due."""
        if not self._targets:
            raise SourceUnavailable("no exporter is configured: set nodes or targets")
        header = self._authorization()
        loop = self._running()
        round_ = asyncio.run_coroutine_threadsafe(self._round(now_ns, header), loop)
        try:
            round_.result(timeout=self._options.deadline_seconds + 5.0)
        except LateError:
            round_.cancel()
            raise SourceUnavailable("the round did not end by its deadline") from None
        # A kill before this is kept may lose an Xid; told again after hours of a head that was
        # away it would be taken for a new one, of a node that was mended meanwhile.
        self._xids.save()
        return self._batch(now_ns)

    def close(self) -> None:
        """Ends connections and thread. May be called twice."""
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        with contextlib.suppress(LateError, RuntimeError):
            asyncio.run_coroutine_threadsafe(self._leave(), loop).result(timeout=3.0)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(timeout=3.0)

    # ---- in the loop's thread ----------------------------------------------------------------

    async def _round(self, now_ns: int, header: Mapping[str, str]) -> None:
        now = self._monotonic()
        lanes = {
            True: asyncio.Semaphore(self._options.concurrency),
            False: asyncio.Semaphore(max(4, self._options.concurrency // 4)),
        }
        for target in self._targets:
            # Events of a round that nobody waited for: they are told once, so now.
            target.samples = [one for one in target.samples if one.measurement == "event"]
            target.problems = []
        due = [target for target in self._targets if target.not_before <= now]
        if self._http is None:
            self._http = self._session()
        tasks = [
            asyncio.create_task(self._visit(target, lanes[not target.failures], now_ns, header))
            for target in due
        ]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=self._options.deadline_seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _visit(
        self, target: _Target, lane: asyncio.Semaphore, now_ns: int, header: Mapping[str, str]
    ) -> None:
        fault = "no answer before the end of the round"
        begin = self._monotonic()
        try:
            async with lane:
                begin = self._monotonic()
                text = await self._get(target.url, header)
            self._take(target, text, now_ns)
            fault = ""
        except _Unanswered as error:
            fault = str(error)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            fault = f"{type(error).__name__}: {error}"
        finally:
            self._note(target, clip(fault, 300), begin)

    def _note(self, target: _Target, fault: str, begin: float) -> None:
        now = self._monotonic()
        target.fault, target.duration_seconds = fault, now - begin
        if not fault:
            target.failures, target.last_good, target.not_before = 0, now, 0.0
            return
        target.failures += 1
        # The first failure is tried again at the next round, then each pause is twice as long.
        pause = self._options.period_seconds * 2.0 ** min(target.failures - 1, 20)
        if target.failures > 1:
            target.not_before = now + min(pause, self._options.pause_most_seconds)

    async def _get(self, url: str, header: Mapping[str, str]) -> bytes:
        assert self._http is not None
        limit = self._options.body_bytes
        try:
            async with self._http.get(url, headers=header, allow_redirects=False) as answer:
                if answer.status != 200:
                    raise _Unanswered(f"HTTP {answer.status} {clip(answer.reason or '', 60)}")
                body = bytearray()
                async for piece in answer.content.iter_chunked(65_536):
                    body += piece
                    if len(body) > limit:
                        raise _Unanswered(f"more than {limit} bytes")
                return bytes(body)
        except TimeoutError:
            seconds = self._options.timeout_seconds
            raise _Unanswered(f"no answer within {seconds:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise _Unanswered(f"no connection: {error.os_error.strerror or error}") from None

    def _take(self, target: _Target, text: bytes, now_ns: int) -> None:
        findings = Findings()
        boards = scraped(text, findings)
        if not boards:
            raise _Unanswered("an answer without any GPU")
        hosts = sorted({one.host for one in boards if one.host})
        if len(hosts) > 1:
            shown = ", ".join(hosts[:3])
            raise _Unanswered(f"GPUs of several hosts in one answer ({shown}): whose, is not known")
        node = target.node
        health: list[Sample] = []
        for one in boards:
            for told in board_samples(one, node, now_ns, findings):
                if told.measurement == "event":
                    health.append(told)
                else:
                    findings.add(told)
            for told in self._xids.new(one, node, now_ns):
                findings.add(told)
        read = {device_of(one) for one in boards}
        for told in target.health.changes(health, read, now_ns):
            findings.add(told)
        drivers = [one.driver for one in boards if one.driver]
        system = {"count": len(boards), "driver": drivers[0] if drivers else ""}
        present = {one.board.index: one.board for one in boards}
        states = {
            one.board.index: one.values.fabric for one in boards if one.values.fabric is not None
        }
        for told in target.fabric.events(states, present, now_ns):
            findings.add(told)
        samples, target.problems = findings.close()
        target.samples += samples
        target.samples += target.inventory.events(system, present, True, now_ns)

    def _session(self) -> aiohttp.ClientSession:
        tls: ssl.SSLContext | bool = True
        if self._options.ca_file:
            tls = ssl.create_default_context(cafile=self._options.ca_file)
        connector = aiohttp.TCPConnector(
            limit=0,
            limit_per_host=2,
            keepalive_timeout=min(300.0, self._options.period_seconds * 2),
            ttl_dns_cache=300,
            ssl=tls,
        )
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=self._options.timeout_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def _leave(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    # ---- in the caller's thread --------------------------------------------------------------

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            if self._options.ca_file and not Path(self._options.ca_file).is_file():
                raise SourceUnavailable(f"ca_file {self._options.ca_file} cannot be read")
            loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run_loop, args=(loop,), name=NAME, daemon=True)
            self._thread.start()
            self._loop = loop
        return self._loop

    def _authorization(self) -> dict[str, str]:
        path = self._options.authorization_file
        if not path:
            return {}
        try:
            value = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SourceUnavailable(f"authorization_file {path} cannot be read: {error}") from None
        return {"Authorization": value}

    def _refuse_shared(self) -> None:
        """A GPU is in one node: targets that show the same one (two names of one exporter, a load
        balancer before several) are not believed, for its fault would drain the wrong node."""
        owners: dict[str, set[str]] = {}
        for target in self._targets:
            for one in target.samples:
                if uuid := one.tag("uuid"):
                    owners.setdefault(uuid, set()).add(target.node)
        for target in self._targets:
            shared = {uuid for one in target.samples if (uuid := one.tag("uuid"))}
            others = {node for uuid in shared for node in owners[uuid]} - {target.node}
            if others:
                target.samples = []
                target.fault = clip(
                    f"shows GPUs that {', '.join(sorted(others)[:3])} shows too: in which node "
                    "they are is not known",
                    300,
                )

    def _batch(self, now_ns: int) -> Batch:
        now = self._monotonic()
        samples: list[Sample] = []
        problems: list[Problem] = []
        self._refuse_shared()
        for target in self._targets:
            samples += target.samples
            target.samples = []
            problems += [
                Problem(f"{target.node}: {one.problem}", one.line) for one in target.problems
            ]
            since = self._started if target.last_good is None else target.last_good
            samples.append(
                source_reading(
                    target.node,
                    TARGET_NAME,
                    now_ns,
                    up=not target.fault,
                    duration_seconds=target.duration_seconds,
                    age_seconds=now - since,
                    fault=target.fault,
                )
            )
        bad = [target for target in self._targets if target.fault]
        fault = ""
        if bad:
            first = bad[0]
            fault = (
                f"{len(bad)} of {len(self._targets)} exporters do not answer, "
                f"{first.node}: {first.fault}"
            )
        left = len(problems) - PROBLEMS_MOST
        if left > 0:
            problems = [*problems[:PROBLEMS_MOST], Problem(f"{left} more problems")]
        heard = len(bad) < len(self._targets)
        return Batch(NAME, tuple(spaced(samples)), tuple(problems), heard, fault)


class _Unanswered(Exception):
    """The exporter gave no metrics; the text says why."""


def _urls(options: Options) -> dict[str, str]:
    urls = {
        node: options.url.replace("{node}", node)
        for names in options.nodes
        for node in expand(names)
    }
    return {**urls, **options.targets}


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
