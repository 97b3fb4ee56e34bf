"""A CSV (also .gz, .bz2, .xz) in bounded memory: block by block, whatever its size.

A line is at most as long as a block, and what is unpacked is counted: a few kilobytes of .xz can
be terabytes of text.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from models.telemetry.pages import COLUMNS_LIMIT
from models.telemetry.times import TIME, utc
from models.telemetry.unpack import TooLargeError, open_bytes

BLOCK_BYTES = 8 * 1024 * 1024
_HEADER_LIMIT_BYTES = 1024 * 1024
_TRUE = pa.array(["true", "True", "TRUE"])
_FALSE = pa.array(["false", "False", "FALSE"])


def columns_of(path: Path, time: str = "time") -> list[str]:
    """The names in the first line of a CSV, ``time`` among them. Raises ValueError."""
    with open_bytes(path) as file:
        raw = file.read(_HEADER_LIMIT_BYTES)
    # Not by the codec "utf-8-sig": Python reads it from a file of its own, which the store's owner,
    # in whose name root imports, may not be able to read.
    text = raw.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")
    try:
        names = next(csv.reader(io.StringIO(text)), [])
    except csv.Error as error:
        raise ValueError(f"{path}: its first line is no list of columns: {error}") from error
    check_columns(path, names, time)
    return names


def check_columns(path: Path, names: Sequence[str], time: str = "time") -> None:
    """Raises ValueError for names that no table of readings has."""
    if time not in names:
        raise ValueError(f"{path} has no column {time}")
    if len(names) > COLUMNS_LIMIT:
        raise ValueError(f"{path} has {len(names)} columns; a table has {COLUMNS_LIMIT} at most")
    if len(set(names)) != len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise ValueError(f"{path} has the column {twice[:60]!r} twice")


def blocks(
    path: Path, names: Sequence[str], limit_bytes: int, quoted_strings_can_be_null: bool
) -> Iterator[pa.Table]:
    """The rows, all columns as texts. Raises ValueError."""
    convert = pacsv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=quoted_strings_can_be_null,
    )
    try:
        with open_bytes(path, limit_bytes) as file:
            reader = pacsv.open_csv(
                file,
                pacsv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
                pacsv.ParseOptions(newlines_in_values=True),
                convert,
            )
            for batch in reader:
                yield pa.table(batch)
    except (pa.ArrowException, OSError) as error:
        if "straddling" in str(error):
            raise TooLargeError(f"{path}: a line is over {BLOCK_BYTES} bytes") from error
        raise ValueError(f"{path}: cannot be read: {str(error)[:300]}") from error


def number_if_any(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as numbers, ``true`` as 1; as they are where one of them is neither."""
    filled = pc.if_else(pc.equal(column, ""), None, column)
    try:
        return filled.cast(pa.float64())
    except pa.ArrowInvalid:
        pass
    plain = pc.if_else(pc.is_in(filled, value_set=_TRUE), "1", filled)
    plain = pc.if_else(pc.is_in(filled, value_set=_FALSE), "0", plain)
    try:
        return plain.cast(pa.float64())
    except pa.ArrowInvalid:
        return column


def to_parquet(path: Path, target: Path, tags: Collection[str], limit_bytes: int) -> None:
    """Writes a CSV's rows as Parquet: ``time`` in UTC, tags and texts, all else numbers.

    A column is text where one of its values is no number, and left out where it has none: the
    file is read twice. Raises ValueError.
    """
    names = columns_of(path)
    texts = {name for name in tags if name in names}
    empty = set(names) - {"time"}
    for block in blocks(path, names, limit_bytes, True):
        for name in names:
            column = block.column(name)
            if name in empty and column.null_count < len(column):
                empty.discard(name)
            if (
                name != "time"
                and name not in texts
                and pa.types.is_string(number_if_any(column).type)
            ):
                texts.add(name)
    kept = [name for name in names if name not in empty or name in tags]
    kinds = {
        name: pa.string() if name in texts else pa.float64() for name in kept if name != "time"
    }
    schema = pa.schema([("time", TIME), *kinds.items()])
    with pq.ParquetWriter(target, schema, compression="zstd", compression_level=1) as writer:
        for block in blocks(path, names, limit_bytes, True):
            columns = {"time": _times(path, block.column("time"))}
            for name, kind in kinds.items():
                column = block.column(name)
                columns[name] = column if kind == pa.string() else _numbers(path, column)
            writer.write_table(pa.table(columns, schema=schema))


def _numbers(path: Path, column: pa.ChunkedArray) -> pa.ChunkedArray:
    made = number_if_any(column)
    if not pa.types.is_floating(made.type):
        raise ValueError(f"{path}: has changed while it was read")
    return made


def _times(path: Path, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if column.null_count:
        raise ValueError(f"{path}: {column.null_count} of its rows have no time")
    try:
        return utc(column)
    except pa.ArrowException as error:
        raise ValueError(f"{path}: a time cannot be read: {str(error)[:200]}") from error
