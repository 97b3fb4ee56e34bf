"""Follows a store's spool for a second sink: every committed frame once, in order.

The sink needs no queue of its own on disk: what was committed is in the spool, and a cursor
says how far the sink is. When a segment is rolled into Parquet before the sink has all of
it, a second name of its file stays in ``outbox/NAME``; that folder is bounded, and what a
bound cost is counted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from daemon.frames import make_directory, read_file, read_frames, replace_file, sync_directory
from daemon.store.packing import Frame, open_frame
from daemon.store.segments import UNREADABLE_FRAME, list_segments, segment_path

log = logging.getLogger("tocsin.store")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """How far a sink is: all frames before ``offset`` of ``segment`` are done with."""

    segment: int = 0
    offset: int = 0


class Tail:
    """The cursor of one sink. Reading and :meth:`keep` may be called by different threads."""

    def __init__(self, store_directory: Path, name: str, limit_bytes: int = 4 * 1024**3) -> None:
        self.spool = store_directory / "spool"
        self.directory = store_directory / "outbox" / name
        self.limit_bytes = limit_bytes
        self.dropped_rows = 0
        make_directory(self.directory)
        self.position = self._load()

    def read(self, limit_rows: int = 5000) -> tuple[list[Frame], Position] | None:
        """The next frames, about ``limit_rows`` samples, and the position after them."""
        position = self.position
        while True:
            found = self._locate(position)
            if found is None:
                return None
            number, data, closed = found
            start = position.offset if number == position.segment else 0
            frames: list[Frame] = []
            rows, done = 0, start
            for end, payload in read_frames(data, start=start):
                done = end
                try:
                    frames.append(open_frame(payload))
                except UNREADABLE_FRAME as error:
                    # The store keeps it in ``damaged``; the sink must not stand before it for ever.
                    log.error(
                        "%s: a frame of segment %d cannot be read: %s",
                        self.directory,
                        number,
                        error,
                    )
                    continue
                rows += frames[-1].rows
                if rows >= limit_rows:
                    break
            if frames or done > start:
                return frames, Position(number, done)
            if not closed:
                return None
            # All of this segment is done with; the next one begins where its numbers go on.
            position = Position(number + 1, 0)
            self.done(position)
            self._forget(number)  # after that: what is kept from here on forgets itself

    def done(self, position: Position) -> None:
        """Everything before ``position`` has reached the sink."""
        self.position = position
        with contextlib.suppress(OSError):
            # Not synced: after a power cut some points are sent again, which changes nothing.
            temporary = self.directory / ".cursor.tmp"
            temporary.write_text(json.dumps([position.segment, position.offset]))
            temporary.replace(self.directory / "cursor.json")

    def keep(self, path: Path, number: int) -> None:
        """Called before a segment is removed: keeps it for the sink if it is not done with it."""
        if number < self.position.segment:
            return
        kept = segment_path(self.directory, number)
        with contextlib.suppress(FileExistsError):
            os.link(path, kept)
            sync_directory(self.directory)  # or a power cut could take both names
        for done in list_segments(self.directory):  # done with while it was being kept
            if done < self.position.segment:
                self._forget(done)
        self._enforce()

    def waiting(self) -> tuple[int, int]:
        """(segments, bytes) that wait in spool and outbox, roughly."""
        paths = [segment_path(self.directory, n) for n in list_segments(self.directory)]
        paths += [
            segment_path(self.spool, n)
            for n in list_segments(self.spool)
            if n >= self.position.segment
        ]
        return len(paths), max(0, sum(map(_size, paths)) - self.position.offset)

    def _locate(self, position: Position) -> tuple[int, bytes, bool] | None:
        """The first segment at or after ``position``: number, content, whether it is closed."""
        for _ in range(10):
            # The spool first: a segment that is rolled meanwhile is in the outbox by then.
            in_spool = list_segments(self.spool)
            numbers = sorted({*in_spool, *list_segments(self.directory)})
            later = [number for number in numbers if number >= position.segment]
            if not later:
                return None
            closed = later[0] != numbers[-1] or later[0] not in in_spool
            for directory in (self.spool, self.directory):
                with contextlib.suppress(FileNotFoundError):
                    return later[0], read_file(segment_path(directory, later[0])), closed
        return None

    def _forget(self, number: int) -> None:
        segment_path(self.directory, number).unlink(missing_ok=True)

    def _enforce(self) -> None:
        numbers = list_segments(self.directory)
        sizes = {n: _size(segment_path(self.directory, n)) for n in numbers}
        total = sum(sizes.values())
        for number in numbers[:-1]:
            if total <= self.limit_bytes:
                return
            path = segment_path(self.directory, number)
            self.dropped_rows += self._rows_left(number, path)
            path.unlink(missing_ok=True)
            total -= sizes[number]
            log.error("outbox %s is full: segment %d was dropped", self.directory, number)

    def _rows_left(self, number: int, path: Path) -> int:
        """How many samples of a segment the sink has not had yet."""
        position = self.position
        start = position.offset if number == position.segment else 0
        rows = 0
        with contextlib.suppress(OSError):
            for _, payload in read_frames(read_file(path), start=start):
                with contextlib.suppress(*UNREADABLE_FRAME):
                    rows += open_frame(payload).rows
        return rows

    def _load(self) -> Position:
        try:
            segment, offset = json.loads((self.directory / "cursor.json").read_text())
            return Position(int(segment), int(offset))
        except FileNotFoundError:
            # A new sink begins with what comes from now on, not with the store's past.
            position = Position(max(list_segments(self.spool), default=0), 0)
            replace_file(
                self.directory / "cursor.json",
                json.dumps([position.segment, position.offset]).encode(),
            )
            return position
        except (OSError, ValueError, TypeError):
            return Position()  # all that is there is sent again: equal points stay one


def first_unread(store_directory: Path) -> int:
    """The number from which on every sink takes a segment for new; 0 where no sink is known."""
    numbers = [0]
    for path in (store_directory / "outbox").glob("*/cursor.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, IndexError):
            segment, offset = json.loads(path.read_text())
            numbers.append(int(segment) + (int(offset) > 0))
    return max(numbers)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
