"""Events of an entity: how many lately, how many ever, how long ago.

Raw events count on the short horizons. Failures come in bursts (dozens of lines in
minutes), so history counts *episodes*: an event that comes an hour or more after the last
one of its group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from models.features.arrays import NEVER_NS, Arrays, Floats
from models.features.spec import DAY, EVENT_HORIZONS, Group

NAMES = tuple(EVENT_HORIZONS)
HORIZONS = np.array(list(EVENT_HORIZONS.values()))
EPISODE_NS = 3_600_000_000_000


class Happenings:
    """State for ``groups``: arrays [rows, groups] and [rows, groups, horizons]."""

    def __init__(self, arrays: Arrays, groups: Sequence[Group]) -> None:
        self.arrays = arrays
        self.groups = tuple(groups)
        count = len(self.groups)
        arrays.add("event.last_ns", (count,), NEVER_NS, np.int64)
        arrays.add("event.recent", (count, len(HORIZONS)), 0.0)
        arrays.add("event.episode_ns", (count,), NEVER_NS, np.int64)
        arrays.add("event.episodes", (count,), 0.0)
        arrays.add("event.recent_episodes", (count, len(HORIZONS)), 0.0)

    def add(self, row: int, kind: str, code: str, time_ns: int) -> bool:
        """Counts one event; True if any group is about it."""
        found = False
        for index, group in enumerate(self.groups):
            if kind in group.kinds and (not group.codes or code in group.codes):
                self._add(row, index, time_ns)
                found = True
        return found

    def _add(self, row: int, index: int, time_ns: int) -> None:
        arrays = self.arrays
        last_ns = int(arrays["event.last_ns"][row, index])
        episode_ns = int(arrays["event.episode_ns"][row, index])
        if last_ns == NEVER_NS or time_ns - last_ns >= EPISODE_NS:
            arrays["event.episodes"][row, index] += 1
            self._raise("event.recent_episodes", row, index, episode_ns, time_ns)
            arrays["event.episode_ns"][row, index] = time_ns
        self._raise("event.recent", row, index, last_ns, time_ns)
        arrays["event.last_ns"][row, index] = max(last_ns, time_ns)

    def _raise(self, name: str, row: int, index: int, since_ns: int, time_ns: int) -> None:
        recent = self.arrays[name][row, index]
        if since_ns == NEVER_NS:
            recent += 1.0
        elif time_ns >= since_ns:
            recent[:] = recent * np.exp(-((time_ns - since_ns) / 1e9) / HORIZONS) + 1.0
        else:  # it came late: it counts as much as its age leaves of it
            recent += np.exp(-((since_ns - time_ns) / 1e9) / HORIZONS)

    def features(self, rows: int, now_ns: int) -> Iterator[tuple[str, Floats]]:
        """(suffix, [rows, groups]) for each statistic at ``now_ns``."""
        arrays = self.arrays
        last = arrays["event.last_ns"][:rows]
        never = last == NEVER_NS
        age = np.where(never, 0.0, np.maximum(now_ns - last, 0) / 1e9)
        recent = arrays["event.recent"][:rows] * np.exp(-age[:, :, None] / HORIZONS)
        for index in (0, 1):
            yield f"events_{NAMES[index]}", recent[:, :, index]
        episode = arrays["event.episode_ns"][:rows]
        since = np.where(never, 0.0, np.maximum(now_ns - episode, 0) / 1e9)
        episodes = arrays["event.recent_episodes"][:rows] * np.exp(-since[:, :, None] / HORIZONS)
        for index in (2, 3):
            yield f"episodes_{NAMES[index]}", episodes[:, :, index]
        yield "episodes_ever", arrays["event.episodes"][:rows].copy()
        yield "days_since", np.where(never, np.nan, age / DAY)


WORDS: dict[str, tuple[str, str]] = {
    "events_1h": ("{what} in about the last hour", "count"),
    "events_1d": ("{what} in about the last day", "count"),
    "episodes_7d": ("{what} in about the last 7 days, bursts counted once", "count"),
    "episodes_28d": ("{what} in about the last 28 days, bursts counted once", "count"),
    "episodes_ever": ("{what} since tocsin watches, bursts counted once", "count"),
    "days_since": ("days since the last of: {what}", "days"),
}
