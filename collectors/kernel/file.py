"""Follows a log file through rotation and truncation, from where it was left.

The position is the file's identity (device, inode and its first bytes) and an offset. A file
that was rotated while nobody looked is found again by that identity beside the new one. Only
whole lines are taken; what has no line end yet waits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from collectors.kernel.cursor import Position
from collectors.kernel.records import LINE_LIMIT
from collectors.sample import Problem, SourceUnavailable

_HEAD_BYTES = 128
_CHUNK_BYTES = 256 * 1024
# A first look does not read years of log: what this boot holds stands near the end.
_FIRST_BYTES = 64 * 1024 * 1024
_SIBLINGS_LIMIT = 2_000


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its bytes, and whether it was appended since the last look (it is new)."""

    raw: bytes
    live: bool


class FileTail:
    """Takes new lines from ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._offset = 0  # of the first byte that was not taken yet
        self._part = b""  # read already, but without a line end
        self._head = b""
        self._live = False  # the end has been reached once
        self._skip = False  # inside a line that is too long
        self._wanted: Position | None = None
        self.mtime_ns = 0
        self.problems: list[Problem] = []

    def resume(self, position: Position | None) -> None:
        """Goes on at ``position`` at the next read."""
        self._wanted = position

    def position(self) -> Position:
        """Where to go on. Without an open file, what was wanted stays wanted."""
        if self._descriptor < 0:
            return self._wanted or {}
        status = os.fstat(self._descriptor)
        return {
            "device": status.st_dev,
            "inode": status.st_ino,
            "offset": self._offset,
            "head": self._head.hex(),
        }

    def read(self, limit_lines: int) -> list[Line]:
        """New whole lines, oldest first. Raises SourceUnavailable where there is no file."""
        if self._descriptor < 0:
            self._open()
        found = self._take(limit_lines)
        while len(found) < limit_lines and self._descriptor >= 0 and self._moved_on():
            found.extend(self._take(limit_lines - len(found)))
        return found

    def behind(self) -> bool:
        """Whether a look is worth its while: there may be new lines, or another file."""
        if self._descriptor < 0 or not _seekable(self._descriptor):
            return True
        try:
            there = self._path.stat()
        except OSError:
            return False  # rotated away, and not made anew yet
        here = os.fstat(self._descriptor)
        same = (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
        return not same or here.st_size != self._offset + len(self._part)

    def close(self) -> None:
        """Lets go of the file; the next read goes on where this one ended."""
        if self._descriptor >= 0:
            self._wanted = self.position()
            os.close(self._descriptor)
            self._descriptor = -1

    # ---- inside ----------------------------------------------------------------------------

    def _open(self) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted and wanted.get("inode") is not None:
            for path in (self._path, *self._siblings(wanted)):
                if self._opened(path, wanted):
                    self._live = True
                    return
            self.problems.append(
                Problem(f"{self._path} was replaced while nobody looked; its end may be missed")
            )
            self._start(self._path, 0)
            self._live = True
            return
        self._start(self._path, 0)
        size = os.fstat(self._descriptor).st_size
        if size > _FIRST_BYTES:
            self._offset, self._skip = size - _FIRST_BYTES, True

    def _start(self, path: Path, offset: int) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise SourceUnavailable(f"{path} can't be opened: {error.strerror}") from error
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self._offset, self._part, self._skip = offset, b"", False
        self._head = os.pread(descriptor, _HEAD_BYTES, 0) if _seekable(descriptor) else b""

    def _opened(self, path: Path, wanted: Position) -> bool:
        """Whether ``path`` is the file of that position; then it is open there."""
        try:
            status = path.stat()
            offset = int(wanted["offset"])
            head = bytes.fromhex(wanted["head"])
        except (OSError, KeyError, ValueError, TypeError):
            return False
        same = (status.st_dev, status.st_ino) == (wanted.get("device"), wanted.get("inode"))
        if not same or status.st_size < offset:
            return False
        try:
            self._start(path, offset)
        except SourceUnavailable:
            return False
        if self._head[: len(head)] == head:
            return True
        os.close(self._descriptor)
        self._descriptor = -1
        return False

    def _siblings(self, wanted: Position) -> list[Path]:
        """Files beside ``path`` that carry its name and the wanted inode: the rotated one."""
        found: list[Path] = []
        try:
            with os.scandir(self._path.parent) as entries:
                for number, entry in enumerate(entries):
                    if number >= _SIBLINGS_LIMIT:
                        break
                    if entry.name.startswith(self._path.name) and entry.inode() == wanted["inode"]:
                        found.append(Path(entry.path))
        except OSError:
            return []
        return found

    def _take(self, limit_lines: int) -> list[Line]:
        status = os.fstat(self._descriptor)
        self.mtime_ns = status.st_mtime_ns
        if _seekable(self._descriptor):
            taken_to = self._offset + len(self._part)
            if status.st_size < taken_to or not self._same_head():
                # Truncated in place (copytruncate): what is there now is new.
                self._offset, self._part, self._skip = 0, b"", False
                self._head = os.pread(self._descriptor, _HEAD_BYTES, 0)
        found: list[Line] = []
        while len(found) < limit_lines:
            try:
                chunk = self._chunk()
            except SourceUnavailable:
                if found:
                    break  # what was read counts; the next look says what is wrong
                raise
            if not chunk:
                self._live = True
                break
            self._split(chunk, found)
        return found

    def _same_head(self) -> bool:
        now = os.pread(self._descriptor, _HEAD_BYTES, 0)
        same = now[: len(self._head)] == self._head
        if same:
            self._head = now
        return same

    def _chunk(self) -> bytes:
        try:
            if _seekable(self._descriptor):
                at = self._offset + len(self._part)
                return os.pread(self._descriptor, _CHUNK_BYTES, at)
            return os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            self.close()
            raise SourceUnavailable(f"{self._path} can't be read: {error.strerror}") from error

    def _split(self, chunk: bytes, found: list[Line]) -> None:
        """Moves whole lines into ``found``; the rest waits in ``_part``."""
        body = self._part + chunk
        *lines, self._part = body.split(b"\n")
        for raw in lines:
            self._offset += len(raw) + 1
            if self._skip:
                self._skip = False
            else:
                found.append(Line(raw, self._live))
        if len(self._part) > LINE_LIMIT:
            if not self._skip:
                self.problems.append(Problem("a line without end is left out"))
            self._offset += len(self._part)
            self._part, self._skip = b"", True

    def _moved_on(self) -> bool:
        """Switches to the new file where the path names another one by now."""
        try:
            there = self._path.stat()
        except OSError:
            return False
        here = os.fstat(self._descriptor)
        if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
            return False
        try:
            self._start(self._path, 0)
        except SourceUnavailable:
            return False
        return True


def _seekable(descriptor: int) -> bool:
    try:
        os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError:
        return False
    return True
