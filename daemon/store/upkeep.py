"""What keeps a store small and quick: hours merged, days merged, old days removed.

Every step writes a new file under a name that covers what it replaces, and removes the
replaced ones after that (see :mod:`daemon.store.parts`); it may be cut off anywhere. What was set
aside (:mod:`daemon.store.aside`) goes with the day on which that was.
"""

from __future__ import annotations

import logging
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from daemon.store.aside import Aside, files_aside
from daemon.store.errors import StoreUnavailableError
from daemon.store.events import BatchMarks, EventTable
from daemon.store.merge import five_minutes, merge_parts
from daemon.store.options import StoreOptions
from daemon.store.parts import (
    DAY_NS,
    Part,
    all_parts,
    list_parts,
    measurements,
    part_path,
    remove,
    without_covered,
)

log = logging.getLogger("tocsin.store")

# An hour is merged when it is over for this long; rows that come later join at the next turn.
SETTLE_NS = 15 * 60 * 1_000_000_000
# A day with more rows than this stays in hourly files: they are large enough.
DAY_ROWS_LIMIT = 20_000_000
# What is written into an hour or a day that is merged already may wait: one sender that writes a
# row into each past hour must not have the whole history of all nodes written anew each time.
_LARGE_ROWS = 1_000_000
_LATE_SHARE = 0.05
_LATE_WAIT_NS = 20 * 3600 * 1_000_000_000
_LATE_PARTS = 8
# So many days at most go for age in one turn: a clock that is a year ahead for a while must not
# cost the whole history before somebody sets it right.
AGED_DAYS_LIMIT = 3


@dataclass(slots=True)
class UpkeepReport:
    """What one turn did."""

    hours_merged: int = 0
    days_merged: int = 0
    rollups_written: int = 0
    files_removed: int = 0
    bytes_removed: int = 0
    days_removed_for_age: int = 0
    days_removed_for_size: int = 0
    events_removed: int = 0
    aside_removed: int = 0
    faults: list[str] = field(default_factory=list)

    def text(self) -> str:
        """One line for the journal."""
        return (
            f"{self.hours_merged} hours and {self.days_merged} days merged, "
            f"{self.rollups_written} roll-ups, {self.bytes_removed} bytes removed "
            f"({self.days_removed_for_age} days for age, {self.days_removed_for_size} for size; "
            f"{self.aside_removed} files that were set aside)"
        )


