"""The way in of every reading: kept durably first, then shown to the watch, in order."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, TypeVarTuple

import structlog

from collectors.sample import Sample
from daemon.clock import Clock
from daemon.gate.gateway import BatchKey
from daemon.latest import Latest
from daemon.points import Flow
from daemon.source_loop import is_urgent
from daemon.store.commit import GroupCommit
from models.runs import Run, runs_of
from models.watch import Watch

log = structlog.get_logger("tocsin.head")

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

# The watch may fall so many writes behind before senders are made to wait.
WATCH_BACKLOG = 256
# So many writes go over to the watch at once: fewer steps between the threads, and never so many
# that a judgement waits for long.
WRITES_AT_ONCE = 64


@dataclass(slots=True)
class _Write:
    """What came, when, and who waits until it is on its way to the watch."""

    samples: Sequence[Sample]
    arrival_ns: int
    answer: asyncio.Future[None]
    urgent: bool = False


# One line in so long about readings that cannot be taken: a node must not fill the journal.
_COMPLAIN_SECONDS = 60.0
# Writes that arrive together are shown in any order; what lies further back is a clock set back.
_STEP_NS = 1_000_000_000


class Intake:
    """Store, then watch. ``wake`` is called when a reading must be judged at once.

    The watch has one thread, so that readings and judgements take turns and keep their order.
    """

    def __init__(
        self, group: GroupCommit, watch: Watch, clock: Clock, wake: Callable[[], None]
    ) -> None:
        self.flow = Flow()
        self.latest = Latest()
        self._group = group
        self._watch = watch
        self._clock = clock
        self._wake = wake
        self._thread = ThreadPoolExecutor(1, "tocsin-watch")
        self._room = WATCH_BACKLOG  # so many writes more may go over to the watch
        self._unseen: deque[_Write] = deque()  # durable, and not yet with the watch's thread
        self.unusable = 0  # readings that are stored and could not be judged
        self._complained_seconds = float("-inf")
        self._arrival_ns = 0

    def accept(
        self,
        samples: Sequence[Sample],
        node: str,
        arrival_ns: int,
        batch: BatchKey | None = None,
    ) -> asyncio.Future[None]:
        """What the gateway calls; it answers its sender once the future is done.

        No task, lock or shield for each write: they cost as much as reading it does.
        """
        del node
        answer = asyncio.get_running_loop().create_future()
        self._group.submit(samples, batch, partial(self._durable, samples, arrival_ns, answer))
        return answer

    async def keep(self, samples: Sequence[Sample]) -> bool:
        """The same for the head's own readings; whether they are durable.

        A store that fails costs only the history: what was read is judged all the same.
        """
        arrival_ns = self._clock.now_ns()
        durable = True
        try:
            await self._group.write(samples)
        except Exception as error:
            durable = False
            log.error("own_readings_not_stored", why=str(error), samples=len(samples))
        answer = asyncio.get_running_loop().create_future()
        self._show(_Write(samples, arrival_ns, answer))
        await answer
        return durable

    async def in_turn(
        self, function: Callable[[*Arguments], Result], *arguments: *Arguments
    ) -> Result:
        """Runs ``function`` in the watch's thread, after every reading that came before."""
        self._hand_over()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)

    def close(self) -> None:
        """Waits for what was accepted."""
        self._room = max(self._room, len(self._unseen))
        self._hand_over()
        self._thread.shutdown(wait=True)

    def _durable(
        self,
        samples: Sequence[Sample],
        arrival_ns: int,
        answer: asyncio.Future[None],
        error: Exception | None,
    ) -> None:
        """The store has said of a write that it has it, or that it has not."""
        if error is None:
            self._show(_Write(samples, arrival_ns, answer, any(map(is_urgent, samples))))
        elif not answer.done():
            answer.set_exception(error)

    def _show(self, write: _Write) -> None:
        self.flow.values += sum([len(one.fields) for one in write.samples])
        if not self._unseen:
            # A turn of the loop later: the writes of one commit come in the same turn, and each
            # step from thread to thread costs about what a node's rules cost.
            asyncio.get_running_loop().call_soon(self._hand_over)
        self._unseen.append(write)

    def _hand_over(self) -> None:
        """Gives what has come to the watch's thread, in order; as much as it may fall behind."""
        while self._unseen and self._room:
            count = min(len(self._unseen), self._room, WRITES_AT_ONCE)
            some = [self._unseen.popleft() for _ in range(count)]
            for write in some:
                if not write.answer.done():
                    write.answer.set_result(None)
            work = asyncio.get_running_loop().run_in_executor(self._thread, self._ingest, some)
            work.add_done_callback(partial(self._shown, count))
            self._room -= count
            if any(write.urgent for write in some):
                self._wake()

    def _ingest(self, writes: Sequence[_Write]) -> None:
        for write in writes:
            runs, arrival_ns = runs_of(write.samples), write.arrival_ns
            if arrival_ns < self._arrival_ns - _STEP_NS:
                self._watch.nothing_later(arrival_ns)
            self._arrival_ns = arrival_ns
            self._tell(self._watch.ingest_runs, runs, arrival_ns)
            self._tell(self.latest.observe_runs, runs, arrival_ns)

    def _tell(
        self,
        take: Callable[[Sequence[Run], int], None],
        runs: Sequence[Run],
        arrival_ns: int,
    ) -> None:
        """One reading that cannot be taken costs itself, and no other of its write.

        Those before it are told twice then, which changes nothing: the watch knows them again.
        """
        with contextlib.suppress(Exception):  # which one it was is seen in a moment
            take(runs, arrival_ns)
            return
        for one in [one for run in runs for one in run.samples]:
            try:
                take(runs_of([one]), arrival_ns)
            except Exception as error:
                self.unusable += 1
                now_seconds = time.monotonic()
                if now_seconds - self._complained_seconds >= _COMPLAIN_SECONDS:
                    self._complained_seconds = now_seconds
                    log.exception(
                        "reading_not_usable",
                        node=one.tag("node"),
                        measurement=one.measurement,
                        why=f"{type(error).__name__}: {error}"[:300],
                        so_far=self.unusable,
                    )

    def _shown(self, writes: int, work: asyncio.Future[None]) -> None:
        self._room += writes
        self._hand_over()
        if not work.cancelled() and (error := work.exception()) is not None:
            log.error("watch_failed", why=f"{type(error).__name__}: {error}", exc_info=error)
