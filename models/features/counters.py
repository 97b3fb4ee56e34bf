"""Counters: increments by decayed count, aware of resets and of wrap-around.

A value below the last one is a reset (the device counts from 0 again, so the new value is
the increment) unless the counter has a known width and was near its end: then it wrapped.
The first reading is a baseline, never an increment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from models.features.arrays import ALL, NEVER_NS, Arrays, Columns, Floats, Rows, Times
from models.features.spec import COUNTER_HORIZONS, DAY, Counter

NAMES = tuple(COUNTER_HORIZONS)
HORIZONS = np.array(list(COUNTER_HORIZONS.values()))
CHANGE_TOLERANCE = 120.0  # a boot time may wobble by clock corrections; seconds


class Counters:
    """State for ``specs``: arrays [rows, counters] and [rows, counters, horizons]."""

    def __init__(self, arrays: Arrays, prefix: str, specs: Sequence[Counter]) -> None:
        self.arrays = arrays
        self.prefix = prefix
        self.specs = tuple(specs)
        self.wrap = np.array([spec.wrap for spec in self.specs])
        self.changes = np.array([spec.changes for spec in self.specs], bool)
        count = len(self.specs)
        arrays.add(f"{prefix}.last", (count,), np.nan)
        arrays.add(f"{prefix}.seen_ns", (count,), NEVER_NS, np.int64)
        arrays.add(f"{prefix}.risen_ns", (count,), NEVER_NS, np.int64)
        arrays.add(f"{prefix}.total", (count,), 0.0)
        arrays.add(f"{prefix}.recent", (count, len(HORIZONS)), 0.0)

    def update(self, rows: Rows, times_ns: Times, values: Floats) -> None:
        """One reading per row, rows all different: values [n, counters], NaN = not read."""
        if not self.specs:
            return
        arrays, prefix = self.arrays, self.prefix
        read = ~np.isnan(values)
        last = arrays[f"{prefix}.last"][rows]
        seen = arrays[f"{prefix}.seen_ns"][rows]
        rise = self._rise(last, values)
        rise = np.where(read & ~np.isnan(last), rise, 0.0)
        arrays[f"{prefix}.last"][rows] = np.where(read, values, last)
        arrays[f"{prefix}.seen_ns"][rows] = np.where(read, times_ns[:, None], seen)
        # Nothing rose on most readings: the decayed counts need no touch, for they carry
        # their own time (risen_ns) and are decayed when they are read or raised.
        moved = np.flatnonzero((rise > 0).any(axis=1))
        if not len(moved):
            return
        rows, times_ns, rise = rows[moved], times_ns[moved], rise[moved]
        up = rise > 0
        risen = arrays[f"{prefix}.risen_ns"][rows]
        dt = np.where(risen == NEVER_NS, 0.0, (times_ns[:, None] - risen) / 1e9)
        recent = arrays[f"{prefix}.recent"][rows]
        raised = recent * np.exp(-dt[:, :, None] / HORIZONS) + rise[:, :, None]
        arrays[f"{prefix}.recent"][rows] = np.where(up[:, :, None], raised, recent)
        arrays[f"{prefix}.risen_ns"][rows] = np.where(up, times_ns[:, None], risen)
        arrays[f"{prefix}.total"][rows] += rise

    def _rise(self, last: Floats, values: Floats) -> Floats:
        """How much each counter rose from ``last`` to ``values`` [n, counters]."""
        with np.errstate(invalid="ignore"):
            step = values - last
            wrapped = (self.wrap > 0) & (last > 0.75 * self.wrap) & (values < 0.25 * self.wrap)
            after_fall = np.where(wrapped, step + self.wrap, values)
            rise = np.where(step < 0, after_fall, step)
            changed = (np.abs(step) > CHANGE_TOLERANCE) * 1.0
        return np.where(self.changes, changed, rise)

    def features(
        self, rows: int, now_ns: int, columns: Columns = ALL
    ) -> Iterator[tuple[str, Floats]]:
        """(suffix, [rows, counters]) for each statistic at ``now_ns``."""
        arrays, prefix, changes = self.arrays, self.prefix, self.changes[columns]
        never = arrays[f"{prefix}.seen_ns"][:rows, columns] == NEVER_NS
        risen = arrays[f"{prefix}.risen_ns"][:rows, columns]
        flat = risen == NEVER_NS
        age = np.where(flat, 0.0, np.maximum(now_ns - risen, 0) / 1e9)
        recent = arrays[f"{prefix}.recent"][:rows, columns] * np.exp(-age[:, :, None] / HORIZONS)
        for index, name in enumerate(NAMES):
            yield f"count_{name}", np.where(never, np.nan, recent[:, :, index])
        yield "count_ever", np.where(never, np.nan, arrays[f"{prefix}.total"][:rows, columns])
        last = arrays[f"{prefix}.last"][:rows, columns]
        yield "total", np.where(changes, np.nan, last)
        yield "days_since", np.where(flat, np.nan, age / DAY)
        # A value that is a moment (boot time, in seconds) has an age.
        moment = np.where(changes, last, np.nan)
        yield "age_days", np.maximum(now_ns / 1e9 - moment, 0.0) / DAY


WORDS: dict[str, tuple[str, str]] = {
    "count_1h": ("{what} in about the last hour", "count"),
    "count_1d": ("{what} in about the last day", "count"),
    "count_7d": ("{what} in about the last 7 days", "count"),
    "count_ever": ("{what} since tocsin watches", "count"),
    "total": ("{what}, as the device counts them", "count"),
    "days_since": ("days since the last rise: {what}", "days"),
    "age_days": ("days since the last of: {what}", "days"),
}
