"""The rows of one file of a telemetry directory, a bounded piece at a time, as a store's table.

The file may come from anywhere: a few kilobytes of .xz or Parquet can be terabytes of rows. So
nothing is unpacked as a whole, what is unpacked is counted, and what is over the bound ends
with a ValueError that names the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from daemon.store.tables import TAG, tags_of, with_tags
from models.telemetry.csvfile import blocks, check_columns, columns_of, number_if_any
from models.telemetry.pages import look_at
from models.telemetry.times import utc
from models.telemetry.unpack import TooLargeError

DEFAULT_LIMIT_BYTES = 256 * 1024**3
_BATCH_ROWS = 64 * 1024
# No field of InfluxDB is longer, and no reading of ours.
_TEXT_LIMIT_BYTES = 64 * 1024
_TEXTS_LIMIT_BYTES = 512 * 1024**2
# A name of a damaged footer need not be text.
_NOT_READABLE = (pa.ArrowException, OSError, UnicodeDecodeError)


def parquet_tags(path: Path) -> list[str] | None:
    """Which columns the file itself calls tags; None where it says nothing of them."""
    try:
        schema = pq.read_schema(path)
    except _NOT_READABLE as error:
        raise _unreadable(path, error) from error
    return tags_of(schema) if b"tocsin.tags" in (schema.metadata or {}) else None


def parquet_name(path: Path) -> str | None:
    """Which measurement the file itself says that it holds."""
    try:
        name = (pq.read_schema(path).metadata or {}).get(b"tocsin.measurement")
    except _NOT_READABLE as error:
        raise _unreadable(path, error) from error
    return None if name is None else name.decode("utf-8", "replace")


def parquet_pieces(path: Path, tags: Sequence[str], limit_bytes: int) -> Iterator[pa.Table]:
    """The rows of a Parquet file. Raises ValueError."""
    try:
        with pq.ParquetFile(path) as first:
            schema = first.schema_arrow
        check_columns(path, schema.names)
        found = look_at(path)
        size = max(found.pages_bytes, found.table_bytes)
        if size > limit_bytes:
            raise TooLargeError(f"{path}: is {size} bytes unpacked, over {limit_bytes}")
        # As dictionaries, a text that stands in a million rows is in memory once.
        texts = [f.name for f in schema if _is_text(f.type)]
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            count_bytes = 0
            for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
                count_bytes += batch.nbytes
                if count_bytes > limit_bytes:
                    raise TooLargeError(f"{path}: is over {limit_bytes} bytes unpacked")
                yield to_table(path, pa.table(batch), tags)
    except _NOT_READABLE as error:
        raise _unreadable(path, error) from error


def csv_pieces(
    path: Path, tags: Sequence[str], texts: Sequence[str], limit_bytes: int
) -> Iterator[pa.Table]:
    """The rows of a CSV: ``tags`` and ``texts`` are text, all others numbers where they can be.

    Raises ValueError.
    """
    names = columns_of(path)
    keep_text = {*tags, *texts}
    try:
        for table in blocks(path, names, limit_bytes, quoted_strings_can_be_null=False):
            for place, name in enumerate(names):
                if name != "time" and name not in keep_text:
                    table = table.set_column(place, name, number_if_any(table.column(name)))
            yield to_table(path, table, tags)
    except pa.ArrowException as error:
        raise _unreadable(path, error) from error


def to_table(path: Path, table: pa.Table, tags: Sequence[str]) -> pa.Table:
    """Foreign columns as a store's: ``time``, tags, numbers and texts; empty rows left out."""
    time = table.column("time")
    if time.null_count:
        raise ValueError(f"{path}: {time.null_count} of its rows have no time")
    columns: dict[str, pa.ChunkedArray] = {"time": utc(time)}
    own = [name for name in tags if name in table.column_names and name != "time"]
    for name in own:
        columns[name] = _tag(path, name, table.column(name))
    read = np.zeros(len(table), bool)
    for name in table.column_names:
        if name in columns:
            continue
        column = _field(path, name, table.column(name))
        if column is not None:
            columns[name] = column
            read |= np.asarray(column.is_valid())
    made = with_tags(pa.table(columns), own)
    # A row of which nothing was read is no reading.
    return made if read.all() else made.filter(pa.array(read))


def _tag(path: Path, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    text = _text(path, name, column)
    text = pc.if_else(pc.equal(text, ""), None, text)
    return text.dictionary_encode().cast(TAG)


def _field(path: Path, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return None
    if _is_text(kind):
        return _text(path, name, column)
    number = column.cast(kind).cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_finite(number), number, None)


def _text(path: Path, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """As plain texts; how long they are is looked at before each row gets its own."""
    size = longest = 0
    for chunk in column.chunks:
        lengths = chunk
        if pa.types.is_dictionary(chunk.type):
            lengths = chunk.dictionary
        if not _is_text(lengths.type):
            continue
        lengths = pc.binary_length(lengths)
        longest = max(longest, pc.max(lengths).as_py() or 0)
        if pa.types.is_dictionary(chunk.type):
            lengths = lengths.take(chunk.indices)
        size += pc.sum(lengths).as_py() or 0
    if longest > _TEXT_LIMIT_BYTES or size > _TEXTS_LIMIT_BYTES:
        raise ValueError(f"{path}: texts of {longest} bytes in {name[:60]!r} are no readings")
    return column.cast(pa.string())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path}: cannot be read: {str(error)[:300]}")
