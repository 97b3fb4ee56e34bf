"""From raw scores to probabilities: beta calibration, all kinds of part together.

Kull et al. 2017: log-odds = a*ln(s) - b*ln(1-s) + c, with a and b never negative, so that the order
stays. Failures are too few to set three numbers for each kind of part by itself: the slopes are
shared, and each kind has an intercept of its own that is drawn to the common one. Dozens of looks
tell of one failure; they count as one, else a few failures would outweigh what is known before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from models.features.arrays import Floats

Beta = tuple[float, float, float]

SLOPE_SPREAD = 1.0  # how far the slopes may well lie from 1
KIND_SPREAD = 0.7  # log-odds: how far a kind may well lie from the others (a factor of 2)
_EDGE = 1e-9


@dataclass(frozen=True)
class Scored:
    """Raw scores ``raw`` [n] of one kind, what came ``y`` [n], ``weight`` [n], and how many
    different failures the positives tell of.

    ``known``: how much the log-odds of this kind are known to be off, before any is counted.
    """

    raw: Floats
    y: Floats
    weight: Floats
    failures: int
    known: float = 0.0


def calibrated(by_kind: Mapping[str, Scored]) -> dict[str, Beta]:
    """(a, b, c) of each kind. There has to be a failure in one of them."""
    kinds = list(by_kind)
    some = list(by_kind.values())
    number = np.repeat(np.arange(len(kinds)), [len(one.raw) for one in some])
    raw = np.clip(np.concatenate([one.raw for one in some]), _EDGE, 1 - _EDGE)
    y = np.concatenate([one.y for one in some])
    weight = np.concatenate([one.weight for one in some])
    positives = float((weight * y).sum())
    weight = weight * (sum(one.failures for one in some) / positives)
    low, high = np.log(raw), -np.log1p(-raw)
    known = np.array([one.known for one in some])

    def loss(at: Floats) -> tuple[float, Floats]:
        a, b, c, own = at[0], at[1], at[2], at[3:]
        odds = a * low + b * high + c + (known + own)[number]
        lost = float((weight * (np.logaddexp(0.0, odds) - y * odds)).sum())
        slope = weight * (expit(odds) - y)
        gradient = np.concatenate(
            [
                [(slope * low).sum() + (a - 1) / SLOPE_SPREAD**2],
                [(slope * high).sum() + (b - 1) / SLOPE_SPREAD**2],
                [slope.sum()],
                np.bincount(number, slope, len(kinds)) + own / KIND_SPREAD**2,
            ]
        )
        prior = ((a - 1) ** 2 + (b - 1) ** 2) / (2 * SLOPE_SPREAD**2)
        return lost + prior + float((own**2).sum()) / (2 * KIND_SPREAD**2), gradient

    rate = positives / float(sum((one.weight).sum() for one in some))
    begin = np.zeros(3 + len(kinds))
    begin[:2] = 1.0
    begin[2] = np.log(rate / (1 - rate)) - np.log(raw.mean() / (1 - raw.mean()))
    bounds = [(0.0, None), (0.0, None), *[(None, None)] * (1 + len(kinds))]
    from scipy.optimize import minimize  # 23 MiB that only a training needs

    found = minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=bounds).x
    return {
        kind: (float(found[0]), float(found[1]), float(found[2] + known[at] + found[3 + at]))
        for at, kind in enumerate(kinds)
    }


def fit_calibration(raw: Floats, y: Floats, weight: Floats) -> Beta:
    """(a, b, c) of one kind whose positives all tell of different failures."""
    return calibrated({"": Scored(raw, y, weight, int(y.sum()))})[""]


def apply_calibration(raw: Floats, calibration: Beta) -> Floats:
    """Calibrated probabilities."""
    a, b, c = calibration
    raw = np.clip(raw, _EDGE, 1 - _EDGE)
    return np.asarray(expit(a * np.log(raw) - b * np.log1p(-raw) + c))
