"""The tables of a telemetry directory, opened so that no file of it can fill the memory.

What is Parquet is looked at page by page first (:mod:`models.telemetry.pages`); everything else
(CSV, other kinds of time) is written to Parquet once, block by block, in a temporary folder.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from models.telemetry.chunk import TAG_COLUMNS
from models.telemetry.csvfile import to_parquet
from models.telemetry.pages import Unpacked, look_at
from models.telemetry.times import TIME, utc
from models.telemetry.unpack import TooLargeError

# Of one CSV, as text. More is converted piece by piece: `tocsin import`, `tocsin export`.
CSV_LIMIT_BYTES = 64 * 1024**3
# Parquet is unpacked a group of rows at a time; writers make groups of a tenth of this.
GROUP_LIMIT_BYTES = 4 * 1024**3
_BATCH_ROWS = 64 * 1024
_SUFFIXES = (".csv", ".csv.gz", ".csv.bz2", ".csv.xz")


class Scratch:
    """A temporary folder that is made when it is needed, and goes with its owner."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def file(self, name: str) -> Path:
        """Where to write a file of that name."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="tocsin-telemetry-")
        return Path(self._folder.name) / name


class Table:
    """One measurement's rows on disk. ``table_bytes``: what all of it would be in memory."""

    def __init__(self, path: Path, files: list[tuple[Path, Unpacked]]) -> None:
        self.path = path
        self.table_bytes = sum(found.table_bytes for _, found in files)
        texts = {name for file, _ in files for name in _texts_of(file)}
        # As dictionaries, a text that stands in a million rows is in memory once.
        options = ds.ParquetReadOptions(dictionary_columns=sorted(texts))
        layout = ds.ParquetFileFormat(read_options=options)
        each = [ds.dataset(str(file), format=layout).schema for file, _ in files]
        try:
            # A column that only some of the files have is a column.
            schema = pa.unify_schemas(each)
        except pa.ArrowException as error:
            raise ValueError(f"{path}: its files do not go together: {error}") from error
        self.dataset = ds.dataset([str(file) for file, _ in files], schema=schema, format=layout)


def open_table(
    directory: Path, name: str, scratch: Scratch, csv_limit_bytes: int = CSV_LIMIT_BYTES
) -> Table | None:
    """The table ``name`` of ``directory``; None where there is none. Raises ValueError."""
    for path in (directory / f"{name}.parquet", directory / name):
        if path.exists():
            return _of_parquet(path, name, scratch)
    for suffix in _SUFFIXES:
        path = directory / f"{name}{suffix}"
        if path.exists():
            target = scratch.file(f"{name}.parquet")
            make = partial(to_parquet, path, target, TAG_COLUMNS[name], csv_limit_bytes)
            _made(path, target, make)
            return Table(path, [(target, look_at(target))])
    return None


def _of_parquet(path: Path, name: str, scratch: Scratch) -> Table:
    parts = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    files: list[tuple[Path, Unpacked]] = []
    for number, part in enumerate(parts):
        found = look_at(part)
        if found.group_bytes > GROUP_LIMIT_BYTES:
            raise TooLargeError(
                f"{part}: a group of rows is {found.group_bytes} bytes unpacked, over"
                f" {GROUP_LIMIT_BYTES}; write it in smaller groups (tocsin import, tocsin export)"
            )
        schema = pq.read_schema(part)
        if "time" not in schema.names:
            raise ValueError(f"{part} has no column time")
        if schema.field("time").type != TIME:
            target = scratch.file(f"{name}-{number}.parquet")
            _made(part, target, partial(_retimed, part, target))
            part, found = target, look_at(target)
        files.append((part, found))
    if not files:
        raise ValueError(f"{path} holds no Parquet file")
    return Table(path, files)


def _texts_of(path: Path) -> list[str]:
    found = []
    for column in pq.read_schema(path):
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            found.append(column.name)
    return found


def _made(path: Path, target: Path, make: Callable[[], None]) -> None:
    try:
        make()
    except pa.ArrowException as error:
        raise ValueError(f"{path}: cannot be read: {str(error)[:300]}") from error
    except OSError as error:
        raise OSError(
            f"{path}: cannot be written as Parquet in {target.parent}: {error.strerror or error};"
            " TMPDIR names another folder"
        ) from error


def _retimed(path: Path, target: Path) -> None:
    """The same rows with their times as UTC nanoseconds."""
    with pq.ParquetFile(path, read_dictionary=_texts_of(path)) as file:
        writer: pq.ParquetWriter | None = None
        try:
            for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
                table = pa.table(batch)
                place = table.column_names.index("time")
                table = table.set_column(place, "time", utc(table.column("time")))
                writer = writer or pq.ParquetWriter(target, table.schema, compression="zstd")
                writer.write_table(table)
            if writer is None:
                schema = file.schema_arrow
                place = schema.names.index("time")
                writer = pq.ParquetWriter(target, schema.set(place, pa.field("time", TIME)))
        finally:
            if writer is not None:
                writer.close()


def physical_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
