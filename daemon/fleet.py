"""The fleet in a few points a minute, so that a dashboard of 10,000 nodes reads no GPU's history.

They are made of the newest readings that the head keeps anyway (``daemon/latest.py``). Three
measurements, written by the head:

- ``fleet`` [metric]: count, mean, sum, minimum, p05, p50, p95, p99, maximum of the newest
  readings of all parts that were heard lately;
- ``fleet_top`` [metric, node, device]: value, of the few highest (metric ``...:low``: lowest);
- ``fleet_histogram`` [metric, below]: count of the readings below that value and not below
  the step before (``below`` is ``inf`` for the last).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

import numpy as np

from collectors.sample import Metric, Sample, sample
from daemon.latest import GPU_FIELDS, STALE_NS, Latest
from models.features.arrays import Floats

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


# Node, number of the GPU (None: the host), what was read.
_Part = tuple[str, int | None, object]
# So many of the worst are named.
TOP = 10


def fleet_points(
    latest: Latest, now_ns: int, top: int = TOP, stale_ns: int = STALE_NS
) -> list[Sample]:
    """The points of this moment, of what ``latest`` holds. In the thread that fills it."""
    least_ns = now_ns - stale_ns
    gpus = [
        (node, index, gpu)
        for node, now in latest.nodes.items()
        for index, gpu in now.gpus.items()
        if gpu.time_ns >= least_ns
    ]
    hosts = [
        (node, None, now.load_1m)
        for node, now in latest.nodes.items()
        if now.host_ns and now.host_ns >= least_ns
    ]
    kinds: dict[str, tuple[Sequence[_Part], tuple[str, ...], Floats]] = {
        "gpu": (gpus, GPU_FIELDS, _sane([gpu.values for _, _, gpu in gpus], len(GPU_FIELDS))),
        "host": (hosts, ("load_1m",), _sane([(load,) for _, _, load in hosts], 1)),
    }
    found: list[Sample] = []
    for own in WATCHED:
        parts, fields, values = kinds[own.measurement]
        found.extend(_of(own, parts, values[:, fields.index(own.field)], now_ns, top))
    return found


def _sane(rows: Sequence[tuple[float | None, ...]], width: int) -> Floats:
    """[part, field], NaN for what was not read, and for what may not be summed up: one node that
    says 1e308 must not spoil the sum of all others."""
    flat: Iterable[float | None] = chain.from_iterable(rows)
    try:  # in a third of the time, where all was read
        values = np.fromiter(cast(Iterable[float], flat), np.float64, len(rows) * width)
    except TypeError:
        values = np.array([*chain.from_iterable(rows)], np.float64)  # None becomes NaN
    values[~(np.abs(values) < _ABSURD)] = np.nan
    return values.reshape(-1, width)


def _of(
    own: Watched,
    parts: Sequence[_Part],
    values: Floats,
    now_ns: int,
    top: int,
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
    order = np.argsort(-there if own.worst == "high" else there, kind="stable")[:top]
    label = own.name if own.worst == "high" else f"{own.name}:low"
    for place in order:
        node, index, _ = parts[read[place]]
        device = "" if index is None else f"gpu{index}"
        fields = {"value": float(there[place])}
        yield sample("fleet_top", now_ns, fields, metric=label, node=node, device=device)
    edges = np.array([-np.inf, *own.steps, np.inf])
    counts, _ = np.histogram(there, edges)
    for count, edge in zip(counts, [*own.steps, math.inf], strict=True):
        fields = {"count": float(count)}
        yield sample("fleet_histogram", now_ns, fields, metric=own.name, below=f"{edge:g}")
