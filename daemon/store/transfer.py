"""Between a store and a telemetry directory (``gpu.parquet``, ``event.parquet`` ...).

Both ways go through columns, never sample by sample, and a piece of time at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError, unavailable
from daemon.store.parts import DAY_NS, HOUR_NS
from daemon.store.reader import Reader
from daemon.store.tables import TIME, align, tag_array, tags_of, with_tags
from models.telemetry import Chunk, Telemetry

Progress = Callable[[str, int], None]

_WINDOW_NS = 6 * HOUR_NS


def import_directory(
    store: Store, directory: Path, progress: Progress = lambda measurement, rows: None
) -> dict[str, int]:
    """Takes a telemetry directory into ``store``; rows by measurement.

    Importing the same directory again changes nothing: equal points are kept once. Raises
    FileNotFoundError and ValueError for a directory that cannot be read.
    """
    counts: dict[str, int] = {}
    for _, chunks in Telemetry(directory).windows(_WINDOW_NS):
        for chunk in chunks:
            store.add_table(chunk.measurement, chunk_table(chunk))
            counts[chunk.measurement] = counts.get(chunk.measurement, 0) + len(chunk)
            progress(chunk.measurement, counts[chunk.measurement])
    return counts


def chunk_table(chunk: Chunk) -> pa.Table:
    """The rows of a chunk as a store's table; NaN and empty text become null."""
    columns: dict[str, pa.Array] = {"time": pa.array(chunk.times_ns, pa.int64()).cast(TIME)}
    names = sorted(
        {name for tags in chunk.tags for name, _ in tags}, key=lambda n: (n != "node", n)
    )
    which = chunk.which.astype(np.int32)
    for name in names:
        columns[name] = tag_array([dict(tags).get(name) for tags in chunk.tags], which)
    read = np.zeros(len(chunk), bool)
    for name, values in chunk.fields.items():
        missing = ~np.isfinite(values)
        read |= ~missing
        if not missing.all():
            columns[_free(name, columns)] = pa.array(values, mask=missing)
    for name, texts in chunk.texts.items():
        read |= np.fromiter(map(bool, texts), bool, len(chunk))
        if any(texts):
            columns[_free(name, columns)] = pa.array([t or None for t in texts], pa.string())
    table = with_tags(pa.table(columns), names)
    # A row of which nothing was read is no reading.
    return table if read.all() else table.filter(pa.array(read))


def _free(name: str, columns: dict[str, pa.Array]) -> str:
    """``name``, or another where a tag is called so already."""
    return name if name not in columns else f"{name}_1"


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
                path = directory / f"{_file_name(measurement)}.{'csv' if csv else 'parquet'}"
                counts[measurement] = _export(reader, measurement, path, low, high, csv)
    except FileExistsError:
        raise
    except OSError as error:
        raise unavailable(error, directory) from error
    return counts


def _file_name(measurement: str) -> str:
    if not measurement or "/" in measurement or measurement.startswith("."):
        raise StoreUnavailableError(f"measurement {measurement!r} is no file name; leave it out")
    return measurement


def _export(reader: Reader, measurement: str, path: Path, low: int, high: int, csv: bool) -> int:
    """One file, an hour at a time, sorted by time."""
    schema = reader.schema(measurement, low, high)
    tags = tags_of(schema)
    if csv:
        plain = [(f.name, pa.string() if f.name in tags else f.type) for f in schema]
        schema = pa.schema(plain, metadata=schema.metadata)
    rows = 0
    step = HOUR_NS if high - low <= 60 * DAY_NS else DAY_NS
    with open(path, "xb") as file:
        writer = (
            pacsv.CSVWriter(file, schema)
            if csv
            else pq.ParquetWriter(file, schema, compression="zstd")
        )
        with writer:
            for table in reader.hours(measurement, low, high, step_ns=step):
                writer.write_table(align(table, schema).sort_by("time"))
                rows += table.num_rows
    return rows
