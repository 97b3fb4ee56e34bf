"""What ``tocsin store verify``, ``repair`` and ``stats`` do.

``verify`` only reads, and may run beside a head. ``repair`` needs the store for itself; it
deletes nothing that could still hold a row: what cannot be read goes to ``damaged/``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from daemon.frames import FrameReport
from daemon.store.aside import files_aside, move_aside
from daemon.store.database import Database, is_damage
from daemon.store.embedded import Store, samples_from, take_lock
from daemon.store.errors import StoreUnavailableError, unavailable
from daemon.store.parts import Part, all_parts, read_part, remove, without_covered
from daemon.store.reader import Reader
from daemon.store.rebuild import rebuild_if_damaged
from daemon.store.sealed import check_whole, open_sealed
from daemon.store.segments import list_segments, read_segment, segment_path
from daemon.store.swap import mended_path, unfinished_path
from daemon.store.tables import sort_once, tags_of, times_ns

DATABASE_FILE = "tocsin.sqlite"
# Who looks has too little of something; the file may be sound, and must not be set aside.
_NOT_THE_FILES_FAULT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: which file, what, and whether rows may be lost with it."""

    path: Path
    text: str
    loses_rows: bool

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


@dataclass(slots=True)
class MeasurementStats:
    """One measurement in numbers. ``bytes_per_value`` is of its Parquet alone."""

    measurement: str
    rows: int = 0
    values: int = 0
    files: int = 0
    parquet_bytes: int = 0
    spool_rows: int = 0
    first_ns: int | None = None
    last_ns: int | None = None

    @property
    def bytes_per_value(self) -> float:
        """Bytes on disk for one field value."""
        return self.parquet_bytes / self.values if self.values else 0.0


@dataclass(slots=True)
class StoreStats:
    """A store in numbers."""

    directory: Path
    parquet_bytes: int = 0
    rollup_bytes: int = 0
    spool_bytes: int = 0
    database_bytes: int = 0
    damaged_files: int = 0
    damaged_bytes: int = 0
    events: int = 0
    database_fault: str = ""
    measurements: list[MeasurementStats] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        plain["directory"] = str(self.directory)
        plain["measurements"] = [
            {name: getattr(one, name) for name in one.__slots__}
            | {"bytes_per_value": round(one.bytes_per_value, 3)}
            for one in self.measurements
        ]
        return plain


def verify(directory: Path, deep: bool = True) -> Iterator[Finding]:
    """Every fault of a store. ``deep`` reads all values, else only the files' own lists."""
    if not directory.is_dir():
        yield Finding(directory, "is no directory", False)
        return
    yield from _verify_spool(directory / "spool")
    for root in (directory / "parquet", directory / "rollup"):
        for part in all_parts(root):
            yield from _verify_part(part, deep)
        for leftover in root.glob("*/*/*.tmp"):
            yield Finding(leftover, "a file that was never finished; its rows are elsewhere", False)
    path = directory / DATABASE_FILE
    if mended_path(path).exists():
        text = "a repair was cut off; the head's next start or tocsin store repair finishes it"
        yield Finding(mended_path(path), text, False)
    elif unfinished_path(path).exists():
        yield Finding(unfinished_path(path), "a repair was cut off; run it again", False)
    if path.exists():
        try:
            database = Database(path, read_only=True)
        except StoreUnavailableError as error:
            # That it cannot be opened (whose it is, a limit) says nothing of what is in it.
            yield Finding(path, str(error), is_damage(error))
            return
        for text in database.check():
            yield Finding(path, text, True)
        database.close()
    for kept in files_aside(directory):
        yield Finding(kept.path, "was set aside earlier; look at it, then remove it", False)


def _verify_spool(directory: Path) -> Iterator[Finding]:
    for number in list_segments(directory):
        path = segment_path(directory, number)
        report = FrameReport()
        try:
            for frame in read_segment(path, report):
                for columns in frame.columns():
                    if len(columns.series) != len(columns.times):
                        yield Finding(path, "a frame does not add up", True)
        except FileNotFoundError:
            continue  # rolled while we looked
        except (ValueError, KeyError, pa.ArrowException) as error:
            yield Finding(path, f"a frame cannot be read: {error}", True)
            continue
        for damage in report.damages:
            where = f"{damage.length_bytes} bytes at {damage.offset}"
            if damage.torn:
                yield Finding(
                    path, f"torn end, {where}: an append that was never acknowledged", False
                )
            else:
                yield Finding(path, f"damaged, {where}", True)


def _verify_part(part: Part, deep: bool) -> Iterator[Finding]:
    try:
        if not deep:
            open_sealed(part.path).close()
            return
        check_whole(part.path)
        table = read_part(part.path)
    except FileNotFoundError:
        return  # merged while we looked
    except (StoreUnavailableError, pa.ArrowException, OSError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, MemoryError) or getattr(cause, "errno", None) in _NOT_THE_FILES_FAULT:
            raise StoreUnavailableError(f"{part.path} cannot be looked at: {cause}") from error
        yield Finding(part.path, f"cannot be read: {str(error)[:200]}", True)
        return
    if table.num_rows == 0:
        return
    times = times_ns(table)
    if int(times.min()) < part.start_ns or int(times.max()) >= part.end_ns:
        yield Finding(part.path, "holds rows of another time than its name says", False)
    if sort_once(table) is not table and sort_once(table).num_rows != table.num_rows:
        yield Finding(part.path, "holds a point twice", False)


