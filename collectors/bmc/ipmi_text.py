"""Bounded, tolerant reading of what command-line tools print: bytes in, clean lines out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from collectors.line_pieces import split_lines

LINE_LIMIT_CHARACTERS = 4_096
# Most sensors or log entries that one text may bring: 256 hosts of 900 sensors, in one run of
# FreeIPMI. What is beyond is told and not read.
TEXT_RECORDS_LIMIT = 250_000

Key = TypeVar("Key")


def decode(text: str | bytes) -> str:
    """``text`` as text; bytes that are no UTF-8 become replacement characters."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def lines(text: str | bytes, end: int | None = None) -> Iterator[str]:
    """The lines of ``text`` (up to ``end``) without line ends, byte-order mark and overlong tails.

    Only a piece is held beside the text.
    """
    for line in split_lines(text, end):
        yield line.rstrip("\r")[:LINE_LIMIT_CHARACTERS]


def printable(line: str) -> bool:
    """Whether ``line`` is text: no control characters (tabs apart), no undecodable bytes."""
    return all(char.isprintable() or char == "\t" for char in line) and "\ufffd" not in line


def cells(line: str, separator: str) -> list[str]:
    """``line`` split at ``separator``, each cell without blanks around it."""
    return [cell.strip() for cell in line.split(separator)]


def split_last(text: str | bytes) -> tuple[int, str]:
    """Where the last line end of ``text`` stands, and what comes after it ("" as a rule).

    Tools end every line. What stands after the last line end may have been cut off.
    """
    end = text.rfind(b"\n") if isinstance(text, bytes) else text.rfind("\n")
    tail = decode(text[end + 1 : end + 1 + 4 * LINE_LIMIT_CHARACTERS])
    tail = tail.lstrip("\ufeff") if end < 0 else tail
    return max(end, 0), tail.rstrip("\r")[:LINE_LIMIT_CHARACTERS] if tail.strip() else ""
