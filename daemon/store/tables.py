"""Arrow tables of samples: made from spool columns, unified, sorted, every point once.

A table has ``time`` (timestamp, ns, UTC), then the tags (dictionary of strings), then the
fields (double or string); the schema's metadata names the tags. A tag or field that a row
has not is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from daemon.store.packing import Columns, split_series

TIME = pa.timestamp("ns", tz="UTC")
TAG = pa.dictionary(pa.int32(), pa.string())
_TAGS_KEY = b"tocsin.tags"


def tags_of(schema: pa.Schema) -> list[str]:
    """The names of the tag columns."""
    metadata = schema.metadata or {}
    names = metadata.get(_TAGS_KEY, b"").decode()
    return names.split("\x1f") if names else []


def with_tags(table: pa.Table, tags: Sequence[str]) -> pa.Table:
    """``table`` with the names of its tag columns in the metadata."""
    metadata = {**(table.schema.metadata or {}), _TAGS_KEY: "\x1f".join(tags).encode()}
    return table.replace_schema_metadata(metadata)


def empty_table() -> pa.Table:
    """No rows."""
    return with_tags(pa.table({"time": pa.array([], TIME)}), [])


def from_columns(groups: Iterable[Columns]) -> pa.Table:
    """All rows of ``groups`` (one measurement), in their order; not sorted yet."""
    chunks = [group for group in groups if len(group.times)]
    if not chunks:
        return empty_table()
    ids: dict[str, int] = {}
    codes = [
        np.fromiter(
            (ids.setdefault(s, len(ids)) for s in chunk.series), np.int32, len(chunk.series)
        )
        for chunk in chunks
    ]
    code = np.concatenate(codes)
    columns: dict[str, pa.Array] = {"time": _time_array(np.concatenate([c.times for c in chunks]))}
    tags = [split_series(series) for series in ids]
    tag_names = sorted({name for pairs in tags for name, _ in pairs}, key=_node_first)
    for name in tag_names:
        columns[name] = tag_array([dict(pairs).get(name) for pairs in tags], code)
    for name, values in _fields(chunks, len(code)).items():
        # As InfluxDB does in its answers when a field is called like a tag.
        columns[name if name not in columns else f"{name}_1"] = values
    return with_tags(pa.table(columns), tag_names)


def in_pieces(groups: Iterable[Columns], limit_values: int) -> Iterator[list[Columns]]:
    """``groups`` in their order, so many at once that their table has some ``limit_values`` places.

    Each group has its own fields, and a table a place for each field in each row: a few megabytes
    of rows with one field each, of hundreds, would be a table of gigabytes.
    """
    waiting: list[Columns] = []
    names: set[str] = set()
    rows = 0
    for group in groups:
        together = names.union(group.names)
        if waiting and (rows + len(group.times)) * len(together) > limit_values:
            yield waiting
            waiting, together, rows = [], set(group.names), 0
        waiting.append(group)
        names = together
        rows += len(group.times)
    if waiting:
        yield waiting


def _node_first(name: str) -> tuple[bool, str]:
    return name != "node", name


def _time_array(times: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(times, pa.int64()).cast(TIME)


def tag_array(values: list[str | None], code: npt.NDArray[np.int32]) -> pa.Array:
    """The tag's value for each row, from its value for each series (``code``: its number)."""
    distinct = sorted({value for value in values if value is not None})
    place = {value: number for number, value in enumerate(distinct)}
    of_series = np.array([-1 if v is None else place[v] for v in values], np.int32)
    of_row = of_series[code]
    indices = pa.array(of_row, pa.int32(), mask=of_row < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(distinct, pa.string()))


def _fields(chunks: list[Columns], rows: int) -> dict[str, pa.Array]:
    """Each field over all rows; text wins where a field is now a number and now a text."""
    numbers: dict[str, npt.NDArray[np.float64]] = {}
    present: dict[str, npt.NDArray[np.bool_]] = {}
    texts: dict[str, dict[int, str]] = {}
    start = 0
    for chunk in chunks:
        end = start + len(chunk.times)
        number_column = text_column = 0
        for name, is_text in zip(chunk.names, chunk.text, strict=True):
            if is_text:
                column = {
                    start + row: values[text_column] for row, values in enumerate(chunk.texts)
                }
                texts.setdefault(name, {}).update(column)
                text_column += 1
                continue
            if name not in numbers:
                numbers[name] = np.zeros(rows)
                present[name] = np.zeros(rows, bool)
            numbers[name][start:end] = chunk.numbers[:, number_column]
            present[name][start:end] = True
            number_column += 1
        start = end
    arrays = {
        name: pa.array(numbers[name], pa.float64(), mask=~present[name])
        for name in numbers
        if name not in texts
    }
    for name, by_row in texts.items():
        values: list[str | None] = [by_row.get(row) for row in range(rows)]
        if name in numbers:
            for row in np.flatnonzero(present[name]):
                values[row] = _as_text(numbers[name][row])
        arrays[name] = pa.array(values, pa.string())
    return arrays


def _as_text(value: float) -> str:
    return repr(float(value))


