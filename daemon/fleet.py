"""The fleet in a few points a minute, so that a dashboard of 10,000 nodes reads no GPU's history.

Three measurements, written by the head:

- ``fleet`` [metric]: count, mean, sum, minimum, p05, p50, p95, p99, maximum of the newest
  readings of all parts that were heard lately;
- ``fleet_top`` [metric, node, device]: value, of the few highest (metric ``...:low``: lowest);
- ``fleet_histogram`` [metric, below]: count of the readings below that value and not below
  the step before (``below`` is ``inf`` for the last).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from collectors.sample import Metric, Sample, Tags, Value, sample

NANOSECONDS = 1_000_000_000
# No watched number is larger: clocks in hertz are some 1e9.
_ABSURD = 1e15


@dataclass(frozen=True, slots=True)
class Watched:
    """One number that is summed up: where it is, the steps of its histogram, which end is bad."""

    measurement: str
    field: str
    steps: tuple[float, ...]
    worst: str = "high"  # or "low"

    @property
    def name(self) -> str:
        """Tag ``metric``."""
        return f"{self.measurement}.{self.field}"


def _steps(low: float, high: float, width: float) -> tuple[float, ...]:
    return tuple(float(step) for step in np.arange(low, high + width / 2, width))


WATCHED: tuple[Watched, ...] = (
    Watched("gpu", "temperature_celsius", _steps(20, 100, 5)),
    Watched("gpu", "memory_temperature_celsius", _steps(20, 110, 5)),
    Watched("gpu", "power_watts", _steps(50, 1400, 50)),
    Watched("gpu", "utilization_ratio", _steps(0.1, 1.0, 0.1), "low"),
    Watched("gpu", "sm_clock_hertz", _steps(2e8, 2.4e9, 2e8), "low"),
    Watched("host", "load_1m", (1.0, 8.0, 32.0, 64.0, 128.0, 256.0)),
)

METRICS: tuple[Metric, ...] = (
    Metric("fleet", "count", "gauge", "parts that were heard lately", 0),
    Metric("fleet", "mean", "gauge", "mean over the parts, in the metric's unit"),
    Metric("fleet", "sum", "gauge", "sum over the parts, in the metric's unit"),
    *(
        Metric("fleet", name, "gauge", f"{text} over the parts, in the metric's unit")
        for name, text in (
            ("minimum", "least"),
            ("p05", "5th percentile"),
            ("p50", "median"),
            ("p95", "95th percentile"),
            ("p99", "99th percentile"),
            ("maximum", "greatest"),
        )
    ),
    Metric("fleet_top", "value", "gauge", "one of the worst, in the metric's unit"),
    Metric("fleet_histogram", "count", "gauge", "parts within this step", 0),
)

_QUANTILES = {"minimum": 0.0, "p05": 0.05, "p50": 0.5, "p95": 0.95, "p99": 0.99, "maximum": 1.0}


class FleetPoints:
    """Keeps the newest value of each part and sums them up when asked. For one thread."""

    def __init__(
        self,
        watched: Sequence[Watched] = WATCHED,
        top: int = 10,
        stale_seconds: float = 180.0,
    ) -> None:
        self.watched = tuple(watched)
        self.top = top
        self.stale_ns = int(stale_seconds * NANOSECONDS)
        named: dict[str, tuple[str, ...]] = {}
        for one in self.watched:
            named[one.measurement] = (*named.get(one.measurement, ()), one.field)
        self._fields = {measurement: _Fields(names) for measurement, names in named.items()}
        # For each measurement: part -> (time, values in the order of its watched fields).
        self._newest: dict[str, dict[Tags, tuple[int, tuple[float, ...]]]] = {
            name: {} for name in self._fields
        }

    def observe(self, samples: Iterable[Sample]) -> None:
        """Takes in readings; of one part the newest counts."""
        for one in samples:
            fields = self._fields.get(one.measurement)
            if fields is None:
                continue
            newest = self._newest[one.measurement]
            known = newest.get(one.tags)
            if known is None or one.time_ns >= known[0]:
                newest[one.tags] = (one.time_ns, fields.values(one.fields))

    def points(self, now_ns: int) -> list[Sample]:
        """The points of this moment. Parts not heard for a while count no more."""
        found: list[Sample] = []
        for measurement, fields in self._fields.items():
            newest = self._newest[measurement]
            for tags in [tags for tags, (at, _) in newest.items() if now_ns - at > self.stale_ns]:
                del newest[tags]
            parts = list(newest)
            values = np.array([value for _, value in newest.values()], np.float64)
            for column, name in enumerate(fields.names):
                own = next(
                    w for w in self.watched if (w.measurement, w.field) == (measurement, name)
                )
                if parts:
                    found.extend(self._of(own, parts, values[:, column], now_ns))
        return found

    def _of(
        self, own: Watched, parts: list[Tags], values: npt.NDArray[np.float64], now_ns: int
    ) -> Iterable[Sample]:
        read = np.flatnonzero(~np.isnan(values))
        if not len(read):
            return
        there = values[read]
        summary = {
            "count": float(len(there)),
            "mean": float(there.mean()),
            "sum": float(there.sum()),
        }
        quantiles = np.quantile(there, list(_QUANTILES.values()))
        summary |= dict(zip(_QUANTILES, quantiles.tolist(), strict=True))
        yield sample("fleet", now_ns, summary, metric=own.name)
        order = np.argsort(-there if own.worst == "high" else there, kind="stable")[: self.top]
        label = own.name if own.worst == "high" else f"{own.name}:low"
        for place in order:
            tags = dict(parts[read[place]])
            device = f"gpu{tags['gpu']}" if "gpu" in tags else ""
            fields = {"value": float(there[place])}
            yield sample(
                "fleet_top", now_ns, fields, metric=label, node=tags.get("node", ""), device=device
            )
        edges = np.array([-np.inf, *own.steps, np.inf])
        counts, _ = np.histogram(there, edges)
        for count, edge in zip(counts, [*own.steps, math.inf], strict=True):
            fields = {"count": float(count)}
            yield sample("fleet_histogram", now_ns, fields, metric=own.name, below=f"{edge:g}")


class _Fields:
    """The watched fields of one measurement, in order."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        # One name alone would give its value and no tuple: asked for twice, cut to one.
        self._read = itemgetter(*names, names[0])
        self._all_floats = (float,) * (len(names) + 1)

    def values(self, fields: Mapping[str, Value]) -> tuple[float, ...]:
        """The values of one reading, NaN for what was not read or may not be summed up."""
        try:
            read = self._read(fields)
        except KeyError:
            pass
        else:  # as a rule all are there and sane
            plain = tuple(map(type, read)) == self._all_floats
            if plain and max(read) < _ABSURD and min(read) > -_ABSURD:
                return tuple(read[:-1])
        return tuple([_number(fields.get(name)) for name in self.names])


def _number(value: float | str | None) -> float:
    """What may be summed up: one node that says 1e308 must not spoil the sum of all others."""
    return value if isinstance(value, float) and abs(value) < _ABSURD else math.nan
