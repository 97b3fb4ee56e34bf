"""Time, handed in. Nothing else in the daemon asks the operating system what time it is."""

from __future__ import annotations

import time
from typing import Protocol

NANOSECONDS = 1_000_000_000


class Clock(Protocol):
    """UTC time in nanoseconds, and seconds that only ever grow."""

    def now_ns(self) -> int:
        """UTC nanoseconds since the epoch. May step when the system's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never steps back."""
        ...


class SystemClock:
    """The machine's own time."""

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic(self) -> float:
        return time.monotonic()


class ScaledClock:
    """Time that runs ``speed`` times as fast from ``start_ns`` on (the demo)."""

    def __init__(self, speed: float, start_ns: int | None = None) -> None:
        self.speed = speed
        self._zero_seconds = time.monotonic()
        self._start_ns = time.time_ns() if start_ns is None else start_ns

    def now_ns(self) -> int:
        return self._start_ns + int(self.monotonic() * NANOSECONDS)

    def monotonic(self) -> float:
        return (time.monotonic() - self._zero_seconds) * self.speed


class ManualClock:
    """Time that moves only when it is told to (tests, replay)."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns
        self._seconds = 0.0

    def now_ns(self) -> int:
        return self._now_ns

    def monotonic(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Moves both clocks on by ``seconds``."""
        self._now_ns += int(seconds * NANOSECONDS)
        self._seconds += seconds

    def set(self, now_ns: int) -> None:
        """Moves on to ``now_ns``, which may not lie in the past."""
        self.advance(max(0, now_ns - self._now_ns) / NANOSECONDS)
        self._now_ns = now_ns
