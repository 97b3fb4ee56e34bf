"""How long is waited for the store: one clock for all that wait, not one for each."""

from __future__ import annotations

import asyncio
from collections import deque


class Patience:
    """Ends waits that last longer than ``seconds`` by a TimeoutError. For one event loop.

    All have the same deadline, so the first to come is the first to be late.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._waits: deque[tuple[float, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def bound(self, wait: asyncio.Future[None]) -> None:
        """From now on ``wait`` ends within the time that there is."""
        waits = self._waits
        while waits and waits[0][1].done():
            waits.popleft()
        loop = wait.get_loop()
        late_seconds = loop.time() + self.seconds
        waits.append((late_seconds, wait))
        if self._timer is None:
            self._timer = loop.call_at(late_seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        waits = self._waits
        loop = asyncio.get_running_loop()
        now_seconds = loop.time()
        while waits and (waits[0][1].done() or waits[0][0] <= now_seconds):
            _, wait = waits.popleft()
            if not wait.done():
                wait.set_exception(TimeoutError())
        if waits:
            self._timer = loop.call_at(waits[0][0], self._look)
