"""Polls thousands of BMCs from one thread, each at its own pace.

One BMC has one call in flight, ever. A BMC that cannot be read pauses, longer each time, so that
it neither costs a place nor locks its account; those that failed have a lane of their own, and
the healthy never wait for them. What comes late is handed over in the next round.
"""

from __future__ import annotations

import asyncio
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from collectors.bmc.targets import BmcOptions, Target
from collectors.sample import Batch, Problem, Sample, clip, source_reading

# The ``source`` tag under which each BMC is said to be heard or not.
BMC = "bmc"

SLOW = "slow"

# A refused login is not tried again soon: some BMCs lock an account after a few.
LOGIN_PAUSE_SECONDS = 600.0
CLOSE_SECONDS = 3.0
BETWEEN_LIMIT = 20_000


@dataclass
class Poll:
    """What one visit to one BMC gives; filled as it goes, so that what was read is kept.

    ``fault`` is empty when all went well; ``kind`` ``login`` makes the next try late, and
    ``retry_seconds`` is what the BMC itself asked for. ``place`` is where the BMC's logs stand once
    this has been taken, as JSON data; None: it moves nothing.
    """

    samples: list[Sample] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    fault: str = ""
    kind: str = ""
    retry_seconds: float = 0.0
    place: object = None
    node: str = ""


class Visitor(Protocol):
    """Reads one BMC. Its calls never overlap."""

    async def visit(self, poll: Poll) -> None:
        """Reads once into ``poll``; sets ``poll.fault`` where it cannot. May be cancelled."""
        ...

    def changed(self) -> bool:
        """Whether a refused login is worth another try (the password has changed)."""
        ...

    async def leave(self) -> None:
        """Closes what is open at the BMC."""
        ...


@dataclass(frozen=True, slots=True)
class Rule:
    """How a fleet gets on with another that knows the same BMCs, by node.

    ``mine``: whether the BMC may be visited now. ``speaks``: whether this fleet says how it is.
    ``read``: told of each visit that went well.
    """

    mine: Callable[[str], bool] = lambda node: True
    speaks: Callable[[str], bool] = lambda node: True
    read: Callable[[str], None] = lambda node: None


@dataclass
class _State:
    """One BMC between rounds. Times are monotonic seconds."""

    target: Target
    visitor: Visitor
    task: asyncio.Task[None] | None = None
    failures: int = 0
    not_before: float = 0.0
    kind: str = ""
    fault: str = ""
    visited: bool = False
    due: float = 0.0  # when it is its turn; used where BMCs are read in turn
    fresh: bool = False  # whether there is something new to say of it
    last_good: float | None = None
    duration_seconds: float = 0.0


