"""Between a store and a telemetry directory (``gpu.parquet``, ``event.parquet`` ...).

Both ways go through columns, never sample by sample, and a piece of time at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from daemon.frames import sync_directory
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError, unavailable
from daemon.store.filenames import (
    CsvTable,
    TableFile,
    add_to_list,
    read_list,
    stem_of,
    tables_in,
)
from daemon.store.parts import DAY_NS, HOUR_NS
from daemon.store.pieces import (
    DEFAULT_LIMIT_BYTES,
    csv_pieces,
    parquet_name,
    parquet_pieces,
    parquet_tags,
)
from daemon.store.reader import Reader
from daemon.store.tables import align, tags_of, unify
from models.telemetry.chunk import TAG_COLUMNS

Progress = Callable[[str, int], None]

# So much is sorted and written at once.
_PIECE_BYTES = 128 * 1024 * 1024
_NAME_KEY = "tocsin.measurement"


def import_directory(
    store: Store,
    directory: Path,
    progress: Progress = lambda measurement, rows: None,
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
    left_out: Callable[[Path, str], None] = lambda path, why: None,
) -> dict[str, int]:
    """Takes a telemetry directory into ``store``; rows by measurement.

    Importing the same directory again changes nothing: equal points are kept once. What is not
    taken is told to ``left_out``. Raises FileNotFoundError and ValueError for a directory that
    cannot be read (then the rows before that are in), StoreUnavailableError for a store that can
    take no more.
    """
    counts: dict[str, int] = {}
    for measurement, pieces in _tables(directory, limit_bytes, left_out):
        for table in _gathered(pieces):
            if refusal := store.room.refusal():
                raise StoreUnavailableError(refusal)
            store.add_table(measurement, table)
            counts[measurement] = counts.get(measurement, 0) + table.num_rows
            progress(measurement, counts[measurement])
    return counts


def _tables(
    directory: Path, limit_bytes: int, left_out: Callable[[Path, str], None]
) -> Iterator[tuple[str, Iterator[pa.Table]]]:
    """(measurement, its rows piece by piece) of each file that is a table."""
    files = tables_in(directory)
    listed = read_list(directory)
    taken = 0
    for file in files:
        measurement = file.measurement
        tags: Sequence[str] | None = TAG_COLUMNS.get(measurement)
        texts: list[str] = []
        if file.is_csv and file.stem in listed:
            told = listed[file.stem]
            measurement, tags, texts = told.measurement, told.tags, told.texts
        if not file.is_csv and (own := parquet_tags(file.path)) is not None:
            measurement, tags = parquet_name(file.path) or measurement, own
        if tags is None:
            left_out(file.path, "neither tocsin's nor an export: which columns are its tags?")
            continue
        taken += 1
        yield measurement, _pieces(file, tags, texts, limit_bytes)
    if not taken:
        raise FileNotFoundError(f"{directory} holds no table that tocsin knows (gpu.parquet ...)")


def _pieces(
    file: TableFile, tags: Sequence[str], texts: Sequence[str], limit_bytes: int
) -> Iterator[pa.Table]:
    if file.is_csv:
        return csv_pieces(file.path, tags, texts, limit_bytes)
    return parquet_pieces(file.path, tags, limit_bytes)


def _gathered(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in pieces large enough to make few files, small enough for memory."""
    waiting: list[pa.Table] = []
    size = 0
    for table in pieces:
        if table.num_rows:
            waiting.append(table)
            size += table.nbytes
        if size >= _PIECE_BYTES:
            yield unify(waiting)
            waiting, size = [], 0
    if waiting:
        yield unify(waiting)


def export_directory(
    reader: Reader,
    directory: Path,
    start_ns: int | None = None,
    end_ns: int | None = None,
    measurements: Sequence[str] = (),
    csv: bool = False,
) -> dict[str, int]:
    """Writes what ``reader`` has of [start_ns, end_ns) as a new telemetry directory.

    Raises FileExistsError when a file of that name is there already.
    """
    counts: dict[str, int] = {}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for measurement in measurements or reader.measurements():
            span = reader.span_ns(measurement)
            if span is None:
                continue
            low = span[0] if start_ns is None else max(start_ns, span[0])
            high = span[1] if end_ns is None else min(end_ns, span[1])
            if low < high:
                stem = stem_of(measurement)
                path = directory / f"{stem}.{'csv' if csv else 'parquet'}"
                schema = reader.schema(measurement, low, high)
                counts[measurement] = _export(reader, measurement, path, schema, low, high, csv)
    except FileExistsError:
        raise
    except OSError as error:
        raise unavailable(error, directory) from error
    return counts


def _told(measurement: str, schema: pa.Schema) -> CsvTable:
    tags = tags_of(schema)
    texts = [f.name for f in schema if f.name not in tags and pa.types.is_string(f.type)]
    return CsvTable(measurement=measurement, tags=tags, texts=texts)


def _in_columns(measurement: str, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """``table`` in the columns that the file was begun with. Raises StoreUnavailableError for
    rows, committed since, that have others: an export may not leave them out in silence."""
    lost = [name for name in table.column_names if name not in schema.names]
    try:
        if not lost:
            return align(table, schema)
    except pa.ArrowInvalid as error:
        lost = [str(error)[:100]]
    raise StoreUnavailableError(
        f"{measurement}: its columns changed while it was exported ({lost[0]}); export it again, or"
        " only until a time that is over (--until)"
    )


def _export(
    reader: Reader,
    measurement: str,
    path: Path,
    schema: pa.Schema,
    low: int,
    high: int,
    csv: bool,
) -> int:
    """One file, an hour at a time, sorted by time."""
    tags, told = tags_of(schema), _told(measurement, schema)
    metadata = {**(schema.metadata or {}), _NAME_KEY: measurement.encode("utf-8", "replace")}
    schema = schema.with_metadata(metadata)
    if csv:
        plain = [(f.name, pa.string() if f.name in tags else f.type) for f in schema]
        schema = pa.schema(plain, metadata=schema.metadata)
    if path.exists():
        raise FileExistsError(f"{path} is there already")
    rows = 0
    step = HOUR_NS if high - low <= 60 * DAY_NS else DAY_NS
    temporary = path.with_name(f".{path.name[:200]}.tmp")
    try:
        with open(temporary, "wb") as file:
            writer = (
                pacsv.CSVWriter(file, schema)
                if csv
                else pq.ParquetWriter(file, schema, compression="zstd")
            )
            with writer:
                for table in reader.hours(measurement, low, high, step_ns=step):
                    writer.write_table(_in_columns(measurement, table, schema).sort_by("time"))
                    rows += table.num_rows
            file.flush()
            os.fsync(file.fileno())
        if csv:  # before it has its name: without its entry a CSV is read as something else
            add_to_list(path.parent, {path.name.removesuffix(".csv"): told})
        temporary.rename(path)  # only now: half a file must not pass for a whole one
        sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return rows
