"""Time for the demo: it is paced by the readings, so that a slow machine slows the story.

Were it tied to the wall clock, a second's stall would be a minute of simulated silence, and
the demo would show the machine's troubles instead of the cluster's.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from daemon.clock import NANOSECONDS


class PacedClock:
    """Runs ``speed`` times as fast as the wall clock, yet never past what ``allow`` allows.

    It stands at ``start_ns`` until the first ``allow``. Safe for use from many threads.
    """

    def __init__(
        self, speed: float, start_ns: int, wall_seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self.speed = speed
        self._start_ns = start_ns
        self._wall_seconds = wall_seconds
        self._lock = threading.Lock()
        self._seconds = 0.0
        self._limit_seconds = 0.0
        self._looked_seconds = wall_seconds()

    def allow(self, seconds: float) -> None:
        """Lets time run up to ``seconds`` (as monotonic) from now on."""
        self.monotonic()
        with self._lock:
            self._limit_seconds = max(self._limit_seconds, seconds)

    def monotonic(self) -> float:
        """Simulated seconds since the start."""
        with self._lock:
            wall = self._wall_seconds()
            passed = (wall - self._looked_seconds) * self.speed
            self._looked_seconds = wall
            self._seconds = max(self._seconds, min(self._seconds + passed, self._limit_seconds))
            return self._seconds

    async def reached(self, seconds: float) -> None:
        """Waits until monotonic is ``seconds``, which must be allowed."""
        while (left := seconds - self.monotonic()) > 1e-9:  # noqa: ASYNC110 - a clock has no event
            await asyncio.sleep(left / self.speed)

    def now_ns(self) -> int:
        """Simulated UTC."""
        return self._start_ns + int(self.monotonic() * NANOSECONDS)
