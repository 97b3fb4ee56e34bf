"""The spool of the store: segment files of frames, one open for appending, the rest closed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from daemon.frames import (
    HEADER_BYTES,
    Damage,
    FrameReport,
    frame,
    make_directory,
    read_file,
    read_frames,
    sync_directory,
)
from daemon.store.errors import unavailable
from daemon.store.packing import Frame, open_frame

# What :func:`open_frame` may raise for a frame whose checksum is right.
UNREADABLE_FRAME = (ValueError, TypeError, AttributeError, KeyError)
_NAME = re.compile(r"(\d{8,})\.frames")


def segment_path(directory: Path, number: int) -> Path:
    """The file of segment ``number``."""
    return directory / f"{number:08d}.frames"


def list_segments(directory: Path) -> list[int]:
    """The numbers of the segments that are there, in order."""
    try:
        names = [_NAME.fullmatch(path.name) for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(name[1]) for name in names if name)


def read_segment(path: Path, report: FrameReport | None = None) -> Iterator[Frame]:
    """The whole frames of a segment. Raises FileNotFoundError when it was rolled meanwhile, and
    StoreUnavailableError when it cannot be looked at (whose it is, a limit).

    A frame of another version, or nonsense with a right checksum, counts as damage, and so does
    what the disk does not give.
    """
    try:
        data = read_file(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unavailable(error, path) from error
    report = FrameReport() if report is None else report
    for end, payload in read_frames(data, report):
        try:
            opened = open_frame(payload)
        except UNREADABLE_FRAME:
            length = len(payload) + HEADER_BYTES
            report.damages.append(Damage(end - length, length, torn=False))
            continue
        yield opened


class SegmentWriter:
    """Appends frames durably. Never appends to a file of an earlier process."""

    def __init__(self, directory: Path, next_number: int) -> None:
        self.directory = directory
        self.next_number = next_number
        self.number: int | None = None
        self.size_bytes = 0
        self.raw_bytes = 0
        self.opened_ns = 0
        self._file: FileIO | None = None

    def append(self, payload: bytes, raw_bytes: int, now_ns: int) -> None:
        """Writes one frame and syncs it. Raises StoreUnavailableError; then nothing was kept."""
        data = frame(payload)
        try:
            if self._file is None:
                self._open(now_ns)
            assert self._file is not None
            # Unbuffered, or closing after an error would write the half frame once more.
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._file.fileno(), rest) :]
            os.fdatasync(self._file.fileno())
        except OSError as error:
            self._take_back()
            raise unavailable(error, self.directory) from error
        self.size_bytes += len(data)
        self.raw_bytes += raw_bytes

    def rotate(self) -> None:
        """Closes the open segment; the next frame begins a new one."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None
        self.number = None
        self.size_bytes = self.raw_bytes = 0

    def _open(self, now_ns: int) -> None:
        make_directory(self.directory)
        number = self.next_number
        self._file = open(segment_path(self.directory, number), "xb", buffering=0)  # noqa: SIM115
        self.next_number += 1
        self.number, self.opened_ns = number, now_ns
        sync_directory(self.directory)

    def _take_back(self) -> None:
        """After a failed write: cuts off what was half written, and leaves the file.

        A failed sync says nothing about what is on disk; writing on would trust it.
        Source: https://lwn.net/Articles/752063/
        """
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(self._file.fileno(), self.size_bytes)
        path = segment_path(self.directory, self.number or 0)
        empty = self.size_bytes == 0
        self.rotate()
        if empty:
            with contextlib.suppress(OSError):
                path.unlink()
