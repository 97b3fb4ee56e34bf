"""Counters of every width: what stopped at its top, went round, was cleared or began anew."""

from __future__ import annotations

import numpy as np
import pytest

from models.features.arrays import Arrays
from models.features.counters import Counters
from models.features.spec import Counter

SECOND = 1_000_000_000


def rises(values: list[float], wrap: float = 0.0) -> float:
    """The increments of one counter that was read once a second, summed."""
    arrays = Arrays()
    counters = Counters(arrays, "c", (Counter("errors", "errors_total", "errors", wrap=wrap),))
    arrays.reserve(1)
    for index, value in enumerate(values, start=1):
        counters.update(
            np.array([0]), np.array([index * SECOND], np.int64), np.array([[value]], np.float64)
        )
    found = dict(counters.features(1, len(values) * SECOND))
    return float(found["count_ever"][0, 0])


@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_a_counter_that_stands_at_its_top_rises_no_more_and_begins_again_when_cleared(
    bits: int,
) -> None:
    top = 2.0**bits - 1
    assert rises([top - 2, top, top, top]) == 2
    assert rises([top, top, 0, 3]) == 3  # somebody cleared it
    assert rises([top, 3]) == 3


@pytest.mark.parametrize("bits", [32, 64])
def test_a_counter_of_known_width_goes_round_only_near_its_end(bits: int) -> None:
    wrap = 2.0**bits
    near = wrap - wrap / 1024
    assert rises([near, wrap / 1024], wrap) == pytest.approx(wrap / 512)
    assert rises([wrap / 2, 5], wrap) == 5  # far from the end: it began anew
    assert rises([near, wrap / 2], wrap) == wrap / 2  # no step forward is half a round long


def test_a_driver_reload_and_a_restart_begin_anew_and_lose_nothing_counted() -> None:
    assert rises([100, 107, 0, 2, 2, 0, 1]) == 7 + 2 + 1


def test_a_reading_that_is_missing_is_neither_a_reset_nor_a_rise() -> None:
    assert rises([100, float("nan"), float("nan"), 104]) == 4


def test_the_first_reading_is_a_base_and_no_rise_whatever_it_is() -> None:
    assert rises([2.0**32 - 1]) == 0
    assert rises([0]) == 0
