"""Decayed mean, spread and trend of levels, by time and not by count of readings.

With the weight g = 1 - exp(-dt/h) of a reading that came dt after the one before it, and
all older weights decayed by exp(-dt/h), mean and sum of squares are updated in place
(West 1979, "Updating mean and variance estimates: an improved method", with decay).
The trend needs no state: under a steady slope b an exponential mean of horizon h lags the
level by b*h, so two horizons give b = (mean_short - mean_long) / (h_long - h_short).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from models.features.arrays import ALL, NEVER_NS, Arrays, Columns, Floats, Rows, Times
from models.features.spec import GAUGE_HORIZONS, MINUTE

NAMES = tuple(GAUGE_HORIZONS)
HORIZONS = np.array(list(GAUGE_HORIZONS.values()))
# So many rows are reckoned together: what is reckoned of them lies in a core's own cache.
_AT_ONCE = 512


class Gauges:
    """State for ``names``: arrays [rows, gauges] and [rows, gauges, horizons]."""

    def __init__(self, arrays: Arrays, prefix: str, names: Sequence[str]) -> None:
        self.arrays = arrays
        self.prefix = prefix
        self.names = tuple(names)
        count, horizons = len(self.names), len(HORIZONS)
        arrays.add(f"{prefix}.value", (count,), np.nan)
        arrays.add(f"{prefix}.seen_ns", (count,), NEVER_NS, np.int64)
        for name in ("mean", "square", "weight"):
            arrays.add(f"{prefix}.{name}", (count, horizons), 0.0)

    def update(self, rows: Rows, times_ns: Times, values: Floats) -> None:
        """One reading per row, rows all different: values [n, gauges], NaN = not read."""
        if not self.names:
            return
        for start in range(0, len(rows), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            self._update(rows[some], times_ns[some], values[some])

    def _update(self, rows: Rows, times_ns: Times, values: Floats) -> None:
        arrays, prefix = self.arrays, self.prefix
        read = ~np.isnan(values)
        seen = arrays[f"{prefix}.seen_ns"][rows]
        first = seen == NEVER_NS
        dt = np.where(first, MINUTE, (times_ns[:, None] - seen) / 1e9)
        if bool((dt == dt[:, :1]).all()):
            dt = np.ascontiguousarray(dt[:, :1])  # one time for all gauges: fewer exponentials
        decay = np.exp(-dt[:, :, None] / HORIZONS)
        gain = 1.0 - decay
        mean = arrays[f"{prefix}.mean"][rows]
        square = arrays[f"{prefix}.square"][rows]
        weight = arrays[f"{prefix}.weight"][rows]
        known = np.where(read, values, 0.0)[:, :, None]
        new_weight = weight * decay
        new_weight += gain
        delta = known - mean
        # new_mean = mean + gain / new_weight * delta, in place: the same sums, fewer arrays
        new_mean = gain / new_weight
        new_mean *= delta
        new_mean += mean
        # new_square = square * decay + gain * delta * (known - new_mean)
        delta *= gain
        delta *= known - new_mean
        new_square = square * decay
        new_square += delta
        if not read.all():
            keep = ~read[:, :, None]
            np.copyto(new_mean, mean, where=keep)
            np.copyto(new_square, square, where=keep)
            np.copyto(new_weight, weight, where=keep)
        arrays[f"{prefix}.mean"][rows] = new_mean
        arrays[f"{prefix}.square"][rows] = new_square
        arrays[f"{prefix}.weight"][rows] = new_weight
        arrays[f"{prefix}.seen_ns"][rows] = np.where(read, times_ns[:, None], seen)
        old = arrays[f"{prefix}.value"][rows]
        arrays[f"{prefix}.value"][rows] = np.where(read, values, old)

    def features(
        self, rows: int, last_ns: Times, columns: Columns = ALL
    ) -> Iterator[tuple[str, Floats]]:
        """(suffix, [rows, gauges]) for each statistic. ``last_ns``: each row's last reading."""
        arrays, prefix = self.arrays, self.prefix
        seen = arrays[f"{prefix}.seen_ns"][:rows, columns]
        never = seen == NEVER_NS
        fresh = (seen >= last_ns[:, None]) & ~never
        yield "now", np.where(fresh, arrays[f"{prefix}.value"][:rows, columns], np.nan)
        mean = np.where(never[:, :, None], np.nan, arrays[f"{prefix}.mean"][:rows, columns])
        weight = arrays[f"{prefix}.weight"][:rows, columns]
        safe = np.where(weight > 0, weight, 1.0)
        spread = np.sqrt(np.maximum(arrays[f"{prefix}.square"][:rows, columns], 0.0) / safe)
        for index in (0, 1, 3):
            yield f"mean_{NAMES[index]}", mean[:, :, index]
        for index in (1, 3):
            yield f"spread_{NAMES[index]}", np.where(never, np.nan, spread[:, :, index])
        hour = 3600.0
        for short, long in ((0, 1), (1, 2), (2, 3)):
            slope = (mean[:, :, short] - mean[:, :, long]) / (HORIZONS[long] - HORIZONS[short])
            yield f"trend_{NAMES[long]}", slope * hour
        # As a share of the day's level, so that parts of other size compare: a fan that slows.
        with np.errstate(divide="ignore", invalid="ignore"):
            drop = 1.0 - mean[:, :, 1] / mean[:, :, 3]
        yield "drop_1d", np.where(mean[:, :, 3] > 0, drop, np.nan)


# What each statistic of a gauge is called in words; {what} and {unit} are the gauge's.
WORDS: dict[str, tuple[str, str]] = {
    "now": ("{what} now", "{unit}"),
    "mean_10m": ("{what}, mean of about 10 minutes", "{unit}"),
    "mean_1h": ("{what}, mean of about an hour", "{unit}"),
    "mean_1d": ("{what}, mean of about a day", "{unit}"),
    "spread_1h": ("{what}, spread over about an hour", "{unit}"),
    "spread_1d": ("{what}, spread over about a day", "{unit}"),
    "trend_1h": ("{what}, trend over about an hour", "{unit} per hour"),
    "trend_6h": ("{what}, trend over about 6 hours", "{unit} per hour"),
    "trend_1d": ("{what}, trend over about a day", "{unit} per hour"),
    "drop_1d": ("{what}, share by which an hour is below the day", "ratio"),
}