def unify(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all tables in their order, with the columns of all of them."""
    tables = [table for table in tables if table.num_rows]
    if not tables:
        return empty_table()
    if len(tables) == 1:
        return tables[0]
    schema = unify_schemas([table.schema for table in tables])
    tags = tags_of(schema)
    aligned = [align(table, schema) for table in tables]
    joined = pa.concat_tables(aligned).unify_dictionaries().combine_chunks()
    return with_tags(joined, tags)


def unify_schemas(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of all: time, tags, fields; text where a field is not a number everywhere.

    What is a tag in one and a field in another stays both, the field as ``NAME_1``.
    """
    tags = sorted({tag for schema in schemas for tag in tags_of(schema)}, key=_node_first)
    types: dict[str, pa.DataType] = {"time": TIME, **dict.fromkeys(tags, TAG)}
    for schema in schemas:
        own = tags_of(schema)
        for column in schema:
            clashes = column.name in tags and column.name not in own
            name = f"{column.name}_1" if clashes else column.name
            known = types.setdefault(name, column.type)
            if name not in tags and known != column.type:
                types[name] = pa.string()
    metadata = {_TAGS_KEY: "\x1f".join(tags).encode()}
    return pa.schema(list(types.items()), metadata=metadata)


def align(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """``table`` with exactly the columns of ``schema``; what it has not is null."""
    columns = []
    empty: dict[pa.DataType, pa.Array] = {}  # one for all columns of a type: they may be hundreds
    tags = set(tags_of(schema))
    clashing = (tags & set(table.column_names)) - set(tags_of(table.schema))
    for field in schema:
        base = field.name.removesuffix("_1")
        name = base if base != field.name and base in clashing else field.name
        if name not in table.column_names or (field.name in clashing):
            if field.type not in empty:
                empty[field.type] = pa.nulls(table.num_rows, field.type)
            columns.append(empty[field.type])
            continue
        column = table.column(name)
        if column.type != field.type:
            if pa.types.is_floating(column.type) and pa.types.is_string(field.type):
                column = pa.array(
                    [None if v is None else _as_text(v) for v in column.to_pylist()], pa.string()
                )
            else:
                column = column.cast(field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def sort_once(table: pa.Table) -> pa.Table:
    """``table`` sorted by tags and time, every (tags, time) once.

    Rows that share tags and time become one: of each field the value that came last.
    """
    rows = table.num_rows
    if rows < 2:
        return table
    table = table.combine_chunks()
    tags = tags_of(table.schema)
    series = _series_codes(table, tags)
    times = times_ns(table)
    if _is_sorted_once(series, times):
        return table
    order = np.lexsort((times, series))  # stable: equal points stay in the order they came
    series, times = series[order], times[order]
    first = np.empty(rows, bool)
    first[0] = True
    np.not_equal(series[1:], series[:-1], out=first[1:])
    first[1:] |= times[1:] != times[:-1]
    if first.all():
        return with_tags(table.take(pa.array(order)), tags)
    return _merge(table, order, np.flatnonzero(first), tags)


def _merge(
    table: pa.Table, order: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], tags: list[str]
) -> pa.Table:
    rows = len(order)
    lasts = np.append(starts[1:], rows) - 1
    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table.column(name)
        if column.null_count == 0:
            columns[name] = column.take(pa.array(order[lasts]))
            continue
        valid = np.asarray(pc.is_valid(column).to_numpy())[order]
        newest = np.maximum.accumulate(np.where(valid, np.arange(rows), -1))[lasts]
        missing = newest < starts
        chosen = order[np.where(missing, 0, newest)]
        columns[name] = column.take(pa.array(chosen, mask=missing))
    return with_tags(pa.table(columns), tags)


def _is_sorted_once(series: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> bool:
    step = np.diff(series)
    return bool(((step > 0) | ((step == 0) & (np.diff(times) > 0))).all())


def _series_codes(table: pa.Table, tags: Sequence[str]) -> npt.NDArray[np.int64]:
    """One number a row, equal for equal tags, growing with the tags' order."""
    code = np.zeros(table.num_rows, np.int64)
    for name in tags:
        column = table.column(name)
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0) if array.num_chunks else pa.array([], TAG)
        words = array.dictionary.to_pylist()
        rank = np.empty(len(words) + 1, np.int64)
        rank[np.array(sorted(range(len(words)), key=words.__getitem__), np.int64)] = np.arange(
            1, len(words) + 1
        )
        rank[-1] = 0  # the index -1 of a missing tag
        indices = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        code = code * (len(words) + 1) + rank[indices]
        if len(words) > 1:
            # Kept dense, so that no number of tags can overflow.
            _, code = np.unique(code, return_inverse=True)
    return code


def times_ns(table: pa.Table) -> npt.NDArray[np.int64]:
    """The ``time`` column as integers."""
    times: npt.NDArray[np.int64] = table.column("time").cast(pa.int64()).to_numpy()
    return times


def to_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as dictionaries with ``time_ns`` instead of ``time``; what is null is absent.

    (``Table.to_pylist`` cannot give nanoseconds without pandas.)
    """
    times = times_ns(table).tolist()
    columns = {
        name: table.column(name).to_pylist() for name in table.column_names if name != "time"
    }
    found: list[dict[str, Any]] = [{"time_ns": time} for time in times]
    for name, values in columns.items():
        for row, value in zip(found, values, strict=True):
            if value is not None:
                row[name] = value
    return found
