"""Runs jobs each on its own period, under its own deadline; one hung job delays no other.

APScheduler is the timer and nothing more. A job that does not end by its deadline is
cancelled; when it does not heed that either, it is *hung*: it is not started again before
it has ended, its missed runs are counted, and every other job goes on. Blocking work gets
a thread of the job's own (:class:`OwnThread`), for a shared pool is full as soon as a few
calls never return.

APScheduler counts by the wall clock. When that steps (a machine without a clock battery
meets its time server), the jobs are moved along, so that an hour's step back does not
silence a job for an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import queue
import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

log = logging.getLogger("tocsin.schedule")

Result = TypeVar("Result")

# A cancelled coroutine may tidy up for so long before it counts as hung.
CANCEL_GRACE_SECONDS = 0.5
# However fast simulated time runs, work takes the real time that it takes.
LEAST_DEADLINE_SECONDS = 10.0
_CLOCK_CHECK_SECONDS = 1.0
_CLOCK_STEP_SECONDS = 2.0


@dataclass(slots=True)
class JobState:
    """How one job fares: for status pages and the ``source`` readings."""

    name: str
    period_seconds: float
    deadline_seconds: float
    runs: int = 0
    skipped: int = 0
    overruns: int = 0
    failures: int = 0
    fault: str = ""
    started_seconds: float | None = None
    finished_seconds: float | None = None

    def hung_seconds(self, now_seconds: float) -> float:
        """How long past its deadline the present run is; 0 when it is not."""
        if self.started_seconds is None:
            return 0.0
        return max(0.0, now_seconds - self.started_seconds - self.deadline_seconds)


class OwnThread:
    """One daemon thread that runs one call at a time; a call that never returns blocks it only.

    A daemon thread: the process must be able to end while a driver holds a call.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy = False

    @property
    def busy(self) -> bool:
        """Whether the last call has not returned yet."""
        return self._busy

    def submit(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Starts ``function``; the future belongs to the running loop. Not while busy."""
        if self._busy:
            raise RuntimeError(f"{self.name} is busy")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._busy = True

        def call() -> None:
            try:
                outcome, error = function(), None
            except BaseException as raised:
                outcome, error = None, raised
            # The loop is closed when the process ends meanwhile: nobody waits any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._finish, future, outcome, error)

        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self._thread.start()
        self._calls.put(call)
        return future

    def close(self) -> None:
        """Ends the thread once its call has returned. Does not wait."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def _finish(
        self, future: asyncio.Future[Any], outcome: Any, error: BaseException | None
    ) -> None:
        self._busy = False
        if future.cancelled():
            return
        if error is None:
            future.set_result(outcome)
        elif isinstance(error, Exception):
            future.set_exception(error)
        else:
            future.set_exception(RuntimeError(repr(error)))


