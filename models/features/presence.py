"""Freeze, disappearance and lateness: what silence itself says.

A lost GPU shows itself as values that no longer change and fields that are no longer
there. Neither is read as zero, and neither as health.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from models.features.arrays import NEVER_NS, Arrays, Floats, Rows, Times
from models.features.spec import DAY, HOUR, MINUTE

RECENT_FIELD_NS = int(DAY * 1e9)  # a field not seen for a day is not "vanished", it is gone
PERIOD_HORIZON = HOUR
LOSS_HORIZONS = {"7d": 7 * DAY, "28d": 28 * DAY}
FROZEN_READINGS = 2.0


class Presence:
    """State per row of a stream: last reading, its rhythm, its stillness."""

    def __init__(self, arrays: Arrays, prefix: str) -> None:
        self.arrays = arrays
        self.prefix = prefix
        arrays.add(f"{prefix}.last_ns", (), NEVER_NS, np.int64)
        arrays.add(f"{prefix}.first_ns", (), NEVER_NS, np.int64)
        arrays.add(f"{prefix}.changed_ns", (), NEVER_NS, np.int64)
        arrays.add(f"{prefix}.same_readings", (), 0.0)
        arrays.add(f"{prefix}.period_seconds", (), np.nan)
        arrays.add(f"{prefix}.delay_seconds", (), np.nan)
        arrays.add(f"{prefix}.usual_delay_seconds", (), np.nan)
        arrays.add(f"{prefix}.gaps", (), 0.0)
        arrays.add(f"{prefix}.loss_ns", (), NEVER_NS, np.int64)
        arrays.add(f"{prefix}.is_lost", (), 0.0)
        arrays.add(f"{prefix}.losses", (), 0.0)
        arrays.add(f"{prefix}.recent_losses", (len(LOSS_HORIZONS),), 0.0)

    def last_ns(self, rows: Rows | slice) -> Times:
        """When each row was last read."""
        return np.asarray(self.arrays[f"{self.prefix}.last_ns"][rows])

    def update(
        self,
        rows: Rows,
        times_ns: Times,
        arrivals_ns: Times,
        same: np.ndarray[tuple[int], np.dtype[np.bool_]],
        vanished: Floats,
    ) -> None:
        """One reading per row. ``same``: no lively value changed; ``vanished``: field count."""
        arrays, prefix = self.arrays, self.prefix
        last = arrays[f"{prefix}.last_ns"][rows]
        first = last == NEVER_NS
        dt = np.where(first, MINUTE, (times_ns - last) / 1e9)
        period = arrays[f"{prefix}.period_seconds"][rows]
        gain = 1.0 - np.exp(-dt / PERIOD_HORIZON)
        with np.errstate(invalid="ignore"):
            gap = ~first & (dt > 3.0 * period)
        # The rhythm is learnt from readings in rhythm; a gap says nothing about it.
        known = np.where(
            np.isnan(period), dt, period + gain * (np.minimum(dt, 3 * period) - period)
        )
        arrays[f"{prefix}.period_seconds"][rows] = np.where(first, np.nan, known)
        arrays[f"{prefix}.gaps"][rows] += gap
        delay = np.maximum(arrivals_ns - times_ns, 0) / 1e9
        usual = arrays[f"{prefix}.usual_delay_seconds"][rows]
        arrays[f"{prefix}.delay_seconds"][rows] = delay
        arrays[f"{prefix}.usual_delay_seconds"][rows] = np.where(
            np.isnan(usual), delay, usual + gain * (delay - usual)
        )
        count = np.where(same, arrays[f"{prefix}.same_readings"][rows] + 1, 0.0)
        arrays[f"{prefix}.same_readings"][rows] = count
        changed = arrays[f"{prefix}.changed_ns"][rows]
        arrays[f"{prefix}.changed_ns"][rows] = np.where(same, changed, times_ns)
        arrays[f"{prefix}.last_ns"][rows] = times_ns
        begun = arrays[f"{prefix}.first_ns"][rows]
        arrays[f"{prefix}.first_ns"][rows] = np.where(first, times_ns, begun)
        self._losses(rows, times_ns, same, vanished)

    def _losses(
        self,
        rows: Rows,
        times_ns: Times,
        same: np.ndarray[tuple[int], np.dtype[np.bool_]],
        vanished: Floats,
    ) -> None:
        """Counts the times that fields vanished while the rest stood still."""
        arrays, prefix = self.arrays, self.prefix
        lost = (vanished >= 2) & same
        before = arrays[f"{prefix}.is_lost"][rows] > 0
        # It stays one loss until the fields are back.
        arrays[f"{prefix}.is_lost"][rows] = (lost | (before & (vanished >= 2))) * 1.0
        begun = np.flatnonzero(lost & ~before)
        if not len(begun):
            return
        rows, times_ns = rows[begun], times_ns[begun]
        since = arrays[f"{prefix}.loss_ns"][rows]
        age = np.where(since == NEVER_NS, 0.0, (times_ns - since) / 1e9)
        horizons = np.array(list(LOSS_HORIZONS.values()))
        recent = arrays[f"{prefix}.recent_losses"][rows]
        arrays[f"{prefix}.recent_losses"][rows] = recent * np.exp(-age[:, None] / horizons) + 1.0
        arrays[f"{prefix}.losses"][rows] += 1
        arrays[f"{prefix}.loss_ns"][rows] = times_ns

    def features(
        self, rows: int, now_ns: int, vanished: Floats | None, node_last_ns: Times | None
    ) -> Iterator[tuple[str, Floats]]:
        """(name, [rows]) at ``now_ns``. ``node_last_ns``: newest reading of each row's node.

        Both cost as much as all the rest: with None, what they tell is left out.
        """
        arrays, prefix = self.arrays, self.prefix
        last = arrays[f"{prefix}.last_ns"][:rows]
        never = last == NEVER_NS
        silent = np.where(never, np.nan, np.maximum(now_ns - last, 0) / 1e9)
        period = arrays[f"{prefix}.period_seconds"][:rows]
        yield "silent_seconds", silent
        yield "late_ratio", silent / np.maximum(period, 1.0)
        if node_last_ns is not None:
            yield "behind_node_seconds", np.where(never, np.nan, (node_last_ns - last) / 1e9)
        delay = arrays[f"{prefix}.delay_seconds"][:rows]
        yield "delay_over_usual_seconds", delay - arrays[f"{prefix}.usual_delay_seconds"][:rows]
        yield "gaps", np.where(never, np.nan, arrays[f"{prefix}.gaps"][:rows])
        changed = arrays[f"{prefix}.changed_ns"][:rows]
        still = arrays[f"{prefix}.same_readings"][:rows]
        frozen = np.where(still >= FROZEN_READINGS, np.maximum(last - changed, 0) / 1e9, 0.0)
        yield "frozen_seconds", np.where(never, np.nan, frozen)
        if vanished is not None:
            yield "vanished_fields", np.where(never, np.nan, vanished)
        since = arrays[f"{prefix}.loss_ns"][:rows]
        age = np.where(since == NEVER_NS, 0.0, np.maximum(now_ns - since, 0) / 1e9)
        horizons = np.array(list(LOSS_HORIZONS.values()))
        recent = arrays[f"{prefix}.recent_losses"][:rows] * np.exp(-age[:, None] / horizons)
        for index, name in enumerate(LOSS_HORIZONS):
            yield f"losses_{name}", recent[:, index]
        yield "losses_ever", arrays[f"{prefix}.losses"][:rows].copy()
        begun = arrays[f"{prefix}.first_ns"][:rows]
        yield "age_days", np.where(never, np.nan, np.maximum(now_ns - begun, 0) / 1e9 / DAY)


WORDS: dict[str, tuple[str, str]] = {
    "silent_seconds": ("time since the last reading", "seconds"),
    "late_ratio": ("time since the last reading over its usual rhythm", "ratio"),
    "behind_node_seconds": ("how far it lags the newest reading of its node", "seconds"),
    "delay_over_usual_seconds": ("delay of the last reading above its usual delay", "seconds"),
    "gaps": ("gaps in the readings since tocsin watches", "count"),
    "frozen_seconds": ("time for which no lively value has changed", "seconds"),
    "vanished_fields": ("fields that were there within a day and are not now", "count"),
    "losses_7d": ("times its values froze and vanished in about 7 days", "count"),
    "losses_28d": ("times its values froze and vanished in about 28 days", "count"),
    "losses_ever": ("times its values froze and vanished since tocsin watches", "count"),
    "age_days": ("days since tocsin first saw this part", "days"),
}
