"""Frames with a checksum, appended to a file: what a spool is made of.

A frame is a magic word, the payload's length, a CRC-32 over length and payload, and the
payload. A file that ends in half a frame (the process or the machine died) is read up to
the last whole one; a damaged stretch in the middle is skipped to the next magic word, and
both are said, so that nothing readable is lost and nothing is lost in silence.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MAGIC = b"\xf5tocsin\n"
_HEADER = struct.Struct("<8sII")
HEADER_BYTES = _HEADER.size
PAYLOAD_LIMIT_BYTES = 256 * 1024 * 1024
# After a power cut a file may be as long as it was to become, with zeros where data should be.
_ZEROS = bytes(512)
_BLOCK_BYTES = 4096
# What stands where the disk gave nothing: no zeros, which may pass for an append cut off.
_UNREADABLE = b"\xff"


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a file that no frame could be read from."""

    offset: int
    length_bytes: int
    torn: bool  # at the very end of the file, as an append leaves it that was cut off


@dataclass(slots=True)
class FrameReport:
    """What reading a file of frames found; filled while the frames are read."""

    frames: int = 0
    end_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)


def frame(payload: bytes) -> bytes:
    """``payload`` with its header before it."""
    length = len(payload)
    if length > PAYLOAD_LIMIT_BYTES:
        raise ValueError(f"a frame holds at most {PAYLOAD_LIMIT_BYTES} bytes, not {length}")
    return _HEADER.pack(MAGIC, length, _checksum(length, payload)) + payload


def read_frames(
    data: bytes | memoryview, report: FrameReport | None = None, start: int = 0
) -> Iterator[tuple[int, bytes]]:
    """(end offset, payload) of each whole frame of ``data`` from ``start`` on."""
    data = bytes(data) if isinstance(data, memoryview) else data
    report = FrameReport() if report is None else report
    position = report.end_bytes = start
    while position < len(data):
        payload = _payload_at(data, position)
        if payload is None:
            position = _skip(data, position, report)
            continue
        position += HEADER_BYTES + len(payload)
        report.frames += 1
        report.end_bytes = position
        yield position, payload


def _payload_at(data: bytes, position: int) -> bytes | None:
    if len(data) - position < HEADER_BYTES:
        return None
    magic, length, checksum = _HEADER.unpack_from(data, position)
    begin = position + HEADER_BYTES
    if magic != MAGIC or length > len(data) - begin:
        return None
    payload = data[begin : begin + length]
    return payload if _checksum(length, payload) == checksum else None


def _skip(data: bytes, position: int, report: FrameReport) -> int:
    """The next place where a whole frame stands, or the end; what lies between is damage."""
    following = position
    while (following := data.find(MAGIC, following + 1)) >= 0:
        if _payload_at(data, following) is not None:
            break
    end = len(data) if following < 0 else following
    torn = following < 0 and _is_cut_off(data, position)
    report.damages.append(Damage(position, end - position, torn))
    return end


def _is_cut_off(data: bytes, position: int) -> bool:
    """Whether ``data`` from ``position`` on looks as an append does that was never finished.

    A whole frame whose checksum is wrong does not: somebody was told that it is durable.
    """
    rest = len(data) - position
    if not data[position:].strip(b"\0") or (rest > HEADER_BYTES and data.endswith(_ZEROS)):
        return True
    if not data.startswith(MAGIC[:rest], position):
        return False
    if rest < HEADER_BYTES:
        return True
    _, length, _ = _HEADER.unpack_from(data, position)
    return bool(rest - HEADER_BYTES < length <= PAYLOAD_LIMIT_BYTES)


def read_file(path: Path) -> bytes:
    """All that the disk gives of a file. Raises OSError.

    A sector that cannot be read (EIO) costs its block: that is filled with what is no frame.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    with open(path, "rb", buffering=0) as file:
        handle = file.fileno()
        size = os.fstat(handle).st_size
        data = bytearray(_UNREADABLE * size)
        for start in range(0, size, _BLOCK_BYTES):
            with contextlib.suppress(OSError):
                piece = os.pread(handle, min(_BLOCK_BYTES, size - start), start)
                data[start : start + len(piece)] = piece
    return bytes(data)


def _checksum(length: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(length.to_bytes(4, "little")))


def sync_directory(directory: Path) -> None:
    """Makes a file's creation, renaming or removal in ``directory`` durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(directory: Path) -> None:
    """Makes ``directory``, and what is missing above it, so that a power cut leaves it there."""
    if directory.is_dir():
        return
    if not directory.parent.exists():
        make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def replace_file(path: Path, data: bytes) -> None:
    """Writes ``data`` to ``path`` durably: the old content or the new, never half of one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)
