"""Packed trees say what scikit-learn says, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from models.features.arrays import Floats
from models.packed import BLOCK_ROWS, PackedTrees
from models.trees import MOST_LEAVES, Ensemble

NAMES = 12


def rows(count: int, seed: int) -> Floats:
    """Counters that mostly stand at zero, levels, flags, and much that was not read."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, NAMES)).astype(np.float32)
    x[:, :4] = rng.poisson(0.1, (count, 4))
    x[:, 4] = x[:, 4] > 0
    x[rng.random((count, NAMES)) < 0.2] = np.nan
    x[rng.random((count, NAMES)) < 0.01] = np.inf
    x[rng.random((count, NAMES)) < 0.01] = -np.inf
    return x


def fitted(seed: int, leaves: int = MOST_LEAVES, **asked: object) -> HistGradientBoostingClassifier:
    x = np.nan_to_num(rows(2000, seed), nan=np.nan, posinf=9.0, neginf=-9.0)
    y = np.nan_to_num(x[:, 0] + x[:, 6]) + np.random.default_rng(seed).normal(size=2000) > 1
    y |= np.isnan(x[:, 7])  # what is missing tells as well
    return HistGradientBoostingClassifier(
        max_iter=30, max_leaf_nodes=leaves, early_stopping=False, random_state=seed, **asked
    ).fit(x, y)


@pytest.fixture(scope="module")
def ensembles() -> list[HistGradientBoostingClassifier]:
    return [fitted(1), fitted(2, 2), fitted(3, 5, monotonic_cst=[1] + [0] * (NAMES - 1))]


def same(ensembles: list[HistGradientBoostingClassifier], x: Floats) -> bool:
    told = PackedTrees([Ensemble.of(one) for one in ensembles]).log_odds(x)
    finite = np.where(np.isposinf(x), 3e38, np.where(np.isneginf(x), -3e38, x))
    wanted = [one.decision_function(finite.astype(np.float64)) for one in ensembles]
    return np.array_equal(told, np.array(wanted))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_every_row_is_told_as_scikit_learn_tells_it(
    ensembles: list[HistGradientBoostingClassifier], kind: type
) -> None:
    assert same(ensembles, rows(BLOCK_ROWS + 777, 4).astype(kind))


def test_values_at_a_limit_and_next_to_it(ensembles: list[HistGradientBoostingClassifier]) -> None:
    x = np.repeat(rows(1, 5), 400, axis=0)
    nodes = np.concatenate([trees[0].nodes for one in ensembles for trees in one._predictors])
    inner = nodes[nodes["is_leaf"] == 0]
    for row, node in enumerate(inner[:390]):
        limit = np.float32(node["num_threshold"])
        step = (np.float32(-np.inf), limit, np.float32(np.inf))[row % 3]
        x[row, node["feature_idx"]] = np.nextafter(limit, step)
    assert same(ensembles, x)
    exact = x.astype(np.float64)
    for row, node in enumerate(inner[:390]):
        limit = node["num_threshold"]
        exact[row, node["feature_idx"]] = np.nextafter(limit, (-np.inf, limit, np.inf)[row % 3])
    assert same(ensembles, exact)


@pytest.mark.parametrize("value", [0.0, np.nan, 1e6])
def test_a_fleet_in_which_all_are_alike(
    ensembles: list[HistGradientBoostingClassifier], value: float
) -> None:
    x = np.full((300, NAMES), value, np.float32)
    assert same(ensembles, x)
    x[7, 3] = 2.0  # but one
    assert same(ensembles, x)


def test_nobody_to_tell_of(ensembles: list[HistGradientBoostingClassifier]) -> None:
    packed = PackedTrees([Ensemble.of(one) for one in ensembles])
    assert packed.log_odds(np.zeros((0, NAMES))).shape == (3, 0)


def test_trees_of_one_leaf() -> None:
    x = rows(200, 10)
    silent = HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=150, early_stopping=False)
    silent.fit(np.nan_to_num(x, posinf=9.0, neginf=-9.0), np.arange(200) % 5 == 0)
    assert same([silent], rows(50, 11))


def test_only_columns_that_are_asked_about_can_change_what_is_told(
    ensembles: list[HistGradientBoostingClassifier],
) -> None:
    packed = PackedTrees([Ensemble.of(one) for one in ensembles])
    x = rows(400, 12)
    for column in range(NAMES):
        other = x.copy()
        other[:, column] = rows(400, 13)[:, column]
        if not packed.asks_of([column]):
            assert np.array_equal(packed.log_odds(x), packed.log_odds(other))
    assert packed.asks_of([0])