class Upkeep:
    """One turn after the other, each in a thread of its own, hourly or so."""

    def __init__(
        self,
        directory: Path,
        options: StoreOptions,
        first_unrolled: Callable[[], int],
        events: EventTable | None = None,
        marks: BatchMarks | None = None,
        free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
    ) -> None:
        self.directory = directory
        self.options = options
        self.first_unrolled = first_unrolled
        self.parquet = directory / "parquet"
        self.rollup = directory / "rollup"
        self.events = events
        self.marks = marks
        self.free_bytes = free_bytes

    def run(self, now_ns: int) -> UpkeepReport:
        """Merges, rolls up and removes. Raises StoreUnavailableError when the disk fails."""
        report = UpkeepReport()
        self._remove_covered(report)
        self._merge(now_ns, report)
        self._remove_old(now_ns, report)
        self._remove_for_size(report)
        if self.events is not None:
            before_ns = now_ns - int(self.options.keep_event_days * DAY_NS)
            report.events_removed = self.events.forget(before_ns, AGED_DAYS_LIMIT * DAY_NS)
            report.events_removed += self.events.bound(
                self.options.events_per_node_limit, self.options.events_limit
            )
        if self.marks is not None:
            self.marks.forget(now_ns - 90 * DAY_NS)
        return report

    def make_room(self) -> UpkeepReport:
        """Only removes, oldest first, until there is room again or nothing more may go."""
        report = UpkeepReport()
        self._remove_covered(report)
        self._remove_for_size(report)
        return report

    # Merging.

    def _merge(self, now_ns: int, report: UpkeepReport) -> None:
        for measurement in measurements(self.parquet):
            try:
                self._merge_one(measurement, now_ns, report)
            except Exception as error:
                # Whatever it is: a damaged file must not keep the others from being merged,
                # nor old days from being removed; a disk that fails says so with the next one.
                log.error("store %s: %s is not merged: %s", self.directory, measurement, error)
                report.faults.append(f"{measurement} is not merged: {error}"[:300])

    def _merge_one(self, measurement: str, now_ns: int, report: UpkeepReport) -> None:
        settled = [part for part in self._rolled(measurement) if part.end_ns + SETTLE_NS <= now_ns]
        for parts in _by(settled, lambda part: (part.day, part.hour)):
            due = late_parts(parts, now_ns)[1]
            if len(due) > 1 and parts[0].hour >= 0:
                self._replace(due, parts[0].hour)
                report.hours_merged += 1
        self._merge_days(measurement, now_ns, report)
        self._roll_up(measurement, now_ns, report)

    def _rolled(self, measurement: str) -> list[Part]:
        """The parts that no segment which is there, or is to come, may have a share in.

        A merged file says that it has all rows of a range of segments. After a crash or a
        power cut one of them may still have to be rolled, and later ones be rolled already.
        """
        pending = self.first_unrolled()  # before the parts are listed
        return [part for part in list_parts(self.parquet, measurement) if part.last < pending]

    def _merge_days(self, measurement: str, now_ns: int, report: UpkeepReport) -> None:
        parts = [
            part
            for part in self._rolled(measurement)
            if (part.day + 1) * DAY_NS + SETTLE_NS <= now_ns
        ]
        for day in _by(parts, lambda part: (part.day, 0)):
            if all(part.hour < 0 for part in day) and len(day) == 1:
                continue
            if sum(map(_rows, day)) > DAY_ROWS_LIMIT or late_parts(day, now_ns)[0]:
                continue
            self._replace(day, -1)
            report.days_merged += 1

    def _replace(self, parts: list[Part], hour: int) -> None:
        first, last = min(p.first for p in parts), max(p.last for p in parts)
        target = part_path(self.parquet, parts[0].measurement, parts[0].day, hour, first, last)
        merge_parts(parts, target, self.options.compression_level)
        remove(part.path for part in parts if part.path != target)

    def _roll_up(self, measurement: str, now_ns: int, report: UpkeepReport) -> None:
        """Five-minute values of each day that is over; again when late rows have come."""
        parts = [
            part
            for part in list_parts(self.parquet, measurement)
            if (part.day + 1) * DAY_NS + SETTLE_NS <= now_ns
        ]
        rolled = list_parts(self.rollup, measurement)
        oldest_ns = now_ns - int(self.options.keep_rollup_days * DAY_NS)
        for whole in _by(parts, lambda part: (part.day, 0)):
            late: list[Part] = []
            for hour in _by(whole, lambda part: (part.day, part.hour)):
                late += late_parts(hour, now_ns)[0]
            late += late_parts(whole, now_ns)[0]
            day = [part for part in whole if part not in late]
            first, last = min(p.first for p in day), max(p.last for p in day)
            target = part_path(self.rollup, measurement, day[0].day, -1, first, last)
            made = Part(measurement, day[0].day, -1, first, last, target)
            if day[0].end_ns < oldest_ns or any(p.path == target or p.covers(made) for p in rolled):
                continue
            merge_parts(day, target, self.options.compression_level, five_minutes)
            # Only what this one has all rows of: where a day's rows have gone for age and some come
            # late, or where removing them was cut off, the values of all others stand beside.
            remove(part.path for part in rolled if made.covers(part))
            report.rollups_written += 1

    # Removing.

    def _remove_covered(self, report: UpkeepReport) -> None:
        for root in (self.parquet, self.rollup):
            parts = list(all_parts(root))
            counted = {part.path for part in without_covered(parts)}
            self._remove([part for part in parts if part.path not in counted], report)

    def _remove_old(self, now_ns: int, report: UpkeepReport) -> None:
        for root, days in (
            (self.parquet, self.options.keep_days),
            (self.rollup, self.options.keep_rollup_days),
        ):
            before_ns = now_ns - int(days * DAY_NS)
            old = [part for part in all_parts(root) if (part.day + 1) * DAY_NS <= before_ns]
            oldest = sorted({part.day for part in old})[:AGED_DAYS_LIMIT]
            report.days_removed_for_age += len(oldest)
            self._remove([part for part in old if part.day in oldest], report)
        before_ns = now_ns - int(self.options.keep_days * DAY_NS)
        old_aside = [one for one in files_aside(self.directory) if one.since_ns < before_ns]
        days_aside = sorted({_day(one) for one in old_aside})[:AGED_DAYS_LIMIT]
        self._drop_aside([one for one in old_aside if _day(one) in days_aside], "age", report)

    def _remove_for_size(self, report: UpkeepReport) -> None:
        """The oldest days go when the store is over its limit or the disk is nearly full."""
        parts = [part for root in (self.parquet, self.rollup) for part in all_parts(root)]
        sizes = {part.path: _size(part.path) for part in parts}
        aside = files_aside(self.directory)
        held = sum(sizes.values()) + sum(one.size_bytes for one in aside)
        over = held + _tree_bytes(self.directory / "spool") - self.options.limit_bytes
        over = max(over, self.options.reserve_bytes - self.free_bytes(self.directory))
        raw = [part for part in parts if part.path.is_relative_to(self.parquet)]
        # The newest day is never removed: a store that is too small must not be empty.
        newest = max((part.day for part in raw), default=0)
        by_day = {day[0].day: day for day in _by(raw, lambda part: (part.day, 0))}
        for number in sorted({*by_day, *map(_day, aside)}):
            if over <= 0 or number >= newest:
                break
            over -= self._drop_aside([one for one in aside if _day(one) == number], "size", report)
            if number in by_day:
                over -= sum(sizes[part.path] for part in by_day[number])
                report.days_removed_for_size += 1
                self._remove(by_day[number], report)
        if over > 0:  # what can be read is worth more than what cannot
            left = [one for one in aside if one.path.exists()]
            while left and over > 0:
                over -= self._drop_aside([left.pop(0)], "size", report)
        if report.days_removed_for_size:
            log.warning(
                "store %s: the %d oldest days were removed to make room",
                self.directory,
                report.days_removed_for_size,
            )

    def _drop_aside(self, files: list[Aside], why: str, report: UpkeepReport) -> int:
        """Removes what was set aside, and names each file; how many bytes that was."""
        for one in files:
            log.warning(
                "store %s: %s (%d bytes), which was set aside, is removed for %s",
                self.directory,
                one.path.name,
                one.size_bytes,
                why,
            )
            one.path.unlink(missing_ok=True)
        report.aside_removed += len(files)
        size = sum(one.size_bytes for one in files)
        report.bytes_removed += size
        return size

    def _remove(self, parts: list[Part], report: UpkeepReport) -> None:
        report.files_removed += len(parts)
        report.bytes_removed += sum(_size(part.path) for part in parts)
        remove(part.path for part in parts)


