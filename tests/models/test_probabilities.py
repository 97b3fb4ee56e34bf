"""Calibration: what is said is a rate, and kinds with few failures lean on the others."""

from __future__ import annotations

import numpy as np
import pytest

from models.calibration import Scored, apply_calibration, calibrated, fit_calibration
from models.features.arrays import Floats


def test_calibrated_probabilities_are_rates() -> None:
    rng = np.random.default_rng(1)
    raw: Floats = rng.beta(0.5, 4, 40_000)
    true = 0.5 * raw**1.5
    y = (rng.random(len(raw)) < true).astype(float)
    p = apply_calibration(raw, fit_calibration(raw, y, np.ones(len(y))))
    for low, high in ((0.005, 0.02), (0.02, 0.1), (0.1, 1)):
        inside = (p >= low) & (p < high)
        if inside.sum() > 1000:
            assert float(p[inside].mean()) == pytest.approx(float(true[inside].mean()), rel=0.25)


def test_calibration_never_turns_the_order_round() -> None:
    rng = np.random.default_rng(2)
    raw = rng.random(2000)
    y = (rng.random(2000) < 0.5 * (1 - raw)).astype(float)  # the score is the wrong way round
    p = apply_calibration(np.linspace(0.01, 0.99, 50), fit_calibration(raw, y, np.ones(2000)))
    assert (np.diff(p) >= -1e-12).all()


def drawn(count: int, rate: float, seed: int) -> tuple[Floats, Floats, Floats]:
    """Raw scores that say four times too much, and what came; ``rate`` scales the truth."""
    rng = np.random.default_rng(seed)
    raw: Floats = rng.beta(0.5, 6, count)
    true = np.clip(rate * raw / 4, 0, 1)
    return raw, (rng.random(count) < true).astype(float), true


def test_a_kind_without_later_failures_leans_on_the_others() -> None:
    raw, y, _ = drawn(20_000, 1.0, 1)
    silent = Scored(np.zeros(0), np.zeros(0), np.zeros(0), 0)
    found = calibrated({"gpu": Scored(raw, y, np.ones(len(y)), int(y.sum())), "disk": silent})
    assert found["disk"][:2] == found["gpu"][:2]
    said = apply_calibration(raw, found["disk"])
    assert float(said.mean()) == pytest.approx(float(y.mean()), rel=0.15)


def test_a_kind_that_is_known_to_be_learned_too_often_says_less() -> None:
    raw, y, _ = drawn(20_000, 1.0, 1)
    silent = Scored(np.zeros(0), np.zeros(0), np.zeros(0), 0, known=-float(np.log(3.0)))
    found = calibrated({"gpu": Scored(raw, y, np.ones(len(y)), int(y.sum())), "disk": silent})
    assert found["gpu"][2] - found["disk"][2] == pytest.approx(float(np.log(3.0)), rel=0.1)


def test_a_kind_with_many_failures_speaks_for_itself() -> None:
    parts = {}
    for name, rate, seed in (("often", 2.0, 2), ("seldom", 0.3, 3)):
        raw, y, _ = drawn(40_000, rate, seed)
        parts[name] = Scored(raw, y, np.ones(len(y)), int(y.sum()))
    found = calibrated(parts)
    for name, one in parts.items():
        said = apply_calibration(one.raw, found[name])
        assert float(said.mean()) == pytest.approx(float(one.y.mean()), rel=0.1)


def test_looks_at_one_failure_count_as_one_failure() -> None:
    """Three failures, seen dozens of times each: they move what is known before only so far."""
    raw = np.concatenate([np.full(300, 0.02), np.full(9700, 0.001)])
    y = np.concatenate([np.ones(150), np.zeros(9850)])
    many = calibrated({"": Scored(raw, y, np.ones(len(y)), 150)})[""]
    few = calibrated({"": Scored(raw, y, np.ones(len(y)), 3)})[""]
    high = [float(apply_calibration(np.array([0.02]), one)[0]) for one in (few, many)]
    assert 0.1 < high[0] < high[1]
    assert high[1] == pytest.approx(0.5, abs=0.1)
