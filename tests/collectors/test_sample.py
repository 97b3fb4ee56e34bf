"""Samples and what is read out of them."""

from __future__ import annotations

import math

import pytest

from collectors.sample import Value, numbers_of


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"a": 1.0, "b": 2.0, "c": 3.0}, (1.0, 2.0)),
        ({"b": 2.0}, (None, 2.0)),
        ({"a": "1.0", "b": 2.0}, (None, 2.0)),
        ({"a": math.inf, "b": -0.0}, (math.inf, 0.0)),
        ({"a": 1, "b": 2.0}, (1.0, 2.0)),
        ({"a": 1}, (1.0, None)),
        ({"a": "1.0", "b": "2.0"}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_numbers_are_read_in_order_and_nothing_else_is_one(
    fields: dict[str, Value], expected: tuple[float | None, ...]
) -> None:
    assert numbers_of("a", "b")(fields) == expected
