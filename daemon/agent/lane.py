"""A spool behind a thread of its own, so that a disk that hangs holds up nobody.

A node whose disk has stopped answering must still say that its GPU is lost. What cannot be
put on disk within the deadline is kept in memory (bounded) and sent from there, under a key
of its own; when the disk comes back, the spool goes on where it was. The write that hung may end
well after all: then the batch is there twice, and what was sent from memory is not sent again.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from daemon.agent.spool import Entry, Spool
from daemon.schedule import OwnThread

Result = TypeVar("Result")

# A write that hung may end so many dropped batches later and still be known as one of them.
_DROPPED_KEYS = 10_000


class DiskHangsError(Exception):
    """The disk did not answer within the deadline, or still holds an earlier call."""


class Lane:
    """One spool for the event loop: no call takes longer than the deadline."""

    def __init__(
        self,
        spool: Spool,
        deadline_seconds: float = 3.0,
        memory_limit_bytes: int = 4 * 1024 * 1024,
        on_back: Callable[[], None] = lambda: None,
        on_settled: Callable[[str], None] = lambda key: None,
    ) -> None:
        """``on_settled`` is told the key of each batch that memory holds no longer."""
        self.spool = spool
        self.deadline_seconds = deadline_seconds
        self.memory_limit_bytes = memory_limit_bytes
        self.on_back = on_back
        self.on_settled = on_settled
        self.hung_since_seconds: float | None = None
        self._thread = OwnThread(f"tocsin-spool-{spool.directory.name}")
        self._under_way: asyncio.Future[Any] | None = None
        self._turn = asyncio.Lock()
        self._memory: deque[Entry] = deque()
        self._memory_bytes = 0
        self._sequence = 0
        self._dropped_samples = 0
        self._dropped: deque[str] = deque(maxlen=_DROPPED_KEYS)
        self._sent_samples = 0
        self._waiting = spool.waiting()
        self._twins: dict[str, str] = {}  # key on disk -> key under which memory sends the same

    async def keep(self, body: bytes, samples: int, now_ns: int) -> tuple[bool, str]:
        """Keeps one batch: whether it is on disk, and its key."""
        late: list[asyncio.Future[tuple[tuple[bool, str], tuple[int, int]]]] = []
        try:
            return await self._call(lambda: self.spool.keep(body, samples, now_ns), late)
        except DiskHangsError:
            entry = self._remember(body, samples, now_ns)
            for future in late:
                future.add_done_callback(lambda future: self._landed(future, entry))
            return False, entry.key

    async def oldest(self, now_ns: int) -> Entry | None:
        """The batch to send next; those of memory first, for they are few."""
        try:
            while True:
                if self._memory:
                    return self._memory[0]
                entry = await self._call(lambda: self.spool.oldest(now_ns))
                if entry is None or entry.key not in self._twins:
                    return entry
                # What memory held comes first, so this one is with the head already.
                await self._call(functools.partial(self.spool.done, entry))
                del self._twins[entry.key]
                self._sent_samples -= entry.samples  # the spool counts it as sent once more
        except DiskHangsError:
            return None

    async def done(self, entry: Entry) -> None:
        """The head has ``entry``. A hung disk keeps it; the head knows its key when it comes."""
        if self._memory and self._memory[0] is entry:
            self._memory.popleft()
            self._memory_bytes -= len(entry.body)
            self._sent_samples += entry.samples
            self.on_settled(entry.key)
            return
        try:
            await self._call(lambda: self.spool.done(entry))
        except DiskHangsError:
            return
        if entry.segment == 0:
            self.on_settled(entry.key)

    def waiting(self) -> tuple[int, int]:
        """(batches, bytes) that wait, as last known. Never blocks."""
        batches, size = self._waiting
        return batches + len(self._memory), size + self._memory_bytes

    @property
    def dropped_samples(self) -> int:
        """Lost to the bounds of disk and memory."""
        return self.spool.counts.dropped_samples + self._dropped_samples

    @property
    def sent_samples(self) -> int:
        """What the head has."""
        return self.spool.counts.sent_samples + self._sent_samples

    def fault(self) -> str:
        """What is wrong with the disk; empty when nothing is."""
        if self.hung_since_seconds is None:
            return self.spool.counts.fault
        hung_seconds = time.monotonic() - self.hung_since_seconds
        return f"spool: the disk hangs for {hung_seconds:.0f} s: {self.spool.directory}"

    def close(self) -> None:
        """Lets go of the files, unless the disk hangs."""
        if not self._thread.busy:
            self.spool.close()
        self._thread.close()

    async def _call(
        self,
        function: Callable[[], Result],
        late: list[asyncio.Future[tuple[Result, tuple[int, int]]]] | None = None,
    ) -> Result:
        """Runs ``function`` on the spool's thread. Raises DiskHangsError.

        A call that was begun and has not ended in time is put into ``late``.
        """
        async with self._turn:
            before = self._under_way
            if self._thread.busy and self.hung_since_seconds is None and before is not None:
                # Whoever asked was cancelled, as senders are at the end: the disk is well.
                await asyncio.wait({before}, timeout=self.deadline_seconds)
            if self._thread.busy:
                raise DiskHangsError

            def work() -> tuple[Result, tuple[int, int]]:
                return function(), self.spool.waiting()

            future = self._thread.submit(work)
            self._under_way = future
            done, _ = await asyncio.wait({future}, timeout=self.deadline_seconds)
            if not done:
                self.hung_since_seconds = time.monotonic() - self.deadline_seconds
                future.add_done_callback(self._back)
                if late is not None:
                    late.append(future)
                raise DiskHangsError
            result, self._waiting = future.result()
            self._give_up(self.spool.given_up())
            return result

    def _landed(
        self, future: asyncio.Future[tuple[tuple[bool, str], tuple[int, int]]], entry: Entry
    ) -> None:
        """The write that hung has ended: the spool has the batch too, which memory sends."""
        if future.cancelled() or future.exception() is not None:
            return
        (_, key), _ = future.result()
        if entry.key not in self._dropped:
            self._twins[key] = entry.key

    def _give_up(self, keys: Iterable[str]) -> None:
        """Batches that were dropped from memory: only the spool, where it has them, sends them."""
        for key in keys:
            self._twins = {disk: own for disk, own in self._twins.items() if own != key}
            self.on_settled(key)

    def _back(self, future: asyncio.Future[tuple[Result, tuple[int, int]]]) -> None:
        self.hung_since_seconds = None
        if not future.cancelled():
            future.exception()  # seen: whoever asked has gone on without it
        self.on_back()

    def _remember(self, body: bytes, samples: int, now_ns: int) -> Entry:
        self._sequence += 1
        entry = Entry(f"{self.spool.instance}m", self._sequence, now_ns, samples, body)
        self._memory.append(entry)
        self._memory_bytes += len(body)
        while self._memory_bytes > self.memory_limit_bytes and len(self._memory) > 1:
            # The second: the first may be under way just now.
            dropped = self._memory[1]
            del self._memory[1]
            self._memory_bytes -= len(dropped.body)
            self._dropped_samples += dropped.samples
            self._dropped.append(dropped.key)
            self._give_up([dropped.key])
        return entry
