"""Foreign tables into a telemetry directory, by a map file.

A map (TOML) says what the time column is called and in which zone it was written, which
columns are tags, and what each field is made of. Two shapes are read:

* ``wide``: one row per entity and time, a column per quantity;
* ``tidy``: one row per value (time, node, metric, value, labels), as Prometheus exports are
  often kept.

A latched gauge (it keeps the last error until a reboot) becomes one event per change.

Files may be larger than memory and their rows in any order: they are read block by block and
sorted on disk (:mod:`models.telemetry.inorder`).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from collectors.events import CRITICAL, WARNING, event, spaced
from collectors.sample import Sample, Tags
from models.features.catalogue import APPLICATION_XIDS
from models.telemetry.chunk import TAG_COLUMNS
from models.telemetry.csvfile import blocks, columns_of, number_if_any
from models.telemetry.inorder import in_order
from models.telemetry.unpack import TooLargeError
from models.telemetry.writer import TelemetryWriter

DEFAULT_LIMIT_BYTES = 256 * 1024**3
# So many nodes or GPUs of which the last code is remembered.
_PARTS_LIMIT = 1_000_000


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FieldMap(_Strict):
    """Where a field comes from: a column (wide) or a metric (tidy), times ``scale``."""

    of: str
    scale: float = 1.0


class TagMap(_Strict):
    """Where a tag comes from: a column, or the same text for every row."""

    column: str = ""
    text: str = ""


class TableMap(_Strict):
    """One measurement made from the input."""

    measurement: str
    tags: dict[str, TagMap]
    fields: dict[str, FieldMap]


class LatchMap(_Strict):
    """A gauge that keeps the last code until it is reset; each change becomes an event."""

    of: str
    kind: str = "xid"
    gpu: str = ""  # the column that numbers the GPU


class ForeignMap(_Strict):
    """The whole map. ``zone``: the zone that the time was written in, whatever it is called."""

    shape: Literal["wide", "tidy"]
    time: str = "time"
    zone: str = "UTC"
    node: str = "node"
    metric: str = "metric"
    value: str = "value"
    tables: list[TableMap] = Field(default_factory=list)
    latches: list[LatchMap] = Field(default_factory=list)


def load_map(path: Path) -> ForeignMap:
    """Reads a map file. Raises pydantic.ValidationError with every wrong key."""
    with path.open("rb") as file:
        return ForeignMap.model_validate(tomllib.load(file))


def import_foreign(
    inputs: Sequence[tuple[ForeignMap, Path]],
    directory: Path,
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
) -> dict[str, int]:
    """Reads foreign files into a new telemetry directory; returns rows by measurement.

    Raises ValueError for a file that does not fit its map, or is over ``limit_bytes`` unpacked.
    """
    counts: dict[str, int] = {}
    with TelemetryWriter(directory) as writer:
        for plan, path in inputs:
            changes = [_Changes(plan, latch) for latch in plan.latches]
            try:
                for table in in_order(_blocks(plan, path, limit_bytes), plan.time, directory):
                    for part in plan.tables:
                        rows = _write_table(writer, plan, part, table)
                        counts[part.measurement] = counts.get(part.measurement, 0) + rows
                    for one in changes:
                        events = one.of(table)
                        writer.samples(events)
                        counts["event"] = counts.get("event", 0) + len(events)
            except TooLargeError:
                raise
            except KeyError as error:
                raise ValueError(f"{path} does not fit its map: no column {error}") from error
            except (ValueError, pa.ArrowException) as error:
                raise ValueError(f"{path} does not fit its map: {str(error)[:300]}") from error
    return counts


def _blocks(plan: ForeignMap, path: Path, limit_bytes: int) -> Iterator[pa.Table]:
    """What the map asks for, as texts but for the time, in the file's order."""
    names = columns_of(path, plan.time)
    wanted = _wanted(plan, names)
    metrics = pa.array(sorted(_metrics(plan)), pa.string())
    for block in blocks(path, names, limit_bytes, True):
        table = block.select(wanted)
        if plan.shape == "tidy":
            table = table.filter(pc.is_in(table.column(plan.metric), metrics))
        time = table.column(plan.time)
        if time.null_count:
            raise ValueError(f"{time.null_count} of its rows have no time")
        naive = pc.utf8_trim_whitespace(time).cast(pa.timestamp("ns"))
        # An hour that a clock change makes double is read as the earlier one, one that it
        # leaves out as the later: neither may end the import.
        local = pc.assume_timezone(naive, plan.zone, ambiguous="earliest", nonexistent="latest")
        utc = local.cast(pa.timestamp("ns", tz="UTC"))
        yield table.set_column(table.column_names.index(plan.time), plan.time, utc)


def _metrics(plan: ForeignMap) -> set[str]:
    fields = {one.of for part in plan.tables for one in part.fields.values()}
    return fields | {latch.of for latch in plan.latches}


