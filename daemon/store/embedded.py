"""The embedded store: what the head writes to.

Samples go into a frame of the spool, synced; from there, some minutes later, into Parquet
files by measurement and hour (:meth:`Store.roll`), and the spool segment is removed when
its files are durable. A crash at any point leaves either the segment or its files, and the
reader counts each row once. Events land in SQLite too, in the same commit.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from collectors.sample import Sample
from daemon.frames import FrameReport, make_directory
from daemon.store.aside import FOLDER, copy_aside, files_aside, words
from daemon.store.database import Database
from daemon.store.errors import StoreUnavailableError, unavailable
from daemon.store.events import BatchMarks, Event, EventTable
from daemon.store.merge import merge_parts
from daemon.store.options import StoreOptions
from daemon.store.packing import Columns, Packer, split_series
from daemon.store.parts import (
    DAY_NS,
    Part,
    all_parts,
    is_short,
    is_too_long,
    part_path,
    split_by_day,
    split_by_hour,
    write_part,
)
from daemon.store.reader import Reader
from daemon.store.room import Room
from daemon.store.segments import SegmentWriter, list_segments, read_segment, segment_path
from daemon.store.tables import from_columns, in_pieces, sort_once, tags_of, to_rows
from daemon.store.tail import Tail, first_unread
from daemon.store.upkeep import Upkeep, UpkeepReport

log = logging.getLogger("tocsin.store")

# So many places at most has a table that is made of a segment; 64 MiB of GPUs have 7 million.
_TABLE_VALUES = 8_000_000

# What reading a frame may raise whose checksum is right: another version's, or a bug of ours.
# One such frame must not stop the rolling of all later ones.
_UNREADABLE = (ValueError, KeyError, IndexError, TypeError, OverflowError, pa.ArrowException)


@dataclass(slots=True)
class StoreCounts:
    """What the store did since it was opened."""

    samples: int = 0
    values: int = 0
    commits: int = 0
    failed_commits: int = 0
    segments_rolled: int = 0
    parquet_bytes: int = 0
    damaged_bytes: int = 0
    days_removed_for_size: int = 0
    aside_removed: int = 0
    fault: str = ""
    short: str = ""
    unreadable: str = ""
    aside: str = ""


class Store(Reader):
    """A store open for writing. One process at a time; safe to use from several threads."""

    def __init__(
        self,
        directory: Path,
        options: StoreOptions | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        fence: Callable[[], str] | None = None,
    ) -> None:
        """``fence`` answers why this process must not write, where another may take over."""
        super().__init__(directory)
        self._fence = fence
        self.now_ns = now_ns
        self.options = options or StoreOptions(directory=directory)
        self.counts = StoreCounts()
        self.room = Room(directory, self.options)
        self.tails: list[Tail] = []  # sinks that follow the spool
        self._lock = threading.Lock()  # the frame being filled
        self._write_lock = threading.Lock()  # the spool file
        self._roll_lock = threading.Lock()
        self._upkeep_lock = threading.Lock()
        self._packer = Packer()
        self._closed = False
        self._make_directories()
        self._lock_file = take_lock(directory, fence)
        try:
            self.database = Database(directory / "tocsin.sqlite", fence=fence)
            self.event_table = EventTable(self.database)
            self.marks = BatchMarks(self.database)
            self._writer = SegmentWriter(self.spool_directory, self._recover())
        except BaseException:
            os.close(self._lock_file)
            raise

    # Writing.

    def append(self, samples: Iterable[Sample], batch: tuple[str, str, int] | None = None) -> None:
        """Adds samples to the frame being filled; they are kept from the next commit on.

        ``batch`` is (node, instance, sequence) of the batch that they are: it becomes
        durable with them.
        """
        with self._lock:
            self._packer.add(samples)
            if batch is not None:
                self._packer.marks.append(batch)

    def take(self) -> Packer:
        """The frame filled so far, for :meth:`write`; a new one is begun."""
        with self._lock:
            packer, self._packer = self._packer, Packer()
        return packer

    def commit(self) -> None:
        """Makes everything appended so far durable. Raises StoreUnavailableError.

        After an error nothing of it is kept: whoever sent it sends it again.
        """
        self.write(self.take())

    def write(self, packer: Packer) -> None:
        """Makes one frame durable, its events and batch marks with it."""
        if not packer:
            return
        payload = packer.payload()
        with self._write_lock:
            if self._closed:
                raise StoreUnavailableError(f"store {self.directory} is closed")
            self._ask_fence()
            try:
                if refusal := self.room.refusal():
                    self._writer.rotate()  # as Parquet it is a tenth: it may be rolled now
                    raise StoreUnavailableError(refusal)
                self._writer.append(payload, packer.size_bytes, self.now_ns())
                self.event_table.add(packer.events)
                # Who stood still since then has perhaps written where nobody reads any more.
                self._ask_fence()
            except StoreUnavailableError as error:
                self.counts.failed_commits += 1
                self.counts.fault = str(error)
                raise
            self.counts.fault = ""
            self.counts.commits += 1
            self.counts.samples += packer.samples
            self.counts.values += packer.values
            for mark in packer.marks:
                self.marks.note(*mark)
            if self._writer.raw_bytes >= self.options.segment_bytes:
                self._writer.rotate()

    def _ask_fence(self) -> None:
        if self._fence is not None and (why := self._fence()):
            raise StoreUnavailableError(f"store {self.directory}: this head stands by: {why}")

    def seen(self, batch: Any) -> bool:
        """Whether a batch (with node, instance, sequence) is durable already."""
        return self.marks.seen(batch.node, batch.instance, batch.sequence)

    def add_table(self, measurement: str, table: pa.Table) -> None:
        """Adds rows that are columns already (an import), durable on return.

        ``table`` is as :mod:`daemon.store.tables` has it, in any order. They go past the
        spool, so a sink that follows it does not get them.
        """
        if table.num_rows == 0:
            return
        with self._write_lock:
            if self._closed:
                raise StoreUnavailableError(f"store {self.directory} is closed")
            number = self._writer.next_number
            self._writer.next_number += 1
        table = sort_once(table)
        for day, hour, rows in split_by_hour(table) if is_short(table) else split_by_day(table):
            target = part_path(self.parquet_directory, measurement, day, hour, number, number)
            self.counts.parquet_bytes += write_part(target, rows, self.options.compression_level)
        if measurement == "event":
            self.event_table.add(samples_from(measurement, table))

    # Rolling.

    def roll(self, now_ns: int, everything: bool = False) -> int:
        """Turns closed segments into Parquet; the open one too when it is old enough.

        Meant for a thread of its own, every minute or so. Answers how many segments were
        rolled. Raises StoreUnavailableError; then the segments stay and are rolled later.
        """
        with self._roll_lock:
            with self._write_lock:
                age_seconds = (now_ns - self._writer.opened_ns) / 1e9
                # A clock that was set back makes the age negative: then it is due as well.
                due = not 0 <= age_seconds < self.options.roll_seconds
                if self._writer.number is not None and (everything or due):
                    self._writer.rotate()
                # Listed while nobody writes: a segment that a commit opens from here on is not
                # closed, and to remove it would lose what is still to come into it.
                closed = [
                    number
                    for number in list_segments(self.spool_directory)
                    if number != self._writer.number
                ]
            for number in closed:
                try:
                    self._roll_segment(number, now_ns)
                except OSError as error:
                    raise unavailable(error, self.spool_directory) from error
            return len(closed)

    def _first_unrolled(self) -> int:
        """The lowest segment that may still be rolled, whether it is there yet or not."""
        with self._write_lock:
            return min(list_segments(self.spool_directory), default=self._writer.next_number)

    def _roll_segment(self, number: int, now_ns: int) -> None:
        path = segment_path(self.spool_directory, number)
        report = FrameReport()
        groups: dict[str, list[Columns]] = {}
        marks: list[tuple[str, str, int]] = []
        faults: list[str] = []
        for frame in read_segment(path, report):
            marks.extend(frame.marks)
            try:
                for columns in frame.columns():
                    groups.setdefault(columns.measurement, []).append(columns)
            except _UNREADABLE as error:
                faults.append(f"{type(error).__name__}: {error}")
        for measurement in sorted(groups):
            try:
                self._write_parts(measurement, groups.pop(measurement), number)
            except _UNREADABLE as error:
                faults.append(f"{measurement}: {type(error).__name__}: {error}")
        self.marks.save(marks, now_ns)
        faults += [f"{d.length_bytes} bytes at {d.offset}" for d in report.damages if not d.torn]
        self.counts.damaged_bytes += sum(d.length_bytes for d in report.damages if not d.torn)
        if faults:
            # What could not be read is kept for people to look at; a torn end is no loss.
            kept = copy_aside(path, self.directory)
            told = "; ".join(faults)[:500]
            log.error("spool segment %s is damaged: %s; it is kept as %s", path, told, kept)
        for tail in self.tails:
            tail.keep(path, number)
        path.unlink()
        self.counts.segments_rolled += 1

    def _write_parts(self, measurement: str, groups: list[Columns], number: int) -> None:
        if is_too_long(measurement):  # no folder can be called so: it must not stop all others
            raise ValueError("its name is too long for a folder")
        level = self.options.compression_level
        pieces = in_pieces(groups, _TABLE_VALUES)
        first = next(pieces, [])
        second = next(pieces, None)
        if second is None:
            for day, hour, rows in split_by_hour(sort_once(from_columns(first))):
                target = part_path(self.parquet_directory, measurement, day, hour, number, number)
                self.counts.parquet_bytes += write_part(target, rows, level)
            return
        # Too large for one table: its pieces become files, and these are merged.
        scratch = self.directory / "rolling"
        shutil.rmtree(scratch, ignore_errors=True)
        made: dict[tuple[int, int], list[Part]] = {}
        for place, piece in enumerate(itertools.chain([first, second], pieces)):
            for day, hour, rows in split_by_hour(sort_once(from_columns(piece))):
                path = part_path(scratch, measurement, day, hour, place, place)
                write_part(path, rows, level)
                parts = made.setdefault((day, hour), [])
                parts.append(Part(measurement, day, hour, place, place, path))
        for (day, hour), parts in made.items():
            target = part_path(self.parquet_directory, measurement, day, hour, number, number)
            self.counts.parquet_bytes += merge_parts(parts, target, level)
        shutil.rmtree(scratch, ignore_errors=True)

    def upkeep(self, now_ns: int) -> UpkeepReport:
        """Merges hours and days, writes roll-ups, removes what is too old or too much.

        Meant for a thread of its own, hourly. Raises StoreUnavailableError.
        """
        with self._upkeep_lock:
            report = self._upkeep().run(now_ns)
            self._note(report)
            self.counts.unreadable = "; ".join(report.faults)[:500]
            log.info("store upkeep: %s", report.text())
            return report

    def make_room(self) -> str:
        """Removes the oldest days at once when the disk is short of room; what is still wrong
        after that, in words. Raises StoreUnavailableError."""
        if self.room.short():
            with self._upkeep_lock:
                self._note(self._upkeep().make_room())
        self.counts.short = self.room.short()
        day_ago_ns = self.now_ns() - DAY_NS
        self.counts.aside = words(files_aside(self.directory), self.directory, day_ago_ns)
        return self.counts.short

    def files_at_fault(self) -> str:
        """What is wrong with its files, or was lately, in words; empty when nothing."""
        return "; ".join(filter(None, (self.counts.unreadable, self.counts.aside)))

    def _note(self, report: UpkeepReport) -> None:
        self.counts.days_removed_for_size += report.days_removed_for_size
        self.counts.aside_removed += report.aside_removed

    def _upkeep(self) -> Upkeep:
        return Upkeep(
            self.directory, self.options, self._first_unrolled, self.event_table, self.marks
        )

    # Events.

    def events(self, node: str | None = None, **conditions: Any) -> list[Event]:
        """See :meth:`daemon.store.events.EventTable.find`."""
        return self.event_table.find(node, **conditions)

    # Opening and closing.

    def close(self) -> None:
        """Commits what is left and lets go of the store."""
        if self._closed:
            return
        try:
            self.commit()
        finally:
            with self._roll_lock, self._write_lock:
                self._closed = True
                self._writer.rotate()
                self.database.close()
                os.close(self._lock_file)

    def _make_directories(self) -> None:
        try:
            for path in (self.spool_directory, self.parquet_directory, self.directory / FOLDER):
                make_directory(path)
        except OSError as error:
            raise unavailable(error, self.directory) from error

    def _recover(self) -> int:
        """Takes up what an earlier process left; the number of the next segment."""
        shutil.rmtree(self.directory / "rolling", ignore_errors=True)
        for leftover in self.parquet_directory.glob("*/*/*.tmp"):
            leftover.unlink(missing_ok=True)
        segments = list_segments(self.spool_directory)
        highest = max(segments, default=0)
        for number in segments:
            report = FrameReport()
            for frame in read_segment(segment_path(self.spool_directory, number), report):
                for mark in frame.marks:
                    self.marks.note(*mark)
                # A frame may be durable and its events not: they are added once more.
                try:
                    for columns in frame.columns("event"):
                        self.event_table.add(samples_of(columns))
                except _UNREADABLE as error:  # rolling sets it aside; a head must start
                    log.error("spool segment %d: events cannot be read: %s", number, error)
            for damage in report.damages:
                kind = "torn end" if damage.torn else "damage"
                log.warning("spool segment %d: %s of %d bytes", number, kind, damage.length_bytes)
        for part in all_parts(self.parquet_directory):
            highest = max(highest, part.last)
        # Where all those are gone, a sink must still not take a new segment for a known one.
        return max(highest + 1, first_unread(self.directory))


def take_lock(directory: Path, fence: Callable[[], str] | None = None) -> int:
    """Holds the store for this process; close the answer to let go of it.

    With a ``fence`` that lets us pass, the lock is taken from a process that still holds it: one
    that is frozen, and that its own fence stops when it wakes up.
    """
    path = directory / "lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise unavailable(error, path) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if fence is not None and not fence():
            log.warning("store %s: its lock is taken from a head that stands still", directory)
            path.replace(directory / "lock.taken")
            return take_lock(directory)
        raise StoreUnavailableError(
            f"store {directory}: another process has it open; one head writes to a store"
        ) from error
    if not _is_at(handle, path):  # it was taken, and its holder ended, since we opened it
        os.close(handle)
        return take_lock(directory, fence)
    return handle


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def samples_from(measurement: str, table: pa.Table) -> list[Sample]:
    """The rows of a table as samples."""
    tags = set(tags_of(table.schema))
    found = []
    for row in to_rows(table):
        own = tuple(sorted((name, value) for name, value in row.items() if name in tags))
        fields = {n: v for n, v in row.items() if n not in tags and n != "time_ns"}
        found.append(Sample(measurement, own, fields, row["time_ns"]))
    return found


def samples_of(columns: Columns) -> list[Sample]:
    """The rows of one group as samples again."""
    samples = []
    for row, series in enumerate(columns.series):
        numbers = iter(columns.numbers[row].tolist())
        texts = iter(columns.texts[row] if columns.texts else ())
        fields = {
            name: next(texts) if is_text else next(numbers)
            for name, is_text in zip(columns.names, columns.text, strict=True)
        }
        samples.append(
            Sample(columns.measurement, split_series(series), fields, int(columns.times[row]))
        )
    return samples
