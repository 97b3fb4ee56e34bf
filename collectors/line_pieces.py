"""Cuts a long text into lines, a piece of it at a time: memory for one piece beside the text."""

from __future__ import annotations

from collections.abc import Iterator

PIECE = 65_536


def split_lines(text: str | bytes, end: int | None = None) -> Iterator[str]:
    r"""The lines of ``text`` up to ``end``, as ``split("\n")`` gives them, without a first BOM.

    Bytes that are no UTF-8 become replacement characters. A line longer than a piece is cut.

    >>> list(split_lines(b"a\nb\n")), list(split_lines("", 0))
    (['a', 'b', ''], [''])
    """
    size = len(text) if end is None else end
    start = 0
    while True:
        stop = size if size - start <= PIECE else _piece_end(text, start, size)
        piece = text[start : min(stop, start + PIECE)]
        whole = piece.decode("utf-8", "replace") if isinstance(piece, bytes) else piece
        yield from (whole.removeprefix("\ufeff") if start == 0 else whole).split("\n")
        if stop >= size:
            return
        start = stop + 1


def _piece_end(text: str | bytes, start: int, size: int) -> int:
    """Where the piece that begins at ``start`` ends: at its last line end, else at the next."""
    if isinstance(text, bytes):
        near = text.rfind(b"\n", start, start + PIECE)
        far = text.find(b"\n", start + PIECE, size) if near < 0 else near
    else:
        near = text.rfind("\n", start, start + PIECE)
        far = text.find("\n", start + PIECE, size) if near < 0 else near
    return size if far < 0 else far
