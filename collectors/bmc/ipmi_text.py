"""Bounded, tolerant reading of what command-line tools print: bytes in, clean lines out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

LINE_LIMIT_CHARACTERS = 4_096

Key = TypeVar("Key")


def decode(text: str | bytes) -> str:
    """``text`` as text; bytes that are no UTF-8 become replacement characters."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def lines(text: str | bytes) -> Iterator[str]:
    """The lines of ``text`` without line ends, byte-order mark and overlong tails."""
    whole = decode(text).lstrip("\ufeff")
    for line in whole.split("\n"):
        yield line.rstrip("\r")[:LINE_LIMIT_CHARACTERS]


def printable(line: str) -> bool:
    """Whether ``line`` is text: no control characters (tabs apart), no undecodable bytes."""
    return all(char.isprintable() or char == "\t" for char in line) and "\ufffd" not in line


def cells(line: str, separator: str) -> list[str]:
    """``line`` split at ``separator``, each cell without blanks around it."""
    return [cell.strip() for cell in line.split(separator)]


def split_last(text: str | bytes) -> tuple[str, str]:
    """``text`` up to its last line end, and what stands after it ("" as a rule).

    Tools end every line. What stands after the last line end may have been cut off.
    """
    whole = decode(text)
    head, _, tail = whole.rpartition("\n")
    return head, tail.rstrip("\r") if tail.strip() else ""
