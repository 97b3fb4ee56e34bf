"""The spans that risk is told for: within an hour, a day, a week.

One of them is a model's own, that of its threshold (a day, unless said otherwise). The others are
told beside it, so that a person sees whether there is time to wait for a job to end.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from models.features.arrays import Floats
from models.voices import Outlook

HOUR_SECONDS = 3600.0
DAY_SECONDS = 86400.0
WEEK_SECONDS = 7 * DAY_SECONDS
TOLD_SECONDS = (HOUR_SECONDS, DAY_SECONDS, WEEK_SECONDS)


def horizons_with(own_seconds: float) -> tuple[float, ...]:
    """The horizons of a model whose own is ``own_seconds``, the shortest first.

    >>> horizons_with(86400.0), horizons_with(600.0)
    ((3600.0, 86400.0, 604800.0), (600.0, 3600.0, 604800.0))
    """
    return tuple(sorted({HOUR_SECONDS, float(own_seconds), WEEK_SECONDS}))


@cache
def label(seconds: float) -> str:
    """A horizon in few characters.

    >>> label(3600.0), label(86400.0), label(604800.0), label(600.0)
    ('1h', '24h', '7d', '10min')
    """
    if seconds >= 2 * DAY_SECONDS and seconds % DAY_SECONDS == 0:
        return f"{seconds / DAY_SECONDS:g}d"
    return f"{seconds / 3600:g}h" if seconds >= 3600 else f"{seconds / 60:g}min"


def by_label(outlook: Outlook) -> dict[str, float]:
    """An outlook for people and for JSON.

    >>> by_label(((3600.0, 0.01), (86400.0, 0.2), (604800.0, 0.4)))
    {'1h': 0.01, '24h': 0.2, '7d': 0.4}
    """
    return {label(seconds): probability for seconds, probability in outlook}


def scaled(probability: Floats, of_seconds: float, to_seconds: float) -> Floats:
    """A probability within ``of_seconds`` as one within ``to_seconds``, at a constant hazard."""
    safe = np.log1p(-np.clip(probability, 0.0, 1.0 - 1e-12))
    return np.asarray(-np.expm1(safe * (to_seconds / of_seconds)))


def ordered(told: Mapping[float, Floats], own_seconds: float) -> dict[float, Floats]:
    """``told`` by horizon, none longer below a shorter one. The model's own stays as it is:
    trees of different horizons learn by themselves, and thresholds are set on that one."""
    found = {own_seconds: told[own_seconds]}
    above = told[own_seconds]
    for seconds in sorted((one for one in told if one < own_seconds), reverse=True):
        above = found[seconds] = np.minimum(told[seconds], above)
    below = told[own_seconds]
    for seconds in sorted(one for one in told if one > own_seconds):
        below = found[seconds] = np.maximum(told[seconds], below)
    return {seconds: found[seconds] for seconds in sorted(found)}
