"""Reads a telemetry directory in order of time, window by window, whatever its size.

A measurement is a Parquet file or folder (``gpu.parquet``, ``gpu/*.parquet``) or a CSV
(``gpu.csv``, also .gz, .bz2 and .xz). They are read by time range, never as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from collectors.sample import Tags
from models.telemetry.chunk import TAG_COLUMNS, Chunk
from models.telemetry.opened import CSV_LIMIT_BYTES, Scratch, Table, open_table, physical_bytes
from models.telemetry.times import TIME

DAY_NS = 86_400_000_000_000


class Telemetry:
    """The tables of ``directory``. ``without``: ``gpu`` or ``gpu:power_watts`` to leave out.

    ``nodes`` keeps the readings of some nodes; ``span_ns`` then gives the whole directory's time,
    so that the windows of all parts of a fleet begin and end alike.
    """

    # So much time is read at once, and may not need more than this.
    read_ns = DAY_NS
    memory_bytes = physical_bytes()

    def __init__(
        self,
        directory: Path,
        without: Sequence[str] = (),
        nodes: Collection[str] | None = None,
        csv_limit_bytes: int = CSV_LIMIT_BYTES,
    ) -> None:
        """Raises FileNotFoundError, and ValueError for a file that cannot be read or is a bomb."""
        if not directory.is_dir():
            raise FileNotFoundError(f"{directory} is not a folder")
        self.directory = directory
        self.without = tuple(without)
        self.nodes = None if nodes is None else frozenset(nodes)
        left_out = {one for one in without if ":" not in one}
        self._without: dict[str, list[str]] = {}
        for one in without:
            name, _, field = one.partition(":")
            if field:
                self._without.setdefault(name, []).append(field)
        self._scratch = Scratch()
        self._sources: dict[str, Table] = {}
        for name in TAG_COLUMNS:
            source = (
                None
                if name in left_out
                else open_table(directory, name, self._scratch, csv_limit_bytes)
            )
            if source is not None:
                self._sources[name] = source
        if not self._sources:
            raise FileNotFoundError(
                f"{directory} holds no table that tocsin knows (gpu.parquet ...)"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """It is opened anew where it is sent to: readings do not travel."""
        return Telemetry, (self.directory, self.without, self.nodes)

    def of_nodes(self, nodes: Collection[str]) -> Self:
        """The same readings, of some nodes only."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)  # a copy would open everything again
        made.nodes = frozenset(nodes)
        return made

    @property
    def measurements(self) -> tuple[str, ...]:
        """What there is, in the design's order."""
        return tuple(self._sources)

    def span_ns(self) -> tuple[int, int]:
        """Time of the first and the last reading, of whatever node."""
        lows, highs = [], []
        for source in self._sources.values():
            for batch in source.dataset.to_batches(columns=["time"]):
                low_high = pc.min_max(batch.column(0))
                if low_high["min"].is_valid:
                    lows.append(low_high["min"].value)
                    highs.append(low_high["max"].value)
        if not lows:
            raise ValueError(f"{self.directory} holds no readings")
        return min(lows), max(highs)

    def node_names(self) -> list[str]:
        """Every node that any table names."""
        found: set[str] = set()
        for source in self._sources.values():
            if "node" in source.dataset.schema.names:
                for batch in source.dataset.to_batches(columns=["node"]):
                    names = pc.unique(batch.column(0)).cast(pa.string())
                    found.update(one for one in names.to_pylist() if one)
        return sorted(found if self.nodes is None else found & self.nodes)

    def windows(
        self, window_ns: int, measurements: Sequence[str] | None = None
    ) -> Iterator[tuple[int, list[Chunk]]]:
        """(end of window, its chunks by measurement), each chunk sorted by time.

        A window holds the readings with begin < time <= end, so that at its end everything
        up to then is known. Parquet is read a day at a time and cut into windows in memory.
        Days without any reading are passed over.
        """
        first_ns, last_ns = self.span_ns()
        start_ns = (first_ns - 1) // window_ns * window_ns
        span_ns = max(window_ns, self.read_ns - self.read_ns % window_ns)
        names = [name for name in self.measurements if measurements is None or name in measurements]
        for day_ns in range(start_ns, last_ns, span_ns):
            stop_ns = min(day_ns + span_ns, -(-last_ns // window_ns) * window_ns)
            chunks = [self.chunk(name, day_ns + 1, stop_ns + 1) for name in names]
            if not any(len(one) for one in chunks):
                continue
            for begin_ns in range(day_ns, stop_ns, window_ns):
                end_ns = begin_ns + window_ns
                parts = (_cut(one, begin_ns + 1, end_ns + 1) for one in chunks)
                yield end_ns, [part for part in parts if len(part)]

    def chunk(self, measurement: str, begin_ns: int, end_ns: int) -> Chunk:
        """All readings of a measurement with begin <= time < end, sorted by time."""
        source = self._sources[measurement].dataset
        low, high = pa.scalar(begin_ns, TIME), pa.scalar(end_ns, TIME)
        time = ds.field("time")
        within = (time >= low) & (time < high)
        if self.nodes is not None and "node" in source.schema.names:
            within &= ds.field("node").cast(pa.string()).isin(sorted(self.nodes))
        self._check_room(measurement, within)
        chunk = to_chunk(measurement, source.to_table(filter=within))
        return chunk.without(self._without.get(measurement, []))

    def _check_room(self, measurement: str, within: ds.Expression) -> None:
        """Raises ValueError where what is to be read at once does not fit into the memory."""
        source = self._sources[measurement]
        if source.table_bytes <= self.memory_bytes:
            return
        rows = source.dataset.count_rows(filter=within)
        size = 8 * rows * len(source.dataset.schema.names)
        if size > self.memory_bytes:
            raise ValueError(
                f"{source.path}: a day of it is {rows} rows, {size} bytes in memory, and this"
                f" machine has {self.memory_bytes}; give it less of the fleet at once"
            )


def to_chunk(measurement: str, table: pa.Table) -> Chunk:
    """The rows of a table (``time``, tags, fields) as a chunk, sorted by time."""
    times = table.column("time").cast(pa.int64()).to_numpy()
    tags, which = _tags(measurement, table)
    fields: dict[str, NDArray[np.float64]] = {}
    texts: dict[str, Sequence[str]] = {}
    for name in table.column_names:
        if name == "time" or name in TAG_COLUMNS[measurement]:
            continue
        column = table.column(name)
        if pa.types.is_dictionary(column.type):
            if pa.types.is_string(column.type.value_type):
                texts[name] = _texts(column)
                continue
            column = column.cast(column.type.value_type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            texts[name] = [text or "" for text in column.to_pylist()]
        elif not pa.types.is_null(column.type):
            fields[name] = column.cast(pa.float64()).to_numpy().astype(np.float64, copy=False)
    if len(times) > 1 and bool((np.diff(times) < 0).any()):
        order = np.argsort(times, kind="stable")
        times, which = times[order], which[order]
        fields = {name: values[order] for name, values in fields.items()}
        texts = {name: [column[i] for i in order.tolist()] for name, column in texts.items()}
    return Chunk(measurement, tags, which, times, fields, texts)


def _texts(column: pa.ChunkedArray) -> list[str]:
    """Texts kept as a dictionary, each of them in memory once."""
    found: list[str] = []
    for chunk in column.chunks:
        words = [word or "" for word in chunk.dictionary.to_pylist()] + [""]
        indices = chunk.indices.fill_null(len(words) - 1).to_pylist()
        found += [words[index] for index in indices]
    return found


def _tags(measurement: str, table: pa.Table) -> tuple[list[Tags], NDArray[np.int64]]:
    """The different tag sets of a table, and which one each row has."""
    names = [name for name in TAG_COLUMNS[measurement] if name in table.column_names]
    code = np.zeros(len(table), np.int64)
    values: list[list[str]] = []
    for name in names:
        column = table.column(name)
        if not pa.types.is_dictionary(column.type):
            column = column.cast(pa.string()).dictionary_encode()
        whole = column.combine_chunks()
        if isinstance(whole, pa.ChunkedArray):
            whole = whole.unify_dictionaries().combine_chunks()
        texts = [text or "" for text in whole.dictionary.to_pylist()]
        indices = whole.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
        values.append([*texts, ""])
        code = code * (len(texts) + 1) + indices.astype(np.int64)
    different, which = np.unique(code, return_inverse=True)
    tags: list[Tags] = []
    for one in different.tolist():
        parts = []
        for name, texts in zip(reversed(names), reversed(values), strict=True):
            one, index = divmod(one, len(texts))
            if texts[index]:
                parts.append((name, texts[index]))
        tags.append(tuple(sorted(parts)))
    return tags, which.astype(np.int64)


def _cut(chunk: Chunk, begin_ns: int, end_ns: int) -> Chunk:
    low, high = np.searchsorted(chunk.times_ns, [begin_ns, end_ns])
    if low == 0 and high == len(chunk):
        return chunk
    part = slice(int(low), int(high))
    return Chunk(
        chunk.measurement,
        chunk.tags,
        chunk.which[part],
        chunk.times_ns[part],
        {name: values[part] for name, values in chunk.fields.items()},
        {name: texts[part] for name, texts in chunk.texts.items()},
    )
