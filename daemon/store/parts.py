"""The Parquet files of the store: their names, how one is written, which of them count.

``parquet/gpu/2026-11-30/14.00000007-00000009.parquet`` holds the rows of measurement gpu
whose time lies in that hour and which came in spool segments 7 to 9; ``day.…`` holds those
of a whole day. A file that covers the same hours and a wider range of segments than another
has all of its rows, so the other no longer counts. That is how a crash between writing a
file and removing what it replaces can neither lose a row nor double one.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from daemon.frames import sync_directory
from daemon.store.errors import StoreUnavailableError, unavailable
from daemon.store.sealed import open_sealed, seal
from daemon.store.tables import tags_of, times_ns

HOUR_NS = 3600 * 1_000_000_000
DAY_NS = 24 * HOUR_NS
_NAME = re.compile(r"(day|[01]\d|2[0-3])\.(\d{8,})-(\d{8,})\.parquet")
_DATE = re.compile(r"-?\d{4,}-\d\d-\d\d")
ROW_GROUP_ROWS = 64 * 1024
_GROUP_VALUES = 4 * 1024 * 1024
_GROUP_ROWS_LEAST = 4096
_SAMPLED_ROWS = 4096
_FOLDER_NAME_LIMIT_BYTES = 255
_EPOCH = datetime.date(1970, 1, 1)


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """One Parquet file: its measurement, the time and the segments that it covers."""

    measurement: str
    day: int  # days since 1970
    hour: int  # -1: the whole day
    first: int
    last: int
    path: Path

    @property
    def start_ns(self) -> int:
        """Where its time begins."""
        return self.day * DAY_NS + max(0, self.hour) * HOUR_NS

    @property
    def end_ns(self) -> int:
        """Where its time ends (not included)."""
        return self.start_ns + (DAY_NS if self.hour < 0 else HOUR_NS)

    def covers(self, other: Part) -> bool:
        """Whether every row of ``other`` is in this one."""
        return (
            self.measurement == other.measurement
            and self.day == other.day
            and self.hour in (-1, other.hour)
            and self.first <= other.first
            and self.last >= other.last
            and (self.hour, self.first, self.last) != (other.hour, other.first, other.last)
        )


def measurement_directory(root: Path, measurement: str) -> Path:
    """Where the files of ``measurement`` are; any name gives a safe folder name."""
    name = urllib.parse.quote(measurement, safe="")
    return root / (name.replace(".", "%2E") if name.startswith(".") else name)


def is_too_long(measurement: str) -> bool:
    """Whether no file system has room for the folder of ``measurement``."""
    return len(measurement_directory(Path(), measurement).name) > _FOLDER_NAME_LIMIT_BYTES


def part_path(root: Path, measurement: str, day: int, hour: int, first: int, last: int) -> Path:
    """The name of a part."""
    date = _EPOCH + datetime.timedelta(days=day)
    label = "day" if hour < 0 else f"{hour:02d}"
    directory = measurement_directory(root, measurement) / date.isoformat()
    return directory / f"{label}.{first:08d}-{last:08d}.parquet"


def measurements(root: Path) -> list[str]:
    """The measurements that have files."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(urllib.parse.unquote(p.name) for p in root.iterdir() if p.is_dir())
    return []


def list_parts(
    root: Path, measurement: str, start_ns: int = -(2**63), end_ns: int = 2**63 - 1
) -> list[Part]:
    """The parts that count and may hold rows of [start_ns, end_ns), in order of time."""
    found: list[Part] = []
    directory = measurement_directory(root, measurement)
    try:
        days = sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    for folder in days:
        day = _day_of(folder)
        if day is None:
            continue
        if (day + 1) * DAY_NS <= start_ns or day * DAY_NS >= end_ns:
            continue
        with contextlib.suppress(FileNotFoundError):
            found.extend(_parts_in(folder, measurement, day))
    counted = sorted(without_covered(found), key=lambda part: (part.start_ns, part.first))
    return [part for part in counted if part.end_ns > start_ns and part.start_ns < end_ns]


def _day_of(folder: Path) -> int | None:
    """The day that a folder is for; None for one that is not ours."""
    if not _DATE.fullmatch(folder.name):
        return None
    try:
        return (datetime.date.fromisoformat(folder.name) - _EPOCH).days
    except ValueError:
        return None


def _parts_in(folder: Path, measurement: str, day: int) -> Iterator[Part]:
    for path in folder.iterdir():
        named = _NAME.fullmatch(path.name)
        if named:
            hour = -1 if named[1] == "day" else int(named[1])
            yield Part(measurement, day, hour, int(named[2]), int(named[3]), path)


def all_parts(root: Path) -> Iterator[Part]:
    """Every part of every measurement, counted or not."""
    for measurement in measurements(root):
        for folder in sorted(measurement_directory(root, measurement).iterdir()):
            day = _day_of(folder)
            if day is not None:
                yield from _parts_in(folder, measurement, day)


def without_covered(parts: Iterable[Part]) -> list[Part]:
    """The parts that no other one covers."""
    parts = list(parts)
    by_day: dict[tuple[str, int], list[Part]] = {}
    for part in parts:
        by_day.setdefault((part.measurement, part.day), []).append(part)
    return [
        part
        for part in parts
        if not any(other.covers(part) for other in by_day[part.measurement, part.day])
    ]