def late_parts(parts: list[Part], now_ns: int) -> tuple[list[Part], list[Part]]:
    """Of the files of one hour or day: those that may wait to be merged, and those to merge now.

    A few rows beside a large file wait until they are many or some hours old; until then only
    they themselves are merged, when they are many files. They must all be newer than the large
    one: a merged file speaks for a range of segments, and may not pass for one that it has not.
    """
    hours = {part.hour for part in parts}
    if len(parts) < 2 or (len(hours) > 1 and -1 not in hours):
        return [], parts  # the hours of a day that is not merged yet are not late to each other
    large = max(parts, key=_rows)
    late = [part for part in parts if part is not large]
    rows = _rows(large)
    if rows < _LARGE_ROWS or sum(map(_rows, late)) > _LATE_SHARE * rows:
        return [], parts
    if (len(hours) > 1 and large.hour >= 0) or any(part.first <= large.last for part in late):
        return [], parts
    waited_ns = now_ns - large.path.stat().st_mtime_ns
    if not 0 <= waited_ns < _LATE_WAIT_NS:  # or the clock was set
        return [], parts
    return late, late if len(late) > _LATE_PARTS else []


def _rows(part: Part) -> int:
    try:
        return int(pq.read_metadata(part.path).num_rows)
    except pa.ArrowException as error:
        raise StoreUnavailableError(f"{part.path} cannot be read: {error}") from error


def _by(parts: list[Part], key: Callable[[Part], tuple[int, int]]) -> Iterator[list[Part]]:
    groups: dict[tuple[int, int], list[Part]] = defaultdict(list)
    for part in parts:
        groups[key(part)].append(part)
    for name in sorted(groups):
        yield sorted(groups[name])


def _day(one: Aside) -> int:
    return one.since_ns // DAY_NS


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _tree_bytes(directory: Path) -> int:
    return sum(_size(path) for path in directory.glob("*")) if directory.is_dir() else 0
