"""Merges the Parquet files of an hour or a day into one, in bounded memory.

Ten thousand nodes write 3 GB of readings an hour, so nothing here holds an hour at once:
rows are taken node by node, some hundred thousand at a time, from all files together. Where one
node has more than that, by its further tags, and where one series has, by time: no sender can
make a piece that does not fit.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from daemon.frames import sync_directory
from daemon.store.errors import StoreUnavailableError, unavailable
from daemon.store.parts import Part, encodings, group_rows, sound
from daemon.store.sealed import open_sealed, seal
from daemon.store.tables import (
    TAG,
    TIME,
    align,
    sort_once,
    tags_of,
    times_ns,
    unify,
    unify_schemas,
    with_tags,
)

_BUCKET_ROWS = 400_000
# Of a table with many columns fewer rows at once: a sender may have named hundreds of them.
_BUCKET_VALUES = 20_000_000
_BUCKET_ROWS_LEAST = 16_384


@dataclass(frozen=True, slots=True)
class Piece:
    """Which rows are taken at once: tags from ... to (both included), and a span of time."""

    tags: tuple[tuple[str, str, str], ...] = ()
    low_ns: int = -(2**63)
    high_ns: int = 2**63 - 1


class _Source:
    """One file that is merged."""

    def __init__(self, path: Path) -> None:
        self.file = open_sealed(path)
        self._names = self.file.schema_arrow.names
        metadata = self.file.metadata
        tags = tags_of(self.file.schema_arrow)
        places = {name: self._names.index(name) for name in ("time", *tags)}
        self._limits = [
            {name: _limits(group.column(place)) for name, place in places.items()}
            for group in map(metadata.row_group, range(metadata.num_row_groups))
        ]

    def tables(self, piece: Piece, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """The rows of ``piece``, a group of rows at a time."""
        for number in range(len(self._limits)):
            if not self._may_hold(number, piece):
                continue
            table = sound(self.file.read_row_group(number, columns=self._known(columns)))
            for name, low, high in piece.tags:
                words = self._words(table, name)
                inside = pc.and_(pc.greater_equal(words, low), pc.less_equal(words, high))
                table = table.filter(inside)
            if piece.low_ns > -(2**63) or piece.high_ns < 2**63 - 1:
                times = table.column("time").cast(pa.int64())
                inside = pc.and_(
                    pc.greater_equal(times, piece.low_ns), pc.less_equal(times, piece.high_ns)
                )
                table = table.filter(inside)
            if table.num_rows:
                yield table

    def counts(self, piece: Piece, key: str) -> Counter[str]:
        """How many rows of ``piece`` have each value of the tag ``key``; "" for none."""
        found: Counter[str] = Counter()
        wanted = [key if key in self._names else "time", *(name for name, _, _ in piece.tags)]
        for table in self.tables(piece, wanted):
            words = self._words(table, key)
            for item in pc.value_counts(words).to_pylist():
                found[item["values"]] += item["counts"]
        return found

    def times(self, piece: Piece) -> npt.NDArray[np.int64]:
        """The times of the rows of ``piece``."""
        wanted = ["time", *(name for name, _, _ in piece.tags)]
        found = [times_ns(table) for table in self.tables(piece, wanted)]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _known(self, columns: list[str] | None) -> list[str] | None:
        return columns and [name for name in columns if name in self._names]

    def _words(self, table: pa.Table, name: str) -> Any:
        """A tag as texts; "" where it is missing."""
        if name not in table.column_names:
            return pa.chunked_array([pa.repeat("", table.num_rows)])
        return pc.fill_null(table.column(name).cast(pa.string()), "")

    def _may_hold(self, number: int, piece: Piece) -> bool:
        limits = self._limits[number]
        for name, low, high in piece.tags:
            least, most = limits.get(name, ("", ""))
            if least is not None and not (least <= high and most >= low):
                return False
        least, most = limits["time"]
        return least is None or bool(least <= piece.high_ns and most >= piece.low_ns)


def _limits(column: pq.ColumnChunkMetaData) -> tuple[Any, Any]:
    """The least and the greatest value of a column in a group of rows; None where not known."""
    found = column.statistics
    if found is None or not found.has_min_max or found.null_count != 0:
        return None, None
    if found.physical_type == "INT64":
        return found.min_raw, found.max_raw
    return str(found.min), str(found.max)


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
        with open(temporary, "w+b") as file:
            in_order = sorted(parts, key=lambda part: (part.first, part.last))
            step_ns = 1 if transform is None else ROLLUP_NS
            _write_pieces(_pieces(in_order, step_ns), transform, file, level)
            seal(file)
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
                    write_page_checksum=True,
                )
            writer.write_table(table, row_group_size=group_rows(table))
    finally:
        if writer is not None:
            writer.close()


def _pieces(parts: Sequence[Part], step_ns: int) -> Iterator[pa.Table]:
    """All rows, some at a time, in order of the tags; at least one piece."""
    sources = [_Source(part.path) for part in parts]
    schema = unify_schemas([source.file.schema_arrow for source in sources])
    limit_rows = min(_BUCKET_ROWS, max(_BUCKET_ROWS_LEAST, _BUCKET_VALUES // len(schema)))
    some = False
    for piece in pieces_of(sources, tags_of(schema), limit_rows, step_ns):
        tables = [_without_empty(table) for source in sources for table in source.tables(piece)]
        yield align(sort_once(unify(tables)), schema) if tables else schema.empty_table()
        some = True
    if not some:
        yield schema.empty_table()


def pieces_of(
    sources: Sequence[_Source],
    tags: Sequence[str],
    limit_rows: int,
    step_ns: int = 1,
    within: Piece = Piece(),
) -> Iterator[Piece]:
    """Pieces of about ``limit_rows`` rows that hold all rows once, in order.

    Time is cut at multiples of ``step_ns`` only, so a series that is dense makes larger ones.
    """
    depth = len(within.tags)
    if depth == len(tags):
        yield from _spans(sources, limit_rows, step_ns, within)
        return
    counts: Counter[str] = Counter()
    for source in sources:
        counts += source.counts(within, tags[depth])
    low, rows, previous = None, 0, ""
    for word in sorted(counts):
        if low is not None and rows + counts[word] > limit_rows:
            yield Piece((*within.tags, (tags[depth], low, previous)))
            low, rows = None, 0
        if counts[word] > limit_rows:
            one = Piece((*within.tags, (tags[depth], word, word)))
            yield from pieces_of(sources, tags, limit_rows, step_ns, one)
            continue
        low = word if low is None else low
        rows += counts[word]
        previous = word
    if low is not None:
        yield Piece((*within.tags, (tags[depth], low, previous)))


def _spans(
    sources: Sequence[_Source], limit_rows: int, step_ns: int, within: Piece
) -> Iterator[Piece]:
    """The rows of one series, by time."""
    times = np.sort(np.concatenate([source.times(within) for source in sources]))
    low_ns = -(2**63)
    start = 0
    while len(times) - start > limit_rows:
        cut_ns = int(times[start + limit_rows]) // step_ns * step_ns
        if cut_ns <= int(times[start]):
            cut_ns = (int(times[start]) // step_ns + 1) * step_ns
        yield Piece(within.tags, low_ns, cut_ns - 1)
        low_ns = cut_ns
        start = int(np.searchsorted(times, cut_ns))
    if start < len(times):
        yield Piece(within.tags, low_ns)


def _without_empty(table: pa.Table) -> pa.Table:
    """``table`` without the fields that none of its rows has: they need not be sorted."""
    keep = {"time", *tags_of(table.schema)}
    names = [
        name
        for name in table.column_names
        if name in keep or table.column(name).null_count < table.num_rows
    ]
    return table.select(names)


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
