"""A spool behind a thread of its own, so that a disk that hangs holds up nobody.

A node whose disk has stopped answering must still say that its GPU is lost. What cannot be
put on disk within the deadline is kept in memory (bounded) and sent from there, under a key
of its own; when the disk comes back, the spool goes on where it was.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from daemon.agent.spool import Entry, Spool
from daemon.schedule import OwnThread

Result = TypeVar("Result")


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
    ) -> None:
        self.spool = spool
        self.deadline_seconds = deadline_seconds
        self.memory_limit_bytes = memory_limit_bytes
        self.on_back = on_back
        self.hung_since_seconds: float | None = None
        self._thread = OwnThread(f"tocsin-spool-{spool.directory.name}")
        self._turn = asyncio.Lock()
        self._memory: deque[Entry] = deque()
        self._memory_bytes = 0
        self._sequence = 0
        self._dropped_samples = 0
        self._sent_samples = 0
        self._waiting = spool.waiting()

    async def keep(self, body: bytes, samples: int, now_ns: int) -> tuple[bool, str]:
        """Keeps one batch: whether it is on disk, and its key."""
        try:
            return await self._call(lambda: self.spool.keep(body, samples, now_ns))
        except DiskHangsError:
            return False, self._remember(body, samples, now_ns)

    async def oldest(self, now_ns: int) -> Entry | None:
        """The batch to send next; those of memory first, for they are few."""
        if self._memory:
            return self._memory[0]
        try:
            return await self._call(lambda: self.spool.oldest(now_ns))
        except DiskHangsError:
            return None

    async def done(self, entry: Entry) -> None:
        """The head has ``entry``. A hung disk keeps it; the head knows its key when it comes."""
        if self._memory and self._memory[0] is entry:
            self._memory.popleft()
            self._memory_bytes -= len(entry.body)
            self._sent_samples += entry.samples
            return
        try:
            await self._call(lambda: self.spool.done(entry))
        except DiskHangsError:
            return

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

    async def _call(self, function: Callable[[], Result]) -> Result:
        """Runs ``function`` on the spool's thread. Raises DiskHangsError."""
        async with self._turn:
            if self._thread.busy:
                raise DiskHangsError

            def work() -> tuple[Result, tuple[int, int]]:
                return function(), self.spool.waiting()

            future = self._thread.submit(work)
            done, _ = await asyncio.wait({future}, timeout=self.deadline_seconds)
            if not done:
                self.hung_since_seconds = time.monotonic() - self.deadline_seconds
                future.add_done_callback(self._back)
                raise DiskHangsError
            result, self._waiting = future.result()
            return result

    def _back(self, future: asyncio.Future[tuple[Result, tuple[int, int]]]) -> None:
        self.hung_since_seconds = None
        if not future.cancelled():
            future.exception()  # seen: whoever asked has gone on without it
        self.on_back()

    def _remember(self, body: bytes, samples: int, now_ns: int) -> str:
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
        return entry.key
