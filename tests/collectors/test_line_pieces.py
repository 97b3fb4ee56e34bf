"""A text cut into lines piece by piece is cut as if at once."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors import line_pieces
from collectors.line_pieces import split_lines


@given(st.lists(st.text("ab\u00e9", max_size=6), max_size=30), st.integers(16, 40))
def test_lines_are_those_of_the_whole_text(lines: list[str], piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_pieces, "PIECE", piece)
        text = "\n".join(lines)
        assert list(split_lines(text)) == text.split("\n")
        assert list(split_lines(text.encode())) == text.split("\n")
        end = text.rfind("\n")
        if end >= 0:
            assert list(split_lines(text, end)) == text[:end].split("\n")


def test_a_line_without_end_is_cut_and_the_lines_after_it_are_whole() -> None:
    text = "x" * 1_000_000 + "\nafter\n"
    first, *others = split_lines(text)
    assert len(first) == line_pieces.PIECE
    assert others == ["after", ""]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert list(split_lines("\ufeffa\nb".encode())) == ["a", "b"]


def test_only_a_piece_is_held_beside_the_text() -> None:
    text = b"a line of some length\n" * 100_000
    tracemalloc.start()
    try:
        assert sum(1 for _ in split_lines(text)) == 100_001
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
