"""A bounded queue before one way to people: in order, under a deadline, again after a failure.

Nothing waits for it. When the queue is full the oldest message is dropped and counted; what
nobody took for long is given up and said in the log.
"""

from __future__ import annotations

import asyncio
import random
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import structlog

_LOG = structlog.get_logger("tocsin.alerts")

Message = Mapping[str, Any]
# (what went wrong or "", whether to try again, how many seconds the other side asks to wait)
Outcome = tuple[str, bool, float]
Post = Callable[[Message], Awaitable[Outcome]]


class WayError(Exception):
    """A way to people cannot be used as configured. Never holds a secret."""


@dataclass(frozen=True, slots=True)
class SendOptions:
    """How to send. A message that nobody took for ``give_up_seconds`` is dropped."""

    deadline_seconds: float = 10.0
    first_wait_seconds: float = 1.0
    longest_wait_seconds: float = 300.0
    give_up_seconds: float = 86_400.0
    queue_limit: int = 1000
    least_severity: int = 0  # what is less severe is not offered: 0 info ... 3 critical


class Outbox(ABC):
    """``offer`` from any thread; ``run`` in the event loop.

    ``on_settled`` is called after a message was taken or given up, so that the queue can be
    kept across a restart. ``wait`` and ``monotonic`` are handed in by tests.
    """

    name = ""  # in logs, and of its queue in the file that outlives a restart

    def __init__(
        self,
        options: SendOptions | None = None,
        *,
        monotonic: Callable[[], float],
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_settled: Callable[[], None] = lambda: None,
        rng: random.Random | None = None,
    ) -> None:
        self.options = options or SendOptions()
        self._monotonic = monotonic
        self._wait = wait
        self._rng = rng or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._queue: deque[tuple[Message, float]] = deque()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._something = asyncio.Event()
        self.on_settled = on_settled
        self.sent = 0
        self.dropped = 0
        self.failures = 0  # in a row
        self.trouble = ""

    def offer(self, message: Message) -> None:
        """Puts a message into the queue. Never waits."""
        with self._lock:
            if len(self._queue) >= self.options.queue_limit:
                self._queue.popleft()
                self.dropped += 1
            self._queue.append((message, self._monotonic()))
            loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._something.set)

    def restore(self, messages: Iterable[Message]) -> None:
        """Takes back what an earlier run had not delivered."""
        for message in messages:
            self.offer(message)

    def pending(self) -> list[Message]:
        """What is not delivered yet, oldest first."""
        with self._lock:
            return [message for message, _ in self._queue]

    async def run(self) -> None:
        """Delivers until it is cancelled."""
        self._loop = asyncio.get_running_loop()
        async with self._opened() as post:
            while True:
                self._something.clear()
                with self._lock:
                    first = self._queue[0] if self._queue else None
                if first is None:
                    await self._something.wait()
                    continue
                await self._deliver(post, *first)

    @abstractmethod
    def _opened(self) -> AbstractAsyncContextManager[Post]:
        """What sends one message, for as long as it is open."""

    async def _deliver(self, post: Post, message: Message, offered_seconds: float) -> None:
        trouble, again, pause_seconds = await post(message)
        if not trouble:
            self.sent += 1
            self.failures = 0
            self.trouble = ""
            await self._settle(message)
            return
        self.failures += 1
        if trouble != self.trouble:
            _LOG.warning(f"{self.name}_failed", trouble=trouble, queued=len(self._queue))
        self.trouble = trouble
        age_seconds = self._monotonic() - offered_seconds
        if not again or age_seconds > self.options.give_up_seconds:
            self.dropped += 1
            _LOG.error(f"{self.name}_gave_up", trouble=trouble, alert=message.get("key"))
            await self._settle(message)
            return
        options = self.options
        backed_off = options.first_wait_seconds * 2.0 ** min(self.failures - 1, 30)
        pause = max(pause_seconds, min(backed_off, options.longest_wait_seconds))
        pause = min(pause, options.longest_wait_seconds) * (0.75 + 0.5 * self._rng.random())
        await self._wait(pause)

    async def _settle(self, message: Message) -> None:
        with self._lock:
            # offer() may have dropped it already to make room.
            if self._queue and self._queue[0][0] is message:
                self._queue.popleft()
        await asyncio.to_thread(self.on_settled)