def split_by_hour(table: pa.Table) -> Iterator[tuple[int, int, pa.Table]]:
    """(day, hour, rows) of a table, each still sorted."""
    hours = times_ns(table) // HOUR_NS
    for hour in np.unique(hours):
        rows = (
            table if len(hours) and (hours == hour).all() else table.filter(pa.array(hours == hour))
        )
        yield int(hour) // 24, int(hour) % 24, rows


def split_by_day(table: pa.Table) -> Iterator[tuple[int, int, pa.Table]]:
    """(day, -1, rows) of a table, each still sorted."""
    days = times_ns(table) // DAY_NS
    for day in np.unique(days):
        yield int(day), -1, table.filter(pa.array(days == day))


def is_short(table: pa.Table) -> bool:
    """Whether a table spans so little time that files by the hour are few."""
    times = times_ns(table)
    return bool(times.max() - times.min() < 3 * HOUR_NS) or table.num_rows > 5_000_000


def write_part(path: Path, table: pa.Table, level: int) -> int:
    """Writes a sorted table durably under its final name, or not at all; its size in bytes."""
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w+b") as file:
            _write(file, table, level)
            seal(file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        temporary.replace(path)
        sync_directory(path.parent)
        sync_directory(path.parent.parent)
        sync_directory(path.parent.parent.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise unavailable(error, path) from error
    return size


def _write(file: object, table: pa.Table, level: int) -> None:
    dictionary, layout = encodings(table)
    pq.write_table(
        table,
        file,
        row_group_size=group_rows(table),
        compression="zstd",
        compression_level=level,
        use_dictionary=dictionary,
        column_encoding=layout,
        write_statistics=["time", *tags_of(table.schema)],
        write_page_checksum=True,
        store_schema=True,
    )


def group_rows(table: pa.Table) -> int:
    """How many rows are written, and later read, at once: fewer of a table with many columns."""
    return max(_GROUP_ROWS_LEAST, min(ROW_GROUP_ROWS, _GROUP_VALUES // len(table.schema)))


def encodings(table: pa.Table) -> tuple[list[str], dict[str, str]]:
    """Which columns repeat themselves (dictionary), and how the others are laid out.

    Numbers that rarely repeat compress best with their bytes split into streams; sorted
    times best as differences.
    """
    dictionary = tags_of(table.schema)
    layout = {"time": "DELTA_BINARY_PACKED"}
    middle = max(0, (table.num_rows - _SAMPLED_ROWS) // 2)
    piece = table.slice(middle, _SAMPLED_ROWS)
    for field in table.schema:
        if field.name in dictionary or field.name == "time":
            continue
        if not pa.types.is_floating(field.type):
            dictionary.append(field.name)
            continue
        distinct = len(piece.column(field.name).unique())
        if distinct <= max(2, piece.num_rows // 4):
            dictionary.append(field.name)
        else:
            layout[field.name] = "BYTE_STREAM_SPLIT"
    return dictionary, layout


TagFilter = Mapping[str, str | Sequence[str]]


def read_part(
    path: Path,
    fields: Sequence[str] | None = None,
    tags: TagFilter | None = None,
    start_ns: int = -(2**63),
    end_ns: int = 2**63 - 1,
) -> pa.Table:
    """Rows of one part: time, all tags, and ``fields`` (None: all).

    Row groups that hold no row of the time and the tags asked for are not read; of the
    others all rows come. Raises FileNotFoundError when the part has been replaced,
    StoreUnavailableError when it is damaged.
    """
    try:
        with open_sealed(path) as file:
            schema = file.schema_arrow
            columns = None
            if fields is not None:
                keep = {"time", *tags_of(schema), *fields}
                columns = [name for name in schema.names if name in keep]
            groups = list(_groups(file, schema, tags or {}, start_ns, end_ns))
            return sound(file.read_row_groups(groups, columns=columns))
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise StoreUnavailableError(
            f"store {path}: cannot be read: {str(error)[:200]}; tocsin store repair sets it aside"
        ) from error


def sound(table: pa.Table) -> pa.Table:
    """``table``, when its tags are what they can be. Raises ArrowInvalid.

    The header of a page has no checksum: where it is damaged, a tag's number may be of no word.
    """
    for name in tags_of(table.schema):
        if name in table.column_names:
            table.column(name).validate(full=True)
    return table


def _groups(
    file: pq.ParquetFile, schema: pa.Schema, tags: TagFilter, start_ns: int, end_ns: int
) -> Iterator[int]:
    """The row groups that may hold a row asked for, by their least and greatest values."""
    own = tags_of(schema)
    if any(name not in own for name in tags):
        return
    places = {name: schema.names.index(name) for name in ("time", *tags)}
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        statistics = {name: group.column(place).statistics for name, place in places.items()}
        known = {name: s for name, s in statistics.items() if s is not None and s.has_min_max}
        time = known.get("time")
        if time is not None and not (time.min_raw < end_ns and time.max_raw >= start_ns):
            continue
        if all(_may_hold(known.get(name), wanted) for name, wanted in tags.items()):
            yield number


def _may_hold(statistics: pq.Statistics | None, wanted: str | Sequence[str]) -> bool:
    if statistics is None:
        return True
    values = (wanted,) if isinstance(wanted, str) else wanted
    return any(statistics.min <= value <= statistics.max for value in values)


def remove(paths: Iterable[Path]) -> None:
    """Removes files; those that are gone already count as removed."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            with contextlib.suppress(OSError):
                path.parent.rmdir()  # only when it is empty
