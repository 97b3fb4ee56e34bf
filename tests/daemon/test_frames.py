"""What is read of a file of frames that is not whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from daemon.frames import HEADER_BYTES, FrameReport, frame, read_file, read_frames

FIRST, LAST = frame(b"first" * 200), frame(b"last" * 500)


def read(data: bytes) -> tuple[list[bytes], FrameReport]:
    report = FrameReport()
    return [payload[:4] for _, payload in read_frames(data, report)], report


@pytest.mark.parametrize(
    "end",
    [
        *(LAST[:length] for length in (1, 7, HEADER_BYTES, HEADER_BYTES + 1, len(LAST) - 1)),
        bytes(1),
        bytes(5000),
        LAST[:300] + bytes(len(LAST) - 300),
    ],
    ids=["1", "7", "header", "header and 1", "all but 1", "a zero", "zeros", "half zeros"],
)
def test_an_append_that_was_cut_off_is_torn(end: bytes) -> None:
    payloads, report = read(FIRST + end)
    assert payloads == [b"firs"]
    (damage,) = report.damages
    assert (damage.offset, damage.length_bytes, damage.torn) == (len(FIRST), len(end), True)


@pytest.mark.parametrize("place", [0, 3, HEADER_BYTES - 1, HEADER_BYTES, 700, len(LAST) - 1])
def test_a_last_frame_that_was_whole_once_is_damaged_and_not_torn(place: int) -> None:
    """Somebody was told that it is durable: its loss must not pass for a write cut off."""
    end = bytearray(LAST)
    end[place] ^= 0x10
    payloads, report = read(FIRST + bytes(end))
    assert payloads == [b"firs"]
    assert [damage.torn for damage in report.damages] == [False]


def test_a_bad_sector_costs_its_frame_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "1.frames"
    large = frame(os.urandom(3 * 4096))
    path.write_bytes(FIRST + large + large + LAST)
    bad = range(8192, 12288)

    def failing(path: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    pread = os.pread

    def sector(handle: int, size: int, start: int) -> bytes:
        if start in bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(handle, size, start)

    monkeypatch.setattr(Path, "read_bytes", failing)
    monkeypatch.setattr(os, "pread", sector)
    payloads, report = read(read_file(path))
    assert [payloads[0], payloads[-1], len(payloads)] == [b"firs", b"last", 3]
    assert [damage.torn for damage in report.damages] == [False]


def test_a_sector_at_the_end_that_cannot_be_read_is_no_write_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "1.frames"
    path.write_bytes(FIRST)

    def failing(*words: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "read_bytes", failing)
    monkeypatch.setattr(os, "pread", failing)
    payloads, report = read(read_file(path))
    assert payloads == []
    assert [(d.length_bytes, d.torn) for d in report.damages] == [(len(FIRST), False)]
