"""How far a GPU stands off its siblings on the same node at like load.

A hot room, a hot job or a hot day moves all GPUs of a node; a failing cooler moves one.
"""

from __future__ import annotations

import numpy as np

from models.features.arrays import Floats

LEAST_SIBLINGS = 2


def deviation(values: Floats, loads: Floats, tolerance: float, slack: float) -> Floats:
    """Value minus the median of siblings at like load, [nodes, siblings]; NaN = unknown.

    ``values`` and ``loads`` are [nodes, siblings] with NaN where nothing was read at this
    time. Two loads are alike when they differ by at most ``tolerance`` of the larger one
    plus ``slack``. At least two siblings must be alike.
    """
    count = values.shape[1]
    read = ~(np.isnan(values) | np.isnan(loads))
    load = np.where(read, loads, np.inf)
    larger = np.maximum(np.abs(load)[:, :, None], np.abs(load)[:, None, :])
    with np.errstate(invalid="ignore"):
        near = np.abs(load[:, :, None] - load[:, None, :]) <= tolerance * larger + slack
    near &= read[:, :, None] & read[:, None, :]
    near[:, np.arange(count), np.arange(count)] = False
    others = np.where(near, values[:, None, :], np.inf)
    others.sort(axis=-1)
    found = near.sum(axis=-1)
    low = np.maximum(found - 1, 0) // 2
    high = np.minimum(found // 2, count - 1)
    middle = 0.5 * (
        np.take_along_axis(others, low[:, :, None], -1)[:, :, 0]
        + np.take_along_axis(others, high[:, :, None], -1)[:, :, 0]
    )
    known = found >= LEAST_SIBLINGS
    return np.where(known, values - np.where(known, middle, 0.0), np.nan)
