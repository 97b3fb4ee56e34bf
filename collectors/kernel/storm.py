"""Joins storms: a driver that prints one error thousands of times must not drown the rest.

The first lines of each kind pass at once. What comes on top is counted and handed over as
one event every few seconds, with the newest words and the count. Memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from collectors.kernel.event import KernelEvent

SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class _Window:
    until_ns: int
    passed: int = 0
    held: KernelEvent | None = None
    held_ns: int = 0


class Storm:
    """Lets ``burst_count`` alike events pass in each window, joins the others."""

    def __init__(
        self, burst_count: int = 10, window_seconds: float = 10.0, kinds_limit: int = 512
    ) -> None:
        self._burst_count = burst_count
        self._window_ns = int(window_seconds * SECOND_NS)
        self._kinds_limit = kinds_limit
        self._windows: dict[tuple[str, str, str], _Window] = {}
        self.joined_total = 0

    def feed(
        self, event: KernelEvent, time_ns: int, now_ns: int
    ) -> Iterator[tuple[KernelEvent, int]]:
        """The events, with their times, that may go on now that ``event`` came."""
        key = (event.kind, event.code, event.device)
        window = self._windows.get(key)
        if window is not None and now_ns >= window.until_ns:
            yield from self._close(key)
            window = None
        if window is None:
            if len(self._windows) >= self._kinds_limit:
                yield from self._close(next(iter(self._windows)))
            window = self._windows[key] = _Window(now_ns + self._window_ns)
        if window.passed < self._burst_count:
            window.passed += 1
            yield event, time_ns
            return
        self.joined_total += 1
        before = 0 if window.held is None else window.held.count
        window.held = replace(event, count=before + event.count)
        window.held_ns = time_ns

    @property
    def holding(self) -> bool:
        """Whether something was joined that is not told yet."""
        return any(one.held is not None for one in self._windows.values())

    def due(self, now_ns: int) -> Iterator[tuple[KernelEvent, int]]:
        """What was joined in the windows that have ended by ``now_ns``."""
        for key in [key for key, one in self._windows.items() if now_ns >= one.until_ns]:
            yield from self._close(key)

    def _close(self, key: tuple[str, str, str]) -> Iterator[tuple[KernelEvent, int]]:
        window = self._windows.pop(key)
        if window.held is not None:
            yield window.held, window.held_ns
