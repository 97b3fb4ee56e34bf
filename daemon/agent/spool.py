"""The agent's outgoing batches on disk, until the head has them durably.

Batches go into segment files of checksummed frames, each synced before it counts as kept,
and are taken out in order. Two bounds hold, bytes and age; what they cost is counted.
When the disk fails (full, read-only) batches are kept in memory, a few MiB of them.

Each batch has a key, ``<instance>:<sequence>``, where the instance is one run of the agent.
The head remembers the highest sequence of an instance that it has durably, so a batch that
is sent again (the answer was lost, the agent was killed) is never stored or judged twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import struct
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from daemon.frames import (
    FrameReport,
    frame,
    make_directory,
    read_file,
    read_frames,
    sync_directory,
)

_HEADER = struct.Struct("<16sQqI")  # instance, sequence, UTC ns, number of samples
_SUFFIX = ".spool"
_CURSOR = "cursor.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch: its key, when it was made, how many samples it holds, and its body."""

    instance: str
    sequence: int
    time_ns: int
    samples: int
    body: bytes
    segment: int = 0  # 0: only in memory
    end_offset: int = 0

    @property
    def key(self) -> str:
        """What the ``X-Tocsin-Batch`` header says."""
        return f"{self.instance}:{self.sequence}"


@dataclass(slots=True)
class SpoolCounts:
    """What became of the batches since the start of the process."""

    kept: int = 0
    sent: int = 0
    sent_samples: int = 0
    dropped_batches: int = 0
    dropped_samples: int = 0
    damaged_bytes: int = 0
    lost_bytes: int = 0  # of these, what had been kept: not the end of a write cut off
    fault: str = ""


@dataclass(slots=True)
class _Segment:
    """One file on disk, as far as it matters for the bounds."""

    number: int
    size_bytes: int = 0
    newest_ns: int = 0
    samples: int = 0
    batches: int = 0


