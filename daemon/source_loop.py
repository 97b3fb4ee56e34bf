"""One source's turns: read in its own thread, handed on whatever happened.

Used by the agent for its sources and by the head for its own. One source that hangs delays no
other and is not started twice: its ``source`` reading then says ``hung`` and for how long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, runtime_checkable

from collectors.sample import Batch, Cycle, Sample, Source, source_reading
from daemon.budget import SeriesBudget
from daemon.schedule import OwnThread

log = logging.getLogger("tocsin.sources")

# From here on an event is sent at once (2 = error).
URGENT_SEVERITY = 2.0
# A source that has not come back this long after its own deadline counts as hung.
DEADLINE_MARGIN_SECONDS = 1.0
# A good source's reading is sent at most so often, however short its period.
READING_PERIOD_SECONDS = 10.0
# So long a source that can wait for news waits before it is asked anyway.
WAIT_SECONDS = 2.0
_LEAST_PAUSE_SECONDS = 0.01
_WAKE_LOOKS = 100


class Outlet(Protocol):
    """Where a loop hands on what its source said."""

    async def add(self, samples: Sequence[Sample]) -> None:
        """Samples that can wait for company."""
        ...

    async def now(
        self, samples: Sequence[Sample], urgent: bool, saved: Callable[[], None] | None
    ) -> None:
        """Samples that go at once; ``saved`` is called when they cannot be lost any more."""
        ...


@runtime_checkable
class Waiting(Protocol):
    """A source that can wait for news by itself."""

    def wait(self, seconds: float) -> None:
        """Returns when there may be news, or after ``seconds``."""
        ...

    def wake(self) -> None:
        """Ends a wait under way, and all later ones."""
        ...


class DirectOutlet:
    """The head's outlet: straight to its store and watch, without a spool between.

    ``keep`` answers whether the samples are durable; ``wake`` has everything judged at once. What
    its sources read beyond the budget of series is left out, counted and told.
    """

    def __init__(
        self,
        keep: Callable[[Sequence[Sample]], Awaitable[bool]],
        wake: Callable[[], None],
        now_ns: Callable[[], int],
    ) -> None:
        self._keep = keep
        self._wake = wake
        self.budget = SeriesBudget(now_ns)

    async def add(self, samples: Sequence[Sample]) -> None:
        """Keeps samples."""
        await self._keep(self.budget.within(samples))

    async def now(
        self, samples: Sequence[Sample], urgent: bool, saved: Callable[[], None] | None
    ) -> None:
        """Keeps samples; ``saved`` once they are durable; an urgent one is judged at once."""
        if await self._keep(self.budget.within(samples)) and saved is not None:
            await asyncio.to_thread(saved)
        if urgent:
            self._wake()


class SourceLoop:
    """One source's turns: reads it in its own thread and hands on what it said."""

    def __init__(
        self, source: Source, node: str, outbox: Outlet, now_ns: Callable[[], int]
    ) -> None:
        self.source = source
        self.node = node
        self.outbox = outbox
        self.now_ns = now_ns
        self.cycle = Cycle(source, node)
        self.thread = OwnThread(f"tocsin-{source.name}")
        self.hung_since_seconds: float | None = None
        self._reading_sent_seconds = float("-inf")
        self._late: asyncio.Task[None] | None = None

    @property
    def deadline_seconds(self) -> float:
        """When a turn is given up: the source's own deadline and a little."""
        return self.source.deadline_seconds + DEADLINE_MARGIN_SECONDS

    async def turn(self) -> None:
        """One turn, called every period; ends by the deadline whatever the source does."""
        if self.thread.busy or (self._late is not None and not self._late.done()):
            await self.outbox.add([self._hung_reading()])
            return
        started = time.monotonic()
        future = self.thread.submit(self._read)
        limit_seconds = self.deadline_seconds + (WAIT_SECONDS if self.waits else 0.0)
        done, _ = await asyncio.wait({future}, timeout=limit_seconds)
        if done:
            await self._hand_on(future.result())
            return
        self.hung_since_seconds = started
        log.error("source %s hangs", self.source.name)
        await self.outbox.add([self._hung_reading()])
        self._late = asyncio.ensure_future(self._await_late(future))

    @property
    def waits(self) -> bool:
        """Whether the source can wait for news by itself, instead of being asked each period."""
        return isinstance(self.source, Waiting)

    async def follow(self) -> None:
        """Turn after turn, of a source that waits for news; runs until it is cancelled.

        News is read at once, but no more often than each period.
        """
        try:
            while True:
                begin = time.monotonic()
                try:
                    await self.turn()
                except Exception:  # one bad turn must not end the watch
                    log.exception("a turn of source %s failed", self.source.name)
                left = self.source.period_seconds - (time.monotonic() - begin)
                await asyncio.sleep(max(left, _LEAST_PAUSE_SECONDS))
        finally:
            if isinstance(self.source, Waiting):
                self.source.wake()
            for _ in range(_WAKE_LOOKS):  # it can be closed only when its thread is back
                if not self.thread.busy:
                    break
                await asyncio.sleep(_LEAST_PAUSE_SECONDS)

    def _read(self) -> Batch:
        if isinstance(self.source, Waiting):
            with contextlib.suppress(OSError):
                self.source.wait(WAIT_SECONDS)
        return self.cycle.run(self.now_ns())

    async def _await_late(self, future: asyncio.Future[Batch]) -> None:
        """What a hung source says when it comes back is late, but true of its own time."""
        batch = await future
        log.warning("source %s is back", self.source.name)
        self.hung_since_seconds = None
        await self._hand_on(batch)

    def _hung_reading(self) -> Sample:
        since = self.hung_since_seconds
        hung_seconds = 0.0 if since is None else time.monotonic() - since
        return source_reading(
            self.node,
            self.source.name,
            self.now_ns(),
            up=False,
            duration_seconds=hung_seconds,
            age_seconds=self.cycle.age_seconds(),
            fault=f"hung for {hung_seconds:.0f} s",
        )

    async def _hand_on(self, batch: Batch) -> None:
        for problem in batch.problems[:20]:
            log.warning("source %s: %s: %s", self.source.name, problem.problem, problem.line[:200])
        samples = list(batch.samples)
        readings = [s for s in samples if s.measurement == "source"]
        others = [s for s in samples if s.measurement != "source"]
        if not others and batch.up and not self._reading_due():
            return
        urgent = [s for s in others if is_urgent(s)]
        saved = getattr(self.source, "acknowledge", None)
        if urgent or (saved is not None and others):
            # A source with a cursor may move it only when what it read cannot be lost, and
            # must not be read again before; so its batch does not wait for company.
            await self.outbox.now(others, bool(urgent), saved)
            others = []
        await self.outbox.add(others + readings)

    def _reading_due(self) -> bool:
        now = time.monotonic()
        if now - self._reading_sent_seconds < READING_PERIOD_SECONDS - 0.05:
            return False
        self._reading_sent_seconds = now
        return True

    def close(self) -> None:
        """Lets go of the thread and, unless it is held inside, of the source."""
        self.thread.close()
        if not self.thread.busy:
            self.source.close()


def is_urgent(reading: Sample) -> bool:
    """Whether ``reading`` must reach the head at once."""
    return reading.measurement == "event" and (reading.number("severity") or 0.0) >= URGENT_SEVERITY
