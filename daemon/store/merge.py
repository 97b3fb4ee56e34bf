"""Merges the Parquet files of an hour or a day into one, in bounded memory.

Ten thousand nodes write 3 GB of readings an hour, so nothing here holds an hour at once:
rows are taken node by node, some hundred thousand at a time, from all files together.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from daemon.frames import sync_directory
from daemon.store.errors import StoreUnavailableError, unavailable
from daemon.store.parts import ROW_GROUP_ROWS, Part, encodings
from daemon.store.tables import (
    TAG,
    TIME,
    align,
    sort_once,
    tags_of,
    unify,
    unify_schemas,
    with_tags,
)

_BUCKET_ROWS = 400_000
# Of a table with many columns fewer rows at once: a sender may have named hundreds of them.
_BUCKET_VALUES = 20_000_000
_BUCKET_ROWS_LEAST = 16_384


@dataclass(frozen=True, slots=True)
class _Open:
    """One source file: its reader, and the least and greatest key of each row group."""

    file: pq.ParquetFile
    bounds: tuple[tuple[str, str], ...]


def merge_parts(
    parts: Sequence[Part],
    target: Path,
    level: int,
    transform: Callable[[pa.Table], pa.Table] | None = None,
) -> int:
    """Writes all rows of ``parts``, sorted and every point once, to ``target``; its size.

    ``transform`` is applied to each piece (all rows of some nodes); it must keep ``time``
    and the tags. Raises StoreUnavailableError; then ``target`` is as it was before.
    """
    temporary = target.with_suffix(".tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            _write_pieces(
                _pieces(sorted(parts, key=lambda p: (p.first, p.last))), transform, file, level
            )
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        temporary.replace(target)
        for directory in (target.parent, target.parent.parent, target.parent.parent.parent):
            sync_directory(directory)
    except FileNotFoundError:
        temporary.unlink(missing_ok=True)
        raise
    except (OSError, pa.ArrowException) as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno:
            raise unavailable(error, target) from error
        raise StoreUnavailableError(
            f"store {target.parent}: a file cannot be read: {error}"
        ) from error
    return size


def _write_pieces(
    pieces: Iterator[pa.Table],
    transform: Callable[[pa.Table], pa.Table] | None,
    file: object,
    level: int,
) -> None:
    writer: pq.ParquetWriter | None = None
    try:
        for piece in pieces:
            table = piece if transform is None else transform(piece)
            if writer is None:
                dictionary, layout = encodings(table)
                writer = pq.ParquetWriter(
                    file,
                    table.schema,
                    compression="zstd",
                    compression_level=level,
                    use_dictionary=dictionary,
                    column_encoding=layout,
                    write_statistics=["time", *tags_of(table.schema)],
                )
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
    finally:
        if writer is not None:
            writer.close()


def _pieces(parts: Sequence[Part]) -> Iterator[pa.Table]:
    """All rows, some nodes at a time, in order of the first tag; at least one piece."""
    files = [pq.ParquetFile(part.path) for part in parts]
    schema = unify_schemas([file.schema_arrow for file in files])
    tags = tags_of(schema)
    key = tags[0] if tags else None
    opened = [_Open(file, tuple(_bounds(file, key))) for file in files]
    limit_rows = min(_BUCKET_ROWS, max(_BUCKET_ROWS_LEAST, _BUCKET_VALUES // len(schema)))
    for low, high in _buckets(files, key, limit_rows):
        tables = []
        for source in opened:
            groups = [
                n for n, (least, most) in enumerate(source.bounds) if least <= high and most >= low
            ]
            if not groups:
                continue
            table = source.file.read_row_groups(groups)
            if key is not None and key in table.column_names:
                words = pc.fill_null(table.column(key).cast(pa.string()), "")
                inside = pc.and_(pc.greater_equal(words, low), pc.less_equal(words, high))
                table = table.filter(inside)
            if table.num_rows:
                tables.append(_without_empty(table))
        yield align(sort_once(unify(tables)), schema) if tables else schema.empty_table()


def _without_empty(table: pa.Table) -> pa.Table:
    """``table`` without the fields that none of its rows has: they need not be sorted."""
    keep = {"time", *tags_of(table.schema)}
    names = [
        name
        for name in table.column_names
        if name in keep or table.column(name).null_count < table.num_rows
    ]
    return table.select(names)


def _bounds(file: pq.ParquetFile, key: str | None) -> Iterator[tuple[str, str]]:
    """The least and greatest key of each row group; everything where that is not known."""
    names = file.schema_arrow.names
    for number in range(file.num_row_groups):
        least, most = "", "\U0010ffff"
        if key is not None and key in names:
            statistics = file.metadata.row_group(number).column(names.index(key)).statistics
            if statistics is not None and statistics.has_min_max and statistics.null_count == 0:
                least, most = str(statistics.min), str(statistics.max)
        yield least, most


def _buckets(
    files: Sequence[pq.ParquetFile], key: str | None, limit_rows: int
) -> Iterator[tuple[str, str]]:
    """Ranges of keys that hold about ``limit_rows`` rows each."""
    counts: Counter[str] = Counter()
    for file in files:
        if key is None or key not in file.schema_arrow.names:
            counts[""] += file.metadata.num_rows
            continue
        column = file.read(columns=[key]).column(key)
        for item in pc.value_counts(column.cast(pa.string())).to_pylist():
            counts[item["values"] or ""] += item["counts"]
    low, rows, previous = None, 0, ""
    for word in sorted(counts):
        if low is not None and rows + counts[word] > limit_rows:
            yield low, previous
            low, rows = None, 0
        low = word if low is None else low
        rows += counts[word]
        previous = word
    if low is not None:
        yield low, previous


ROLLUP_NS = 300 * 1_000_000_000
# A number as tables.py writes it where a column holds texts as well; "17" of a text is none.
_NUMBER = r"^-?(\d+\.\d+(e[-+]\d+)?|\d+e[-+]\d+|inf)$"


def five_minutes(table: pa.Table) -> pa.Table:
    """Mean, least and greatest of each number over five minutes: ``f``, ``f_min``, ``f_max``.

    ``time`` is the beginning of the five minutes; ``readings`` says how many rows there were.
    Where one sender has said text in a field that others say numbers in, the numbers count.
    """
    tags = tags_of(table.schema)
    numbers = {
        field.name: _numbers(table.column(field.name))
        for field in table.schema
        if field.name != "time" and field.name not in tags
    }
    fields = list(numbers)
    nanoseconds = table.column("time").cast(pa.int64())
    start = pc.multiply(pc.divide(nanoseconds, ROLLUP_NS), ROLLUP_NS)
    # Integer division rounds to zero; before 1970 there are no readings.
    columns = {"time": start, **{tag: table.column(tag) for tag in tags}}
    # Named as no tag can be: a sender's tag "v0" must not stop everybody's roll-ups.
    inner = [f"\x1f{number}" for number in range(len(fields))]
    columns |= {place: numbers[name] for place, name in zip(inner, fields, strict=True)}
    asked: list[tuple[object, ...]] = [([], "count_all")]
    for place in inner:
        asked += [(place, how) for how in ("mean", "min", "max")]
    grouped = pa.table(columns).group_by(["time", *tags], use_threads=False).aggregate(asked)
    result = {"time": grouped.column("time").cast(TIME)}
    result |= {tag: _as_tag(grouped.column(tag)) for tag in tags}
    result.setdefault("readings", grouped.column("count_all").cast(pa.float64()))
    for place, name in zip(inner, fields, strict=True):
        for how, suffix in (("mean", ""), ("min", "_min"), ("max", "_max")):
            result.setdefault(name + suffix, grouped.column(f"{place}_{how}"))
    return sort_once(with_tags(pa.table(result), tags))


def _numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The numbers of a field, also where they stand as text beside another sender's text."""
    if not (pa.types.is_string(column.type) or pa.types.is_dictionary(column.type)):
        return column.cast(pa.float64())
    texts = column.cast(pa.string())
    written = pc.match_substring_regex(texts, _NUMBER)
    return pc.if_else(written, texts, None).cast(pa.float64())


def _as_tag(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(TAG) if column.type != TAG else column