class Spool:
    """A bounded queue of batches on disk. Safe to use from several threads."""

    def __init__(
        self,
        directory: Path,
        limit_bytes: int = 256 * 1024 * 1024,
        limit_age_seconds: float = 7 * 86_400.0,
        memory_limit_bytes: int = 8 * 1024 * 1024,
        instance: str | None = None,
    ) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        self.limit_age_seconds = limit_age_seconds
        self.memory_limit_bytes = memory_limit_bytes
        self.segment_bytes = max(4096, min(8 * 1024 * 1024, limit_bytes // 8))
        self.instance = instance or secrets.token_hex(8)
        self.counts = SpoolCounts()
        self._lock = threading.RLock()
        self._sequence = 0
        self._memory_sequence = 0
        self._segments: dict[int, _Segment] = {}
        self._file: BinaryIO | None = None
        self._ready: deque[Entry] = deque()  # of the oldest segment, read but not done
        self._ready_segment = 0
        self._memory: deque[Entry] = deque()
        self._memory_bytes = 0
        self._given_up: list[str] = []
        self._cursor = (0, 0)
        self._next_number = 1
        self._recover()

    def append(self, body: bytes, samples: int, now_ns: int) -> bool:
        """Keeps one batch; True when it is durable, False when only memory holds it."""
        return self.keep(body, samples, now_ns)[0]

    def keep(self, body: bytes, samples: int, now_ns: int) -> tuple[bool, str]:
        """The same, with the batch's key beside."""
        with self._lock:
            self._sequence += 1
            entry = Entry(self.instance, self._sequence, now_ns, samples, body)
            self.counts.kept += 1
            try:
                self._write(entry)
            except OSError as error:
                self.counts.fault = f"spool: {error.strerror or error}: {self.directory}"
                self._take_back()
                last = self._segments.get(self._next_number - 1)
                if last is not None and last.batches == 0:
                    self._remove(last.number)
                return False, self._keep_in_memory(entry).key
            self.counts.fault = ""
            self._enforce_bytes()
            return True, entry.key

    def oldest(self, now_ns: int) -> Entry | None:
        """The batch to send next, or None. Batches past their age are dropped on the way."""
        with self._lock:
            while (entry := self._peek()) is not None:
                if now_ns - entry.time_ns <= self.limit_age_seconds * 1e9:
                    return entry
                self._drop(1, entry.samples)
                if entry.segment == 0:
                    self._given_up.append(entry.key)
                self._advance(entry)
            return None

    def done(self, entry: Entry) -> None:
        """The head has ``entry`` durably (or it was set aside): it is not sent again."""
        with self._lock:
            self.counts.sent += 1
            self.counts.sent_samples += entry.samples
            self._advance(entry)

    def given_up(self) -> list[str]:
        """The keys of the batches that were dropped from memory since the last call."""
        with self._lock:
            keys, self._given_up = self._given_up, []
            return keys

    def waiting(self) -> tuple[int, int]:
        """(batches, bytes) that wait; batches of segments not read yet are counted too."""
        with self._lock:
            behind = [s for s in self._segments.values() if s.number != self._ready_segment]
            batches = len(self._ready) + len(self._memory) + sum(s.batches for s in behind)
            size = sum(s.size_bytes for s in self._segments.values()) + self._memory_bytes
            return batches, size

    def close(self) -> None:
        """Closes the files. What waits stays on disk; what only memory holds is lost."""
        with self._lock:
            self._close_file()

    # Writing.

    def _write(self, entry: Entry) -> None:
        header = _HEADER.pack(
            entry.instance.encode().ljust(16)[:16], entry.sequence, entry.time_ns, entry.samples
        )
        data = frame(header + entry.body)
        segment = self._segments.get(self._next_number - 1)
        if self._file is None or segment is None or segment.size_bytes >= self.segment_bytes:
            segment = self._open_segment()
        assert self._file is not None
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())
        segment.size_bytes += len(data)
        segment.newest_ns = max(segment.newest_ns, entry.time_ns)
        segment.samples += entry.samples
        segment.batches += 1
        if segment.number == self._ready_segment:
            self._ready.append(_placed(entry, segment.number, segment.size_bytes))

    def _open_segment(self) -> _Segment:
        self._close_file()
        make_directory(self.directory)
        number = self._next_number
        # A file that could be made but not written must not be met again: the number is spent.
        self._next_number += 1
        self._file = open(self._path(number), "xb")  # noqa: SIM115 (kept open)
        sync_directory(self.directory)
        segment = self._segments[number] = _Segment(number)
        return segment

    def _close_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _take_back(self) -> None:
        """Cuts off what of a batch is on disk already: memory has it, under another key."""
        segment = self._segments.get(self._next_number - 1)
        if self._file is not None and segment is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), segment.size_bytes)
        self._close_file()

    def _keep_in_memory(self, entry: Entry) -> Entry:
        # A key of its own: a later batch that a mended disk takes may be sent before this one,
        # and the head takes all lower numbers of an instance for batches that it has.
        self._memory_sequence += 1
        entry = replace(entry, instance=f"{self.instance}s", sequence=self._memory_sequence)
        self._memory.append(entry)
        self._memory_bytes += len(entry.body)
        while self._memory_bytes > self.memory_limit_bytes and len(self._memory) > 1:
            dropped = self._memory.popleft()
            self._memory_bytes -= len(dropped.body)
            self._drop(1, dropped.samples)
            self._given_up.append(dropped.key)
        return entry

    def _enforce_bytes(self) -> None:
        """Removes whole segments, the oldest first, never the one being written."""
        total = sum(segment.size_bytes for segment in self._segments.values())
        for number in sorted(self._segments)[:-1]:
            if total <= self.limit_bytes:
                return
            segment = self._segments[number]
            total -= segment.size_bytes
            if number == self._ready_segment:
                self._drop(len(self._ready), sum(entry.samples for entry in self._ready))
                self._ready.clear()
            else:
                self._drop(segment.batches, segment.samples)
            self._remove(number)

    def _drop(self, batches: int, samples: int) -> None:
        self.counts.dropped_batches += batches
        self.counts.dropped_samples += samples

    # Taking out.

    def _peek(self) -> Entry | None:
        while not self._ready and self._segments:
            number = min(self._segments)
            if number == self._ready_segment:
                if self._file is not None and number == self._next_number - 1:
                    break  # all that was written so far is done
                self._remove(number)
                continue
            if not self._load(number):
                break
        if self._ready:
            return self._ready[0]
        return self._memory[0] if self._memory else None

    def _load(self, number: int) -> bool:
        """Reads the entries of one segment; what is damaged is counted, the rest is kept.

        False where it cannot be looked at now (no file to be had, no memory): it stays.
        """
        segment = self._segments[number]
        start = self._cursor[1] if self._cursor[0] == number else 0
        try:
            entries, report = self._read(number, start)
        except FileNotFoundError as error:
            self.counts.fault = f"spool: {error.strerror}: {self._path(number)}"
            self._drop(segment.batches, segment.samples)
            entries, report = [], FrameReport()
        except OSError as error:
            self.counts.fault = f"spool: {error.strerror or error}: {self._path(number)}"
            return False
        self._ready_segment = number
        self._ready.clear()
        self.counts.damaged_bytes += sum(damage.length_bytes for damage in report.damages)
        whole = [damage for damage in report.damages if not damage.torn]
        self.counts.lost_bytes += sum(damage.length_bytes for damage in whole)
        self._ready.extend(entries)
        return True

    def _read(self, number: int, start: int) -> tuple[list[Entry], FrameReport]:
        report = FrameReport()
        data = read_file(self._path(number))
        return list(_entries(data, number, start, report)), report

    def _advance(self, entry: Entry) -> None:
        if entry.segment == 0:
            if self._memory and self._memory[0] is entry:
                self._memory.popleft()
                self._memory_bytes -= len(entry.body)
            return
        if self._ready and self._ready[0].key == entry.key:
            self._ready.popleft()
        else:
            return  # dropped by a bound while it was being sent
        self._cursor = (entry.segment, entry.end_offset)
        # Not synced: after a power cut some batches are sent again, and the head knows them.
        with contextlib.suppress(OSError):
            temporary = self.directory / f".{_CURSOR}.tmp"
            temporary.write_text(json.dumps(self._cursor))
            temporary.replace(self.directory / _CURSOR)
        self._peek()

    def _remove(self, number: int) -> None:
        self._segments.pop(number, None)
        with contextlib.suppress(OSError):
            self._path(number).unlink()

    # Starting.

    def _recover(self) -> None:
        """Finds what an earlier process left. Never appends to a file that it left."""
        try:
            numbers = sorted(
                int(path.name[: -len(_SUFFIX)])
                for path in self.directory.glob(f"*{_SUFFIX}")
                if path.name[: -len(_SUFFIX)].isdigit()
            )
            self._cursor = self._read_cursor()
            for number in numbers:
                if number < self._cursor[0]:
                    self._remove(number)
                    continue
                try:
                    self._segments[number] = self._survey(number)
                except OSError as error:  # looked at again when its turn comes
                    self.counts.fault = f"spool: {error.strerror or error}: {self._path(number)}"
                    self._segments[number] = _Segment(number)
        except OSError as error:
            self.counts.fault = f"spool: {error.strerror or error}: {self.directory}"
            numbers = list(self._segments)
        self._next_number = max([self._cursor[0], *numbers], default=0) + 1

    def _survey(self, number: int) -> _Segment:
        segment = _Segment(number, self._path(number).stat().st_size)
        start = self._cursor[1] if self._cursor[0] == number else 0
        entries, _ = self._read(number, start)
        for entry in entries:
            segment.batches += 1
            segment.samples += entry.samples
            segment.newest_ns = max(segment.newest_ns, entry.time_ns)
        return segment

    def _read_cursor(self) -> tuple[int, int]:
        try:
            number, offset = json.loads((self.directory / _CURSOR).read_text())
            return int(number), int(offset)
        except (OSError, ValueError, TypeError):
            return 0, 0  # all that is there is sent again; the head knows what it has

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:016d}{_SUFFIX}"


def _placed(entry: Entry, segment: int, end_offset: int) -> Entry:
    return Entry(
        entry.instance,
        entry.sequence,
        entry.time_ns,
        entry.samples,
        entry.body,
        segment,
        end_offset,
    )


def _entries(data: bytes, number: int, start: int, report: FrameReport) -> Iterator[Entry]:
    for end, payload in read_frames(data, report, start):
        if len(payload) < _HEADER.size:
            continue
        instance, sequence, time_ns, samples = _HEADER.unpack_from(payload)
        body = payload[_HEADER.size :]
        name = instance.decode("ascii", "replace").strip()
        yield Entry(name, sequence, time_ns, samples, body, number, end)