class _Every(BaseTrigger):  # type: ignore[misc]
    """Fires every ``period``, and steps over missed turns without counting them one by one.

    APScheduler's own interval lists every missed turn: a clock that jumps from 1970 to today
    at boot would have it build a list of billions.
    """

    def __init__(self, period: datetime.timedelta) -> None:
        self.period = period

    def get_next_fire_time(
        self, previous: datetime.datetime | None, now: datetime.datetime
    ) -> datetime.datetime:
        if previous is None:
            return now
        missed = max(0, (now - previous) // self.period)
        return previous + (missed + 1) * self.period


class Schedule:
    """The jobs of one process. ``speed`` divides every period and deadline (the demo)."""

    def __init__(self, speed: float = 1.0, rng: random.Random | None = None) -> None:
        self.speed = speed
        self.jobs: dict[str, JobState] = {}
        self._rng = rng or random.Random()  # noqa: S311 (spreads load, guards nothing)
        self._timer = AsyncIOScheduler(timezone=datetime.UTC)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._threads: dict[str, OwnThread] = {}
        self._clock_check: asyncio.Task[None] | None = None

    def every(
        self,
        name: str,
        period_seconds: float,
        deadline_seconds: float,
        work: Callable[[], Awaitable[None]],
        jitter_seconds: float = 0.0,
        delay_seconds: float = 0.0,
    ) -> JobState:
        """Runs the coroutine function ``work`` every ``period_seconds``.

        The first run comes after ``delay_seconds`` and a random part of ``jitter_seconds``,
        which also spreads all later runs, so that many nodes do not move in step.
        """
        if name in self.jobs:
            raise ValueError(f"a job called {name} is scheduled already")
        least = min(deadline_seconds, LEAST_DEADLINE_SECONDS)
        state = JobState(name, period_seconds, max(deadline_seconds / self.speed, least))
        self.jobs[name] = state
        first = (delay_seconds + self._rng.uniform(0, jitter_seconds)) / self.speed
        self._timer.add_job(
            self._tick,
            _Every(datetime.timedelta(seconds=period_seconds / self.speed)),
            args=(state, work),
            id=name,
            name=name,
            next_run_time=datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=first),
            coalesce=True,
            misfire_grace_time=None,
            max_instances=1,
        )
        return state

    def every_blocking(
        self,
        name: str,
        period_seconds: float,
        deadline_seconds: float,
        work: Callable[[], object],
        jitter_seconds: float = 0.0,
        delay_seconds: float = 0.0,
    ) -> JobState:
        """The same for a function that blocks: it runs in a thread of its own."""
        thread = self._threads[name] = OwnThread(f"tocsin-{name}")

        async def run() -> None:
            # Shielded: cancelling cannot stop a thread, only hide that it still runs.
            await asyncio.shield(thread.submit(work))

        def busy_or_run() -> Awaitable[None]:
            if thread.busy:
                raise _StillBusyError
            return run()

        return self.every(
            name, period_seconds, deadline_seconds, busy_or_run, jitter_seconds, delay_seconds
        )

    def start(self) -> None:
        """Starts the timer in the running loop."""
        self._timer.start()
        self._clock_check = asyncio.get_running_loop().create_task(self._watch_clock())

    async def stop(self, grace_seconds: float = 5.0) -> list[str]:
        """Starts nothing any more, lets running jobs end; the names of those that did not."""
        if self._clock_check is not None:
            self._clock_check.cancel()
        if self._timer.running:
            self._timer.shutdown(wait=False)
        running = dict(self._running)
        for thread in self._threads.values():
            thread.close()
        if running:
            _, late = await asyncio.wait(running.values(), timeout=grace_seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=CANCEL_GRACE_SECONDS)
        hung = {name for name, thread in self._threads.items() if thread.busy}
        hung.update(name for name, task in running.items() if not task.done())
        return sorted(hung)

    def hung(self) -> dict[str, float]:
        """The jobs that are past their deadline now, and for how many seconds."""
        now_seconds = time.monotonic()
        ages = {name: state.hung_seconds(now_seconds) for name, state in self.jobs.items()}
        return {name: age for name, age in ages.items() if age > 0}

    async def _tick(self, state: JobState, work: Callable[[], Awaitable[None]]) -> None:
        """One turn of one job. Called by the timer; always ends at once."""
        running = self._running.get(state.name)
        if running is not None and not running.done():
            state.skipped += 1
            return
        try:
            awaitable = work()
        except _StillBusyError:
            state.skipped += 1
            return
        task = asyncio.ensure_future(self._supervise(state, awaitable))
        self._running[state.name] = task

    async def _supervise(self, state: JobState, awaitable: Awaitable[None]) -> None:
        state.runs += 1
        state.started_seconds = time.monotonic()
        task = asyncio.ensure_future(awaitable)
        try:
            done, _ = await asyncio.wait({task}, timeout=state.deadline_seconds)
            if not done:
                state.overruns += 1
                state.fault = f"did not end within {state.deadline_seconds:g} s"
                log.warning("job %s %s", state.name, state.fault)
                task.cancel()
                await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        self._settle(state, task)

    def _settle(self, state: JobState, task: asyncio.Future[None]) -> None:
        thread = self._threads.get(state.name)
        state.finished_seconds = time.monotonic()
        if thread is None or not thread.busy:
            state.started_seconds = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            state.fault = ""
            return
        state.failures += 1
        state.fault = f"{type(error).__name__}: {error}"
        log.error("job %s failed: %s", state.name, state.fault, exc_info=error)

    async def _watch_clock(self) -> None:
        offset_seconds = time.time() - time.monotonic()
        while True:
            await asyncio.sleep(_CLOCK_CHECK_SECONDS)
            now_offset_seconds = time.time() - time.monotonic()
            step_seconds = now_offset_seconds - offset_seconds
            offset_seconds = now_offset_seconds
            if abs(step_seconds) > _CLOCK_STEP_SECONDS:
                self.clock_stepped(step_seconds)

    def clock_stepped(self, step_seconds: float) -> None:
        """Moves every job's next run along with a wall clock that was set."""
        log.warning("the clock was set by %+.1f s; schedules move with it", step_seconds)
        step = datetime.timedelta(seconds=step_seconds)
        for job in self._timer.get_jobs():
            if job.next_run_time is not None:
                job.modify(next_run_time=job.next_run_time + step)


class _StillBusyError(Exception):
    """The thread of a job still holds the run before."""
