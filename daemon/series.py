"""A stored table as lines for a chart: one time axis, thinned to what a chart can show."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from collectors.sample import Metric
from daemon.page.view import LineView, SeriesView
from daemon.store.tables import tags_of

# By which tags the rows of one node fall into lines, and how a line is called.
LINE_TAGS = ("gpu", "device", "port", "sensor", "address", "source", "component")
_LINES_LIMIT = 64


def series_of(
    table: Any,
    node: str,
    measurement: str,
    field: str,
    metric: Metric | None,
    start_ns: int,
    end_ns: int,
    points: int,
) -> SeriesView:
    """``field`` of one node's rows in ``points`` equal steps; each step has its newest value.

    Counters keep their newest value too: a chart of a counter shows its steps.
    """
    times, lines = _lines(table, measurement, field)
    axis, values = thinned(times, lines, start_ns, end_ns, points)
    kind = metric.kind if metric is not None and metric.kind != "text" else "gauge"
    return SeriesView(
        node=node,
        measurement=measurement,
        field=field,
        kind=kind,
        help=metric.help if metric is not None else "",
        start_ms=start_ns // 1_000_000,
        end_ms=end_ns // 1_000_000,
        times_ms=axis,
        lines=tuple(LineView(name, values[name]) for name in sorted(values, key=_natural)),
    )


def _lines(table: Any, measurement: str, field: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Times and values of each line."""
    if not table.num_rows or field not in table.column_names:
        return {}, {}
    values = _numbers(table.column(field))
    moments = table.column("time").cast("int64").to_numpy()
    present = [name for name in LINE_TAGS if name in tags_of(table.schema)]
    columns = [table.column(name).cast("string").to_pylist() for name in present]
    names = [_name(measurement, present, row) for row in zip(*columns, strict=True)]
    if not present:
        names = [measurement] * table.num_rows
    times: dict[str, Any] = {}
    lines: dict[str, Any] = {}
    labels = np.array(names)
    for name in list(dict.fromkeys(names))[:_LINES_LIMIT]:
        own = labels == name
        times[name], lines[name] = moments[own], values[own]
    return times, lines


def _numbers(column: Any) -> Any:
    return np.array([_number(value) for value in column.to_pylist()], float)


def _number(value: object) -> float:
    """A value of a row; numbers are texts where another sender has said text in that field."""
    try:
        return float(value) if isinstance(value, float | str) else math.nan
    except ValueError:
        return math.nan


def _name(measurement: str, tags: list[str], row: tuple[str | None, ...]) -> str:
    found = {tag: value for tag, value in zip(tags, row, strict=True) if value}
    if measurement == "gpu" and "gpu" in found:
        return f"gpu{found['gpu']}"
    return "/".join(found.values()) or measurement


def thinned(
    times: dict[str, Any], lines: dict[str, Any], start_ns: int, end_ns: int, points: int
) -> tuple[list[int], dict[str, list[float | None]]]:
    """All lines on one axis of at most ``points`` steps, None where a step has no value."""
    step_ns = max(1, -(-(end_ns - start_ns) // points))
    used: set[int] = set()
    steps: dict[str, tuple[Any, Any]] = {}
    for name, moments in times.items():
        good = ~np.isnan(lines[name])
        index = (moments[good] - start_ns) // step_ns
        steps[name] = (index, lines[name][good])
        used.update(index.tolist())
    axis = sorted(used)
    place = {step: position for position, step in enumerate(axis)}
    values: dict[str, list[float | None]] = {}
    for name, (index, numbers) in steps.items():
        row: list[float | None] = [None] * len(axis)
        for step, number in zip(index.tolist(), numbers.tolist(), strict=True):
            row[place[step]] = number  # rows come by time: the newest of a step stays
        values[name] = row
    return [(start_ns + step * step_ns) // 1_000_000 for step in axis], values


def _natural(name: str) -> tuple[object, ...]:
    digits = "".join(c if c.isdecimal() else " " for c in name).split()
    return (len(digits), tuple(map(int, digits)), name)
