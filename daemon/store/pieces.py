"""The rows of one file of a telemetry directory, a bounded piece at a time, as a store's table.

The file may come from anywhere: a few kilobytes of .xz or Parquet can be terabytes of rows. So
nothing is unpacked as a whole, what is unpacked is counted, and what is over the bound ends
with a ValueError that names the file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from daemon.store.tables import TAG, tags_of, with_tags
from models.telemetry.reader import utc
from models.telemetry.unpack import TooLargeError, open_bytes

DEFAULT_LIMIT_BYTES = 256 * 1024**3
# A page or a group of rows of this size is no export of anybody's.
_GROUP_LIMIT_BYTES = 4 * 1024**3
_BATCH_ROWS = 64 * 1024
_CSV_BLOCK_BYTES = 8 * 1024 * 1024
_HEADER_LIMIT_BYTES = 1024 * 1024
_COLUMNS_LIMIT = 4096
# No field of InfluxDB is longer, and no reading of ours.
_TEXT_LIMIT_BYTES = 64 * 1024
_TEXTS_LIMIT_BYTES = 512 * 1024**2
_TRUE = pa.array(["true", "True", "TRUE"])
_FALSE = pa.array(["false", "False", "FALSE"])


def parquet_tags(path: Path) -> list[str] | None:
    """Which columns the file itself calls tags; None where it says nothing of them."""
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    return tags_of(schema) if b"tocsin.tags" in (schema.metadata or {}) else None


def parquet_name(path: Path) -> str | None:
    """Which measurement the file itself says that it holds."""
    name = (pq.read_schema(path).metadata or {}).get(b"tocsin.measurement")
    return None if name is None else name.decode("utf-8", "replace")


def parquet_pieces(path: Path, tags: Sequence[str], limit_bytes: int) -> Iterator[pa.Table]:
    """The rows of a Parquet file. Raises ValueError."""
    try:
        with pq.ParquetFile(path) as first:
            schema, metadata = first.schema_arrow, first.metadata
        _check_columns(path, schema.names)
        groups = [metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups)]
        if max(groups, default=0) > _GROUP_LIMIT_BYTES:
            raise TooLargeError(f"{path}: a group of rows is over {_GROUP_LIMIT_BYTES} bytes")
        size = max(sum(groups), 8 * metadata.num_rows * len(schema.names))
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
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def csv_pieces(
    path: Path, tags: Sequence[str], texts: Sequence[str], limit_bytes: int
) -> Iterator[pa.Table]:
    """The rows of a CSV: ``tags`` and ``texts`` are text, all others numbers where they can be.

    Raises ValueError.
    """
    names = csv_columns(path)
    convert = pacsv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    keep_text = {*tags, *texts}
    try:
        with open_bytes(path, limit_bytes) as file:
            reader = pacsv.open_csv(
                file,
                pacsv.ReadOptions(block_size=_CSV_BLOCK_BYTES, use_threads=False),
                pacsv.ParseOptions(newlines_in_values=True),
                convert,
            )
            for batch in reader:
                table = pa.table(batch)
                for place, name in enumerate(names):
                    if name != "time" and name not in keep_text:
                        table = table.set_column(place, name, _number_if_any(table.column(name)))
                yield to_table(path, table, tags)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def csv_columns(path: Path) -> list[str]:
    """The names in the first line of a CSV. Raises ValueError."""
    with open_bytes(path) as file:
        raw = file.read(_HEADER_LIMIT_BYTES)
    text = raw.decode("utf-8-sig", "replace")
    try:
        names = next(csv.reader(io.StringIO(text)), [])
    except csv.Error as error:
        raise ValueError(f"{path}: its first line is no list of columns: {error}") from error
    _check_columns(path, names)
    return names


def _check_columns(path: Path, names: Sequence[str]) -> None:
    if "time" not in names:
        raise ValueError(f"{path} has no column time")
    if len(names) > _COLUMNS_LIMIT:
        raise ValueError(f"{path} has {len(names)} columns; a table has {_COLUMNS_LIMIT} at most")
    if len(set(names)) != len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise ValueError(f"{path} has the column {twice[:60]!r} twice")


def _number_if_any(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as numbers, ``true`` as 1; as they are where one of them is none."""
    filled = pc.if_else(pc.equal(column, ""), None, column)
    try:
        return filled.cast(pa.float64())
    except pa.ArrowInvalid:
        pass
    is_true = pc.is_in(filled, value_set=_TRUE)
    known = pc.or_(is_true, pc.is_in(filled, value_set=_FALSE))
    if pc.all(pc.or_(known, pc.is_null(filled))).as_py():
        return pc.if_else(pc.is_null(filled), None, is_true.cast(pa.float64()))
    return column


def to_table(path: Path, table: pa.Table, tags: Sequence[str]) -> pa.Table:
    """Foreign columns as a store's: ``time``, tags, numbers and texts; empty rows left out."""
    time = table.column("time")
    if time.null_count:
        raise ValueError(f"{path}: {time.null_count} of its rows have no time")
    if pa.types.is_dictionary(time.type):
        time = time.cast(time.type.value_type)
    if pa.types.is_string(time.type) and pc.all(pc.utf8_is_digit(time)).as_py():
        time = time.cast(pa.int64())
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