class Fleet:
    """All BMCs of one source. ``collect`` may be called from any one thread at a time.

    ``leaving`` is awaited last when the fleet is closed, in the thread of the BMCs. With a
    ``tick_seconds`` shorter than the period the BMCs are read in turn, each once a period, so
    that thousands of them make a steady trickle and no burst.
    """

    def __init__(
        self,
        name: str,
        targets: Sequence[Target],
        make: Callable[[Target], Visitor],
        options: BmcOptions,
        monotonic: Callable[[], float] = time.monotonic,
        leaving: Callable[[], Awaitable[None]] | None = None,
        tick_seconds: float = 0.0,
        rule: Rule | None = None,
    ) -> None:
        self._name = name
        self._rule = rule or Rule()
        self._options = options
        self._monotonic = monotonic
        self._leaving = leaving
        self._started = monotonic()
        self._states = [_State(target, make(target)) for target in targets]
        self._tick_seconds = tick_seconds if tick_seconds < options.period_seconds else 0.0
        if self._tick_seconds:
            for place, state in enumerate(self._states):
                state.due = self._started + options.period_seconds * place / len(self._states)
        self._jitter = random.Random(0)  # noqa: S311 - spreads tries, guards nothing
        # Filled in the thread of the BMCs, emptied by the source: a round that nobody waited for
        # to its end is handed over with the next.
        self._done: queue.SimpleQueue[Poll] = queue.SimpleQueue()
        # Node -> where its logs stand, by what was handed over: a visit that is still under way has
        # read further, and would be lost in a crash were that taken for read.
        self.places: dict[str, object] = {}
        self._healthy = asyncio.Semaphore(options.concurrency)
        self._suspect = asyncio.Semaphore(max(4, options.concurrency // 4))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # ---- called by the source --------------------------------------------------------------

    def collect(self, now_ns: int) -> Batch:
        """One round: visits who is due, waits for the healthy, hands over what has come."""
        loop = self._running()
        wait = max(0.1, self._options.deadline_seconds - 1.0)
        if self._tick_seconds:
            wait = min(wait, 0.8 * self._tick_seconds)
        future = asyncio.run_coroutine_threadsafe(self._round(wait), loop)
        future.result(timeout=self._options.deadline_seconds + 5.0)
        polls = [self._done.get_nowait() for _ in range(self._done.qsize())]
        self.places.update({one.node: one.place for one in polls if one.place is not None})
        samples = [one for poll in polls for one in poll.samples]
        problems = [one for poll in polls for one in poll.problems]
        said = [
            one
            for one in self._states
            if (one.fresh or (one.visited and not self._tick_seconds))
            and self._rule.speaks(one.target.node)
        ]
        readings = [self._reading(state, now_ns) for state in said]
        for state in said:
            state.fresh = False
        own = [state for state in self._states if self._rule.speaks(state.target.node)]
        bad = [state for state in own if state.visited and state.fault]
        heard = sum(1 for state in own if state.visited and not state.fault)
        fault = self._words(bad)
        up = bool(heard or samples or not own)
        if not up and not fault:
            fault = f"none of {len(self._states)} BMCs has answered yet"
        return Batch(self._name, (*samples, *readings), tuple(problems), up, fault)

    def hand_over(self, poll: Poll) -> None:
        """Takes what came between visits; for visitors, in the thread of the BMCs."""
        if self._done.qsize() < BETWEEN_LIMIT:
            self._done.put(poll)

    def close(self) -> None:
        """Leaves every BMC and ends the thread. May be called twice."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._leave(), loop)
        thread.join(timeout=CLOSE_SECONDS + 2.0)

    # ---- the thread ------------------------------------------------------------------------

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_serve, args=(loop,), name=f"{self._name}-fleet", daemon=True
            )
            self._thread.start()
            self._loop = loop
        return self._loop

    async def _round(self, wait_seconds: float) -> None:
        now = self._monotonic()
        awaited: list[asyncio.Task[None]] = []
        for state in self._states:
            if state.task is not None or not self._due(state, now):
                continue
            state.task = asyncio.get_running_loop().create_task(self._visit(state))
            if state.failures == 0:
                awaited.append(state.task)
        if awaited:
            await asyncio.wait(awaited, timeout=wait_seconds)
        elif self._done.empty() and any(state.task for state in self._states):
            # Only suspects are under way: give them a moment rather than answer with nothing.
            tasks = [state.task for state in self._states if state.task]
            await asyncio.wait(
                tasks, timeout=min(1.0, wait_seconds), return_when=asyncio.FIRST_COMPLETED
            )

    def _due(self, state: _State, now: float) -> bool:
        if self._tick_seconds:
            if now < state.due:
                return False
            turns = 1 + (now - state.due) // self._options.period_seconds
            state.due += turns * self._options.period_seconds
            state.fresh = state.visited  # a BMC that pauses is said to be down all the same
        if now < state.not_before and not (state.kind == "login" and state.visitor.changed()):
            return False
        return self._rule.mine(state.target.node)

    async def _visit(self, state: _State) -> None:
        poll = Poll(node=state.target.node)
        lane = self._suspect if state.failures else self._healthy
        try:
            async with lane:
                begin = self._monotonic()
                try:
                    async with asyncio.timeout(self._options.bmc_deadline_seconds):
                        await state.visitor.visit(poll)
                except TimeoutError:
                    limit = self._options.bmc_deadline_seconds
                    poll.fault = poll.fault or f"the BMC is slow: not done within {limit:g} s"
                    poll.kind = poll.kind or SLOW
                except Exception as error:  # a bug or a strange BMC must not cost the others
                    poll.fault = f"{type(error).__name__}: {error}"
                state.duration_seconds = self._monotonic() - begin
            self._judge(state, poll)
            self._done.put(poll)
        finally:
            state.task = None

    def _judge(self, state: _State, poll: Poll) -> None:
        now = self._monotonic()
        state.visited = state.fresh = True
        state.kind, state.fault = poll.kind, clip(poll.fault, 300)
        if not poll.fault:
            state.failures, state.not_before = 0, 0.0
            state.last_good = now
            self._rule.read(state.target.node)
            return
        if poll.kind == SLOW:
            # It answers, and each round brings it further: no pause, but the lane of the slow.
            state.failures, state.not_before = max(1, state.failures), 0.0
            return
        state.failures += 1
        pause = self._options.period_seconds * 2.0 ** min(state.failures - 1, 16)
        if state.failures == 1:
            pause = 0.0  # once may be chance: the next round tries again
        if poll.kind == "login":
            pause = max(pause, LOGIN_PAUSE_SECONDS * state.failures)
        pause = max(pause, poll.retry_seconds)
        pause = min(pause, max(self._options.pause_max_seconds, self._options.period_seconds))
        state.not_before = now + pause * self._jitter.uniform(0.8, 1.0)

    async def _leave(self) -> None:
        tasks = [state.task for state in self._states if state.task]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS / 2)
        leaving = [
            asyncio.get_running_loop().create_task(state.visitor.leave()) for state in self._states
        ]
        if leaving:
            await asyncio.wait(leaving, timeout=CLOSE_SECONDS)
        if self._leaving is not None:
            await self._leaving()
        asyncio.get_running_loop().stop()

    # ---- words -----------------------------------------------------------------------------

    def _reading(self, state: _State, now_ns: int) -> Sample:
        since = self._started if state.last_good is None else state.last_good
        now = self._monotonic()
        fault = state.fault
        if fault and state.not_before > now:
            fault += f"; next try in {state.not_before - now:.0f} s"
        return source_reading(
            state.target.node,
            BMC,
            now_ns,
            up=not state.fault,
            duration_seconds=state.duration_seconds,
            age_seconds=max(0.0, now - since),
            fault=fault,
        )

    def _words(self, bad: Sequence[_State]) -> str:
        if not bad:
            return ""
        if len(self._states) == 1:
            return bad[0].fault
        kinds = Counter(state.fault for state in bad).most_common(4)
        parts = [f"{count}: {words}" for words, count in kinds]
        return clip(f"{len(bad)} of {len(self._states)} BMCs not read ({'; '.join(parts)})", 600)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """The thread: runs the loop until it is stopped."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        if pending:
            loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
