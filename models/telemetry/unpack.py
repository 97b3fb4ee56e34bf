"""Opens files that may be compressed, and reads no more of them than was allowed.

A few kilobytes of .xz can be a terabyte of text, and an .xz may ask for gigabytes of memory
before it gives its first byte. Whatever is wrong with a file (too large, cut off, damaged)
is a ValueError that names it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import IO, Any, cast

_PIECE_BYTES = 1024 * 1024
# What "xz -9" needs to be read again is 65 MiB; nobody writes more by accident.
_XZ_MEMORY_BYTES = 512 * 1024 * 1024


class TooLargeError(ValueError):
    """A file that is larger, unpacked, than it was allowed to be; the text names it."""


def open_bytes(path: Path, limit_bytes: int | None = None) -> IO[bytes]:
    """Opens a file that may be compressed (.gz, .bz2, .xz) for reading.

    Reading more than ``limit_bytes`` raises :class:`TooLargeError`; what cannot be unpacked
    raises ValueError.
    """
    stream: Any
    if path.suffix == ".gz":
        stream = gzip.open(path, "rb")  # noqa: SIM115 (closed with what holds it)
    elif path.suffix == ".bz2":
        stream = bz2.open(path, "rb")  # noqa: SIM115
    elif path.suffix == ".xz":
        stream = _Xz(path)
    else:
        stream = path.open("rb")
    return cast(IO[bytes], io.BufferedReader(_Bounded(stream, path, limit_bytes), _PIECE_BYTES))


class _Bounded(io.RawIOBase):
    """Passes bytes on, counts them, and says in words what goes wrong."""

    def __init__(self, stream: Any, path: Path, limit_bytes: int | None) -> None:
        self._stream = stream
        self._path = path
        self._limit_bytes = limit_bytes
        self._count_bytes = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills some of ``buffer``."""
        try:
            data = self._stream.read(len(buffer))
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise ValueError(f"{self._path}: cannot be unpacked: {error}") from error
        self._count_bytes += len(data)
        if self._limit_bytes is not None and self._count_bytes > self._limit_bytes:
            raise TooLargeError(f"{self._path}: is over {self._limit_bytes} bytes unpacked")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()
        super().close()


class _Xz:
    """One .xz after the other, as ``lzma.open`` reads them, in bounded memory."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._rest = b""
        self._stream: lzma.LZMADecompressor | None = None

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; none at the end. Raises EOFError and lzma.LZMAError."""
        while True:
            if self._stream is None:
                self._rest = (self._rest or self._file.read(_PIECE_BYTES)).lstrip(b"\0")
                if not self._rest:
                    return b""
                self._stream = lzma.LZMADecompressor(memlimit=_XZ_MEMORY_BYTES)
            given = b""
            if self._stream.needs_input:
                given = self._rest or self._file.read(_PIECE_BYTES)
                self._rest = b""
                if not given:
                    raise EOFError("it is cut off")
            data = self._stream.decompress(given, size)
            if self._stream.eof:
                self._rest = self._stream.unused_data
                self._stream = None
            if data:
                return data

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
