"""Reads the embedded store, in any process and while another one writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from daemon.store.errors import StoreUnavailableError
from daemon.store.packing import Columns, split_series
from daemon.store.parts import DAY_NS, HOUR_NS, TagFilter, list_parts, measurements, read_part
from daemon.store.segments import list_segments, read_segment, segment_path
from daemon.store.tables import (
    TIME,
    empty_table,
    from_columns,
    in_pieces,
    sort_once,
    tags_of,
    unify,
    unify_schemas,
)

# A file may be replaced between listing and reading; then everything is listed again.
_ATTEMPTS = 20
# So many places at most has a table that is made of a segment at once.
_TABLE_VALUES = 8_000_000


class Reader:
    """The rows of a store's spool and Parquet. Holds nothing open."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.spool_directory = directory / "spool"
        self.parquet_directory = directory / "parquet"
        self.rollup_directory = directory / "rollup"

    def measurements(self) -> list[str]:
        """The measurements that have rows."""
        names = set(measurements(self.parquet_directory))
        for number in list_segments(self.spool_directory):
            try:
                for frame in read_segment(segment_path(self.spool_directory, number)):
                    names |= frame.measurements
            except FileNotFoundError:
                continue  # rolled meanwhile: its measurements have files now
        return sorted(names | set(measurements(self.parquet_directory)))

    def read(
        self,
        measurement: str,
        start_ns: int,
        end_ns: int,
        tags: TagFilter | None = None,
        fields: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of ``measurement`` with start_ns <= time < end_ns, by tags and time.

        ``tags`` keeps the rows whose tag has the value (or one of the values); ``fields``
        names the fields wanted (None: all). Each (tags, time) comes once. Raises
        StoreUnavailableError when a file is damaged.
        """
        for _ in range(_ATTEMPTS):
            try:
                return self._read(measurement, start_ns, end_ns, tags or {}, fields)
            except FileNotFoundError:
                continue
        raise StoreUnavailableError(f"store {self.directory}: files keep changing while being read")

    def read_rollup(
        self,
        measurement: str,
        start_ns: int,
        end_ns: int,
        tags: TagFilter | None = None,
        fields: Sequence[str] | None = None,
    ) -> pa.Table:
        """The five-minute values of days that are over: ``f`` (mean), ``f_min``, ``f_max``."""
        wanted = None
        if fields is not None:
            wanted = [name + end for name in fields for end in ("", "_min", "_max")] + ["readings"]
        for _ in range(_ATTEMPTS):
            try:
                parts = list_parts(self.rollup_directory, measurement, start_ns, end_ns)
                tables = [
                    _cut(read_part(p.path, wanted), start_ns, end_ns, tags or {}) for p in parts
                ]
                return sort_once(unify(tables))
            except FileNotFoundError:
                continue
        raise StoreUnavailableError(f"store {self.directory}: files keep changing while being read")

    def read_coarse(
        self,
        measurement: str,
        start_ns: int,
        end_ns: int,
        tags: TagFilter | None = None,
        fields: Sequence[str] = (),
    ) -> pa.Table:
        """Numbers for a chart over a long span: few rows, and also of days whose rows are gone.

        Days that are rolled up give their five-minute means (of counters, ``..._total``, the
        greatest value), all others their rows as they are.
        """
        rolled = {part.day for part in list_parts(self.rollup_directory, measurement)}
        first, last = start_ns // DAY_NS, (end_ns - 1) // DAY_NS
        tables: list[pa.Table] = []
        begin = first
        for day in range(first, last + 2):
            if day <= last and (day in rolled) == (begin in rolled):
                continue
            low, high = max(start_ns, begin * DAY_NS), min(end_ns, day * DAY_NS)
            if begin in rolled:
                table = self.read_rollup(measurement, low, high, tags, fields)
                tables.append(_as_readings(table, fields))
            else:
                tables.append(self.read(measurement, low, high, tags, fields))
            begin = day
        tables = [table for table in tables if table.num_rows]
        return sort_once(unify(tables)) if tables else empty_table()

    def hours(
        self,
        measurement: str,
        start_ns: int,
        end_ns: int,
        tags: TagFilter | None = None,
        fields: Sequence[str] | None = None,
        step_ns: int = HOUR_NS,
    ) -> Iterator[pa.Table]:
        """The same rows piece by piece in order of time, so that memory stays bounded."""
        first = start_ns - start_ns % step_ns
        for piece_ns in range(first, end_ns, step_ns):
            table = self.read(
                measurement, max(start_ns, piece_ns), min(end_ns, piece_ns + step_ns), tags, fields
            )
            if table.num_rows:
                yield table

    def schema(self, measurement: str, start_ns: int, end_ns: int) -> pa.Schema:
        """The columns that :meth:`read` of the same time may answer with."""
        for _ in range(_ATTEMPTS):
            try:
                segments = list_segments(self.spool_directory)  # first: see _read
                parts = list_parts(self.parquet_directory, measurement, start_ns, end_ns)
                schemas = [pq.read_schema(part.path) for part in parts]
                for number in segments:
                    frames = read_segment(segment_path(self.spool_directory, number))
                    schemas.extend(
                        from_columns(frame.columns(measurement)).schema
                        for frame in frames
                        if frame.overlaps(start_ns, end_ns)
                    )
                return unify_schemas(schemas)
            except FileNotFoundError:
                continue
        raise StoreUnavailableError(f"store {self.directory}: files keep changing while being read")

    def span_ns(self, measurement: str) -> tuple[int, int] | None:
        """A span of time that holds all rows, to the hour; None without any."""
        segments = list_segments(self.spool_directory)  # first: see _read
        starts = [(p.start_ns, p.end_ns) for p in list_parts(self.parquet_directory, measurement)]
        for number in segments:
            try:
                frames = read_segment(segment_path(self.spool_directory, number))
                held = [frame for frame in frames if measurement in frame.measurements]
                starts.extend((frame.head["from"], frame.head["to"] + 1) for frame in held)
            except FileNotFoundError:
                return self.span_ns(measurement)
        if not starts:
            return None
        return min(start for start, _ in starts), max(end for _, end in starts)

    def _read(
        self,
        measurement: str,
        start_ns: int,
        end_ns: int,
        tags: TagFilter,
        fields: Sequence[str] | None,
    ) -> pa.Table:
        # The spool is listed first: what is rolled after that shows as a missing segment,
        # what is rolled before has its files by now.
        segments = list_segments(self.spool_directory)
        present = set(segments)
        tables: list[pa.Table] = []
        for part in list_parts(self.parquet_directory, measurement, start_ns, end_ns):
            if part.first == part.last and part.first in present:
                continue  # half rolled: the segment itself still has all of its rows
            table = read_part(part.path, fields, tags, start_ns, end_ns)
            tables.append(_cut(table, start_ns, end_ns, tags))
        wanted = _Wanted(tags)
        for number in segments:
            columns: list[Columns] = []
            for frame in read_segment(segment_path(self.spool_directory, number)):
                if frame.overlaps(start_ns, end_ns):
                    columns.extend(wanted.only(one) for one in frame.columns(measurement))
            for some in in_pieces(columns, _TABLE_VALUES):
                table = from_columns(some)
                if fields is not None:
                    keep = {"time", *tags_of(table.schema), *fields}
                    table = table.select([name for name in table.column_names if name in keep])
                tables.append(_cut(table, start_ns, end_ns, tags))
        if not any(table.num_rows for table in tables):
            return empty_table()
        return sort_once(unify(tables))


def _as_readings(table: pa.Table, fields: Sequence[str]) -> pa.Table:
    """Five-minute values under the names of the readings that they stand for."""
    tags = tags_of(table.schema)
    kept = table.select([name for name in ("time", *tags) if name in table.column_names])
    for name in fields:
        source = f"{name}_max" if name.endswith("_total") else name
        if source in table.column_names:
            kept = kept.append_column(name, table.column(source))
    return kept


class _Wanted:
    """Picks the rows of spool columns by their tags; each series is looked at once."""

    def __init__(self, tags: TagFilter) -> None:
        self.tags = {
            name: {wanted} if isinstance(wanted, str) else set(wanted)
            for name, wanted in tags.items()
        }
        self._verdicts: dict[str, bool] = {}

    def only(self, columns: Columns) -> Columns:
        """The rows of ``columns`` that have the tags."""
        if not self.tags:
            return columns
        rows = [row for row, series in enumerate(columns.series) if self._has(series)]
        return columns if len(rows) == len(columns.series) else columns.take(rows)

    def _has(self, series: str) -> bool:
        verdict = self._verdicts.get(series)
        if verdict is None:
            own = dict(split_series(series))
            verdict = all(own.get(name) in wanted for name, wanted in self.tags.items())
            self._verdicts[series] = verdict
        return verdict


def _cut(table: pa.Table, start_ns: int, end_ns: int, tags: TagFilter) -> pa.Table:
    """The rows within the time and with the tags."""
    if table.num_rows == 0:
        return table
    time = table.column("time")
    mask = pc.and_(
        pc.greater_equal(time, pa.scalar(max(start_ns, -(2**63) + 2), TIME)),
        pc.less(time, pa.scalar(min(end_ns, 2**63 - 2), TIME)),
    )
    for name, wanted in tags.items():
        if name not in tags_of(table.schema):
            return table.slice(0, 0)
        values = [wanted] if isinstance(wanted, str) else list(wanted)
        column = table.column(name).cast(pa.string())
        mask = pc.and_(mask, pc.is_in(column, value_set=pa.array(values, pa.string())))
    return table.filter(mask)