def repair(directory: Path, now_ns: int = 0) -> list[str]:
    """Mends what can be mended; what was done, one line each.

    Raises StoreUnavailableError when a head has the store open or the disk fails.
    """
    lock = take_lock(directory)
    try:
        done = _repair_files(directory)
        done.extend(rebuild_if_damaged(directory / DATABASE_FILE))
    except OSError as error:
        raise unavailable(error, directory) from error
    finally:
        os.close(lock)
    with contextlib.closing(Store(directory)) as store:
        added = _events_again(store)
        if added:
            done.append(f"took {added} events from Parquet into the database again")
        rolled = store.roll(now_ns, everything=True)
        if rolled:
            done.append(f"rolled {rolled} spool segments")
    return done


def _repair_files(directory: Path) -> list[str]:
    """Sets Parquet files aside that cannot be read, and removes what is of no use."""
    done: list[str] = []
    for root in (directory / "parquet", directory / "rollup"):
        for leftover in root.glob("*/*/*.tmp"):
            leftover.unlink()
            done.append(f"removed {leftover}, which was never finished")
        for part in list(all_parts(root)):
            if any(finding.loses_rows for finding in _verify_part(part, deep=True)):
                target = move_aside(part.path, directory)
                done.append(f"set aside {part.path}, which cannot be read, as {target}")
        # Only now: what a damaged file covered counts again.
        parts = list(all_parts(root))
        counted = {part.path for part in without_covered(parts)}
        covered = [part.path for part in parts if part.path not in counted]
        remove(covered)
        done.extend(f"removed {path}, which another file covers" for path in covered)
    return done


def _events_again(store: Store) -> int:
    """Adds the events that Parquet has and the database has not."""
    span = store.span_ns("event")
    added = 0
    for table in store.hours("event", *span) if span else ():
        added += store.event_table.add(samples_from("event", table))
    return added


def stats(directory: Path) -> StoreStats:
    """The store in numbers. Only reads; may run beside a head."""
    reader = Reader(directory)
    found = StoreStats(directory)
    by_name: dict[str, MeasurementStats] = {}
    for part in without_covered(all_parts(reader.parquet_directory)):
        try:
            with open_sealed(part.path) as file:
                metadata = file.metadata
            size = part.path.stat().st_size
        except (OSError, pa.ArrowException):
            continue  # verify tells of it
        one = by_name.setdefault(part.measurement, MeasurementStats(part.measurement))
        tags = len(tags_of(metadata.schema.to_arrow_schema()))
        one.rows += metadata.num_rows
        one.values += _values(metadata, tags)
        one.files += 1
        one.parquet_bytes += size
        _span(one, part.start_ns, part.end_ns)
    for number in list_segments(reader.spool_directory):
        try:
            for frame in read_segment(segment_path(reader.spool_directory, number)):
                for group in frame.head["groups"]:
                    one = by_name.setdefault(group["m"], MeasurementStats(group["m"]))
                    one.spool_rows += group["rows"]
                    _span(one, frame.head["from"], frame.head["to"])
        except (OSError, ValueError, StoreUnavailableError):
            continue  # verify tells of it
    found.measurements = [by_name[name] for name in sorted(by_name)]
    found.parquet_bytes = sum(one.parquet_bytes for one in found.measurements)
    found.rollup_bytes = _bytes_below(reader.rollup_directory)
    found.spool_bytes = _bytes_below(reader.spool_directory)
    aside = files_aside(directory)
    found.damaged_files = len(aside)
    found.damaged_bytes = sum(one.size_bytes for one in aside)
    database = directory / DATABASE_FILE
    if database.exists():
        found.database_bytes = database.stat().st_size
        try:
            with contextlib.closing(Database(database, read_only=True)) as opened:
                found.events = opened.query("SELECT count(*) FROM events")[0][0]
        except (StoreUnavailableError, sqlite3.OperationalError) as error:
            found.database_fault = str(error)
    return found


def _values(metadata: pq.FileMetaData, tags: int) -> int:
    """Field values that are there: columns of fields, without what is null."""
    values = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in range(1 + tags, metadata.num_columns):
            statistics = group.column(column).statistics
            nulls = statistics.null_count if statistics is not None else 0
            values += group.num_rows - (nulls or 0)
    return values


def _span(one: MeasurementStats, start_ns: int, end_ns: int) -> None:
    one.first_ns = start_ns if one.first_ns is None else min(one.first_ns, start_ns)
    one.last_ns = end_ns if one.last_ns is None else max(one.last_ns, end_ns)


def _bytes_below(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
