"""A checksum over a Parquet file's footer, for the format has none.

Pages have one each (``write_page_checksum``), so a flipped bit in them is an error and no other
number. The footer has none, and one flipped bit in it can end the process: Arrow (to 26 at least)
does not catch what its C++ throws where a column's metadata are asked for. So the checksum stands
right before the footer, where a Parquet file may hold anything: readers find the footer from the
end, and the pages by their places. Beside it stands one over all that comes before, the headers of
the pages too: that is for whoever looks at the whole file.

Source: https://parquet.apache.org/docs/file-format/
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import pyarrow.parquet as pq

_END = struct.Struct("<I4s")
_SEAL = struct.Struct("<8sII")  # word, checksum of the footer, of all before the seal
_PIECE_BYTES = 1024 * 1024
_WORD = b"tocsin\xf5\x01"
_MAGIC = b"PAR1"


class BrokenSealError(OSError):
    """The file is not what was written."""


def seal(file: BinaryIO) -> None:
    """Puts the checksum into a whole Parquet file that is open for reading and writing."""
    size = file.seek(0, os.SEEK_END)
    file.seek(size - _END.size)
    length, magic = _END.unpack(file.read(_END.size))
    if magic != _MAGIC or length + _END.size > size:
        raise BrokenSealError("it is no whole Parquet file")
    start = size - _END.size - length
    file.seek(start)
    footer = file.read(length)
    before = _checksum_to(file, start)
    file.seek(start)
    file.write(_SEAL.pack(_WORD, zlib.crc32(footer), before) + footer + _END.pack(length, magic))


def open_sealed(path: Path) -> pq.ParquetFile:
    """``path``, its footer known to be sound where it has a checksum. Raises OSError."""
    file = open(path, "rb")  # noqa: SIM115 (closed with what holds it)
    try:
        _check(file)
        return pq.ParquetFile(path, memory_map=False, page_checksum_verification=True)
    finally:
        file.close()


def check_whole(path: Path) -> None:
    """Raises OSError where anything of ``path`` is not what was written, as far as it is sealed."""
    with open(path, "rb") as file:
        _check(file, whole=True)


def _checksum_to(file: BinaryIO, end: int) -> int:
    file.seek(0)
    checksum = 0
    while end > 0 and (piece := file.read(min(end, _PIECE_BYTES))):
        checksum = zlib.crc32(piece, checksum)
        end -= len(piece)
    return checksum


def _check(file: BinaryIO, whole: bool = False) -> None:
    size = file.seek(0, os.SEEK_END)
    if size < _END.size + _SEAL.size:
        return  # Arrow says what it is
    file.seek(size - _END.size)
    length, _ = _END.unpack(file.read(_END.size))
    start = size - _END.size - length - _SEAL.size
    if start < 0:
        return
    file.seek(start)
    word, checksum, before = _SEAL.unpack(file.read(_SEAL.size))
    if word != _WORD:
        return
    if zlib.crc32(file.read(length)) != checksum:
        raise BrokenSealError("its footer is damaged")
    if whole and _checksum_to(file, start) != before:
        raise BrokenSealError("its pages are damaged")