def _wanted(plan: ForeignMap, names: Sequence[str]) -> list[str]:
    """The columns that the map speaks of. Raises KeyError for one that the file must have."""
    asked = {tag.column for part in plan.tables for tag in part.tags.values() if tag.column}
    if plan.latches:
        asked |= {plan.node, *(latch.gpu for latch in plan.latches if latch.gpu)}
    if plan.shape == "tidy":
        asked |= {plan.metric, plan.value}
    else:
        asked |= {latch.of for latch in plan.latches}
    for name in sorted(asked):
        if name not in names:
            raise KeyError(name)
    if plan.shape == "wide":
        asked |= _metrics(plan)
    return [name for name in names if name in asked or name == plan.time]


def _write_table(writer: TelemetryWriter, plan: ForeignMap, part: TableMap, table: pa.Table) -> int:
    if part.measurement not in TAG_COLUMNS:
        raise ValueError(f"tocsin has no measurement {part.measurement!r}")
    if plan.shape == "tidy":
        wanted = pa.array([one.of for one in part.fields.values()], pa.string())
        table = table.filter(pc.is_in(table.column(plan.metric), wanted))
    if not len(table):
        return 0
    tags, which = _tag_sets(part, table)
    times = table.column(plan.time).cast(pa.int64()).to_numpy()
    if plan.shape == "wide":
        fields = {
            name: _numbers(table, one.of) * one.scale
            for name, one in part.fields.items()
            if one.of in table.column_names
        }
    else:
        which, times, fields = _pivot(plan, part, table, which, times)
    unknown = set(part.tags) - set(TAG_COLUMNS[part.measurement])
    if unknown:
        raise ValueError(f"{part.measurement} has no tag {', '.join(sorted(unknown))}")
    writer.columns(part.measurement, tags, which, times, fields)
    return len(times)


def _numbers(table: pa.Table, name: str) -> NDArray[np.float64]:
    made = number_if_any(pc.utf8_trim_whitespace(table.column(name)))
    if not pa.types.is_floating(made.type):
        raise ValueError(f"column {name!r} holds something that is no number")
    return np.asarray(made.to_numpy(), np.float64)


def _tag_sets(part: TableMap, table: pa.Table) -> tuple[tuple[Tags, ...], NDArray[np.int64]]:
    columns = {
        name: (table.column(tag.column).to_pylist() if tag.column else [tag.text] * len(table))
        for name, tag in sorted(part.tags.items())
    }
    sets: dict[Tags, int] = {}
    which = np.empty(len(table), np.int64)
    names = list(columns)
    for row, values in enumerate(zip(*columns.values(), strict=True)):
        tags = tuple((k, v) for k, v in zip(names, values, strict=True) if v)
        which[row] = sets.setdefault(tags, len(sets))
    return tuple(sets), which


def _pivot(
    plan: ForeignMap,
    part: TableMap,
    table: pa.Table,
    which: NDArray[np.int64],
    times: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], dict[str, NDArray[np.float64]]]:
    """One row per entity and time from one row per value."""
    pairs = np.stack([times, which], axis=1)
    rows, place = np.unique(pairs, axis=0, return_inverse=True)
    place = place.reshape(-1)
    metric = np.array(table.column(plan.metric).to_pylist())
    value = _numbers(table, plan.value)
    fields = {}
    for name, one in part.fields.items():
        mine = metric == one.of
        column = np.full(len(rows), np.nan)
        column[place[mine]] = value[mine] * one.scale
        fields[name] = column
    return rows[:, 1].copy(), rows[:, 0].copy(), fields


class _Changes:
    """One event each time that the gauge changes to another code than 0."""

    def __init__(self, plan: ForeignMap, latch: LatchMap) -> None:
        self._plan = plan
        self._latch = latch
        self._last: dict[tuple[str, str], int] = {}

    def of(self, table: pa.Table) -> list[Sample]:
        """The events of rows that come after all of the last call."""
        plan, latch = self._plan, self._latch
        column = latch.of
        if plan.shape == "tidy":
            table = table.filter(pc.equal(table.column(plan.metric), latch.of))
            column = plan.value
        if not len(table):
            return []
        values = _numbers(table, column).tolist()
        nodes = table.column(plan.node).to_pylist()
        gpus = table.column(latch.gpu).to_pylist() if latch.gpu else [""] * len(table)
        times = table.column(plan.time).cast(pa.int64()).to_pylist()
        found = []
        for node, gpu, value, time_ns in zip(nodes, gpus, values, times, strict=True):
            if not math.isfinite(value) or not node:
                continue
            code = int(value)
            before = self._last.get((node, gpu))
            self._last[node, gpu] = code
            # What was latched before the history begins is of unknown age: no event.
            if before is None or code in (0, before):
                continue
            severity = WARNING if str(code) in APPLICATION_XIDS else CRITICAL
            text = f"{latch.of} changed from {before} to {code}"
            device = f"gpu{gpu}" if gpu else ""
            found.append(
                event(
                    node, latch.kind, str(code), time_ns,
                    text=text, severity=severity, device=device,
                )
            )  # fmt: skip
        if len(self._last) > _PARTS_LIMIT:
            raise ValueError(f"over {_PARTS_LIMIT} parts have {latch.of}: that is no fleet")
        return spaced(found)
