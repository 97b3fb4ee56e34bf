"""The agent: reads its sources, each on its own, and sends what they say to the head.

Every source has a thread, a period and a deadline of its own. One that hangs delays no
other and is not started twice: its ``source`` reading then says ``hung`` and for how long.
What was read is spooled to disk and sent from there. An event of severity 2 or more goes
at once, before anything that waits; all else goes in batches.

Nothing here imports numpy, pyarrow or scikit-learn: the agent shares its node with a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import random
import resource
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from collectors.lines import encode
from collectors.sample import Sample, Source, sample, source_reading
from daemon.agent.acknowledge import InOrder
from daemon.agent.lane import Lane
from daemon.agent.options import AgentOptions
from daemon.agent.spool import Spool
from daemon.agent.uplink import Uplink, client_tls
from daemon.schedule import OwnThread, Schedule
from daemon.source_loop import READING_PERIOD_SECONDS, SourceLoop

log = logging.getLogger("tocsin.agent")

# Batches are cut at this many samples, far below what any gateway refuses.
BATCH_SAMPLES = 5_000
# A source may take so long to write down how far it was read before others go on.
ACKNOWLEDGE_DEADLINE_SECONDS = 3.0


@dataclass
class Outbox:
    """Turns samples into batches in two lanes: ``urgent``, which is sent first, and ``normal``."""

    normal: Lane
    urgent: Lane
    now_ns: Callable[[], int]
    pending: list[Sample] = field(default_factory=list)
    on_batch: Callable[[bool], None] = lambda urgent: None

    def __post_init__(self) -> None:
        self._order: dict[Callable[[], None], InOrder] = {}
        self._teller = OwnThread("tocsin-acknowledge")
        self._owed: deque[Callable[[], None]] = deque()

    async def add(self, samples: Sequence[Sample]) -> None:
        """Keeps samples for the next batch; cuts one when enough are there."""
        self.pending.extend(samples)
        if len(self.pending) >= BATCH_SAMPLES:
            await self.flush()

    async def flush(self) -> None:
        """Puts what is pending into the normal spool."""
        samples, self.pending = self.pending, []
        for start in range(0, len(samples), BATCH_SAMPLES):
            await self._keep(samples[start : start + BATCH_SAMPLES], urgent=False)

    async def now(
        self, samples: Sequence[Sample], urgent: bool, saved: Callable[[], None] | None
    ) -> None:
        """One batch of ``samples``, at once; ``saved`` is called when it cannot be lost."""
        durable, key = await self._keep(samples, urgent)
        if saved is None:
            return
        order = self._order.setdefault(saved, InOrder())
        if told := order.kept(durable, key):
            self._owed.extend([saved] * told)
            await self._settle()

    def settled(self, key: str) -> None:
        """Memory holds this batch no longer: the head has it, or it was dropped and counted."""
        for saved, order in self._order.items():
            self._owed.extend([saved] * order.settled(key))
        self._next_owed()

    async def _settle(self) -> None:
        """Tells sources that their batches are safe, and waits for a moment until they know."""
        told = self._next_owed()
        if told is not None:
            await asyncio.wait({told}, timeout=ACKNOWLEDGE_DEADLINE_SECONDS)

    def _next_owed(self) -> asyncio.Future[None] | None:
        # In a thread of its own: a source writes its cursor then, and a disk can hang.
        if not self._owed or self._teller.busy:
            return None
        told = self._teller.submit(self._owed.popleft())
        told.add_done_callback(self._told)
        return told

    def _told(self, told: asyncio.Future[None]) -> None:
        if not told.cancelled() and (error := told.exception()) is not None:
            log.error("a source could not note how far it was read: %s", error)
        self._next_owed()

    async def _keep(self, samples: Sequence[Sample], urgent: bool) -> tuple[bool, str]:
        lane = self.urgent if urgent else self.normal
        body = await asyncio.to_thread(_packed, samples)
        if not body:
            return True, ""
        kept = await lane.keep(body, len(samples), self.now_ns())
        self.on_batch(urgent)
        return kept


def _packed(samples: Sequence[Sample]) -> bytes:
    body = encode(samples)
    return gzip.compress(body, 6) if body else b""


class Agent:
    """The whole agent of one node."""

    def __init__(
        self,
        options: AgentOptions,
        sources: Sequence[Source],
        now_ns: Callable[[], int] = time.time_ns,
        rng: random.Random | None = None,
    ) -> None:
        self.options = options
        self.now_ns = now_ns
        self.rng = rng or random.Random()  # noqa: S311 (spreads load, guards nothing)
        spool = options.spool
        # An eighth of the room is for urgent batches alone: a full spool must not cost them.
        self.normal = Spool(
            spool.directory / "normal", spool.limit_bytes * 7 // 8, spool.limit_age_seconds
        )
        self.urgent = Spool(
            spool.directory / "urgent", spool.limit_bytes // 8, spool.limit_age_seconds
        )
        self.lanes = (Lane(self.urgent), Lane(self.normal))
        self.outbox = Outbox(self.lanes[1], self.lanes[0], now_ns)
        for lane in self.lanes:
            lane.on_settled = self.outbox.settled
        self.loops = [SourceLoop(s, options.node, self.outbox, now_ns) for s in sources]
        self.schedule = Schedule(rng=self.rng)
        self.uplinks: tuple[Uplink, ...] = ()
        self._followers: list[asyncio.Future[None]] = []
        self._started_seconds = time.monotonic()

    async def run(self, stop: asyncio.Event, ready: Callable[[], None] = lambda: None) -> None:
        """Runs until ``stop`` is set; then sends, within seconds, what it can."""
        options = self.options.uplink
        connector = aiohttp.TCPConnector(limit=4, keepalive_timeout=75)
        async with aiohttp.ClientSession(connector=connector) as session:
            self.uplinks = self._make_uplinks(session)
            self.outbox.on_batch = self._wake
            senders = [asyncio.ensure_future(uplink.run()) for uplink in self.uplinks]
            self._schedule(options.batch_seconds)
            self.schedule.start()
            ready()
            await stop.wait()
            await self._end(senders)

    def _make_uplinks(self, session: aiohttp.ClientSession) -> tuple[Uplink, ...]:
        options = self.options.uplink
        tls = client_tls(options)
        quarantine = self.options.spool.directory / "quarantine.lines"
        lanes = (
            (self.lanes[0], options.urgent_backoff_limit_seconds, 0.0),
            (self.lanes[1], options.backoff_limit_seconds, 1 / options.drain_batches_per_second),
        )
        return tuple(
            Uplink(
                lane,
                session,
                options,
                quarantine,
                self.now_ns,
                backoff_limit_seconds=limit_seconds,
                pause_seconds=pause_seconds,
                urgent=lane is self.lanes[0],
                rng=self.rng,
                tls=tls,
            )
            for lane, limit_seconds, pause_seconds in lanes
        )

    def _schedule(self, batch_seconds: float) -> None:
        for loop in self.loops:
            period = loop.source.period_seconds
            if loop.waits:
                self._followers.append(asyncio.ensure_future(loop.follow()))
                continue
            # The job's own deadline is only a net: a turn ends by itself.
            self.schedule.every(
                loop.source.name,
                period,
                loop.deadline_seconds + 30,
                loop.turn,
                jitter_seconds=min(1.0, period / 4),
            )
        # A node's place within the period is random: a fleet must not send in step.
        self.schedule.every("report", READING_PERIOD_SECONDS, 10, self._report)
        self.schedule.every(
            "flush", batch_seconds, 30, self.outbox.flush, jitter_seconds=batch_seconds
        )

    def _wake(self, urgent: bool) -> None:
        self.uplinks[0 if urgent else 1].wake()

    async def _report(self) -> None:
        await self.outbox.add([self.reading()])

    def reading(self) -> Sample:
        """The agent's own ``source`` reading: what waits, what was lost, what it costs."""
        batches = size = dropped = sent = quarantined = lost = 0
        faults: list[str] = []
        last_good = None
        for lane in self.lanes:
            waiting = lane.waiting()
            batches, size = batches + waiting[0], size + waiting[1]
            dropped += lane.dropped_samples
            sent += lane.sent_samples
            lost += lane.spool.counts.lost_bytes
            faults.append(lane.fault())
        for uplink in self.uplinks:
            quarantined += uplink.counts.quarantined_lines
            faults.append(uplink.counts.fault)
            good = uplink.counts.last_good_seconds
            last_good = good if last_good is None else max(last_good, good or last_good)
        if dropped:
            faults.append(f"{dropped} samples dropped: the spool's bounds were reached")
        if lost:
            faults.append(f"{lost} bytes of the spool could not be read from the disk and are lost")
        usage = resource.getrusage(resource.RUSAGE_SELF)
        since = self._started_seconds if last_good is None else last_good
        reading = source_reading(
            self.options.node,
            "agent",
            self.now_ns(),
            up=True,
            duration_seconds=0.0,
            age_seconds=max(0.0, time.monotonic() - since),
            fault="; ".join(dict.fromkeys(fault for fault in faults if fault)),
        )
        own = {
            "spool_batches": float(batches),
            "spool_bytes": float(size),
            "dropped_samples_total": float(dropped),
            "lost_spool_bytes_total": float(lost),
            "quarantined_lines_total": float(quarantined),
            "sent_samples_total": float(sent),
            "cpu_seconds_total": round(usage.ru_utime + usage.ru_stime, 3),
            "resident_bytes": usage.ru_maxrss * 1024.0,
        }
        return sample("source", reading.time_ns, {**reading.fields, **own}, **dict(reading.tags))

    async def _end(self, senders: Sequence[asyncio.Future[None]]) -> None:
        for follower in self._followers:
            follower.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)
        hung = await self.schedule.stop(grace_seconds=2.0)
        if hung:
            log.warning("left behind: %s", ", ".join(hung))
        for loop in self.loops:
            loop.close()
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        await self.outbox.flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3.0):
                for uplink in self.uplinks:
                    await uplink.drain()
        for lane in self.lanes:
            lane.close()


async def run_agent(
    options: AgentOptions, sources: Sequence[Source], ready: Callable[[], None] = lambda: None
) -> None:
    """Runs an agent until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Agent(options, sources).run(stop, ready)
