"""Writes a telemetry directory: one Parquet file per measurement, streamed in time order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from collectors.sample import Sample, Tags
from models.telemetry.chunk import TAG_COLUMNS

ROW_GROUP_ROWS = 500_000

# Text fields of the measurements that may hold text (all others hold floats only).
TEXT_FIELDS: dict[str, tuple[str, ...]] = {
    "event": ("device", "process", "text"),
    "source": ("fault",),
    "slurm_event": ("after", "before", "jobs", "reason", "text", "user"),
}
NUMBER_FIELDS: dict[str, tuple[str, ...]] = {
    "event": ("pid", "severity"),
    "slurm_event": ("severity",),
}


class _Columns:
    """Rows of one measurement that wait to be written."""

    def __init__(self) -> None:
        self.rows = 0
        self.tags: list[tuple[tuple[Tags, ...], NDArray[np.int64]]] = []
        self.times: list[NDArray[np.int64]] = []
        self.fields: dict[str, list[NDArray[np.float64]]] = {}
        self.texts: dict[str, list[str]] = {}


class TelemetryWriter:
    """``with TelemetryWriter(directory) as writer: writer.columns(...)``.

    The columns of a measurement are those of its first rows: every table of one
    measurement has to bring the same fields (with NaN for what was not read).
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._waiting: dict[str, _Columns] = {}
        self._files: dict[str, pq.ParquetWriter] = {}

    def __enter__(self) -> TelemetryWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def columns(
        self,
        measurement: str,
        tags: tuple[Tags, ...],
        which: NDArray[np.int64],
        times_ns: NDArray[np.int64],
        fields: dict[str, NDArray[np.float64]],
        texts: dict[str, Sequence[str]] | None = None,
    ) -> None:
        """Rows i with tags[which[i]], times_ns[i] and fields[...][i]."""
        waiting = self._waiting.setdefault(measurement, _Columns())
        waiting.rows += len(which)
        waiting.tags.append((tags, which))
        waiting.times.append(times_ns)
        for name, values in fields.items():
            waiting.fields.setdefault(name, []).append(values)
        for name, column in (texts or {}).items():
            waiting.texts.setdefault(name, []).extend(column)
        if waiting.rows >= ROW_GROUP_ROWS:
            self._write(measurement)

    def samples(self, samples: Sequence[Sample]) -> None:
        """Single samples of ``event`` and ``slurm_event``, which are few."""
        for one in samples:
            name = one.measurement
            self.columns(
                name,
                (one.tags,),
                np.zeros(1, np.int64),
                np.array([one.time_ns], np.int64),
                {
                    field: np.array([one.number(field)], np.float64)
                    for field in NUMBER_FIELDS.get(name, ())
                },
                {field: [one.text(field)] for field in TEXT_FIELDS.get(name, ())},
            )

    def close(self) -> None:
        """Writes what waits and closes the files."""
        for name in list(self._waiting):
            self._write(name)
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _write(self, measurement: str) -> None:
        waiting = self._waiting.pop(measurement)
        if not waiting.rows:
            return
        columns: dict[str, pa.Array] = {
            "time": pa.array(np.concatenate(waiting.times), pa.timestamp("ns", tz="UTC"))
        }
        for tag in TAG_COLUMNS[measurement]:
            columns[tag] = _tag_column(tag, waiting.tags)
        for name, parts in waiting.fields.items():
            columns[name] = pa.array(np.concatenate(parts), from_pandas=True)
        for name, texts in waiting.texts.items():
            columns[name] = pa.array([text or None for text in texts], pa.string())
        table = pa.table(columns)
        if measurement not in self._files:
            path = self.directory / f"{measurement}.parquet"
            self._files[measurement] = pq.ParquetWriter(
                path, table.schema, compression="zstd", compression_level=1
            )
        self._files[measurement].write_table(table)


def _tag_column(tag: str, parts: list[tuple[tuple[Tags, ...], NDArray[np.int64]]]) -> pa.Array:
    codes: dict[str, int] = {}
    known: dict[int, NDArray[np.int32]] = {}
    indices = []
    for tags, which in parts:
        codes_of = known.get(id(tags))
        if codes_of is None:
            values = (dict(one).get(tag, "") for one in tags)
            codes_of = np.array([codes.setdefault(value, len(codes)) for value in values], np.int32)
            known[id(tags)] = codes_of
        indices.append(codes_of[which])
    return pa.DictionaryArray.from_arrays(
        pa.array(np.concatenate(indices)), pa.array(list(codes), pa.string())
    )
