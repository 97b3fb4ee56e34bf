"""Readings as numbers side by side: what the families of a stream are brought up to date with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from collectors.sample import Value
from models.features.arrays import Floats


def matrix(readings: Sequence[Mapping[str, Value]], names: Sequence[str]) -> Floats:
    """[reading, name] as float64, NaN where a field is missing or no number.

    Readings with the same fields in the same order (nearly all) are read in one go.
    """
    wanted = tuple(names)
    if readings and all(map(readings[0].__contains__, wanted)):
        try:
            return _read(readings, wanted)
        except (KeyError, TypeError, ValueError):  # not all have them all, or there is text
            pass
    x = np.full((len(readings), len(names)), np.nan)
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, one in enumerate(readings):
        groups.setdefault(tuple(one), []).append(place)
    for there, places in groups.items():
        own = [index for index, name in enumerate(wanted) if name in there]
        if not own:
            continue
        rows = [readings[place] for place in places]
        try:
            block = _read(rows, tuple([wanted[index] for index in own]))
        except (TypeError, ValueError):  # text among them
            for index in own:
                x[places, index] = _numbers(rows, wanted[index])
            continue
        if len(groups) == 1:
            x[:, own] = block
        else:
            x[np.ix_(places, own)] = block
    return x


def _read(readings: Sequence[Mapping[str, Value]], names: tuple[str, ...]) -> Floats:
    """The same of readings that have all of ``names``, as numbers. Raises where one has not."""
    values = chain.from_iterable(map(_getter(names), readings))
    return np.fromiter(values, np.float64, len(readings) * len(names)).reshape(-1, len(names))


@lru_cache(maxsize=1024)
def _getter(names: tuple[str, ...]) -> Callable[[Any], Any]:
    """Takes the values of ``names`` out of a reading, in one call that is compiled."""
    if len(names) == 1:
        return lambda reading: (reading[names[0]],)
    return itemgetter(*names) if names else lambda reading: ()


def _numbers(readings: Sequence[Mapping[str, Value]], name: str) -> Floats:
    """One field of all readings as float64, NaN where it is missing or no number."""
    values = [one.get(name) for one in readings]
    try:
        return np.array(values, np.float64)  # None becomes NaN
    except (TypeError, ValueError):
        return np.array(
            [value if isinstance(value, float | int) else np.nan for value in values], np.float64
        )
