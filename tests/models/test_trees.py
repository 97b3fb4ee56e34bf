"""Trees as arrays: whole trees pass, and whatever could be walked wrongly is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingClassifier

from models.packed import PackedTrees
from models.trees import LEAF, MOST_LEAVES, Ensemble, TreesRefused

COLUMNS = 5


def made(columns: list[int], baseline: float = 0.5) -> Ensemble:
    """An ensemble with these columns; what is asked or added is 1."""
    count = len(columns)
    return Ensemble(
        baseline, np.array(columns, np.int16), np.ones(count), np.zeros(count, np.bool_)
    )


def fitted(**asked: object) -> HistGradientBoostingClassifier:
    x = np.random.default_rng(1).integers(0, 6, (600, COLUMNS)).astype(np.float32)
    return HistGradientBoostingClassifier(max_iter=5, early_stopping=False, **asked).fit(
        x, np.isin(x[:, 4], [1, 4])
    )


def test_each_tree_ends_where_all_its_sides_are_closed() -> None:
    some = made([0, LEAF, 1, LEAF, LEAF, LEAF, 3, LEAF, LEAF])
    some.check(COLUMNS)
    assert some.ends().tolist() == [5, 6, 9]
    assert made([]).ends().tolist() == []
    made([]).check(COLUMNS)


@pytest.mark.parametrize(
    ("some", "words"),
    [
        (made([0, LEAF]), "not whole"),
        (made([LEAF, 0]), "not whole"),
        (made([5, LEAF, LEAF]), "not among the 5"),
        (made([-2, LEAF, LEAF]), "not among the 5"),
        (made([0] * MOST_LEAVES + [LEAF] * (MOST_LEAVES + 1)), "more than 8 leaves"),
        (made([LEAF], float("nan")), "no finite number"),
        (replace(made([LEAF]), number=np.array([np.inf])), "no finite number"),
        (replace(made([0, LEAF, LEAF]), number=np.array([np.nan, 1.0, 1.0])), "no number"),
        (replace(made([LEAF]), number=np.ones(2)), "differ in length"),
        (replace(made([LEAF]), column=np.full((1, 1), LEAF, np.int16)), "differ in length"),
        (replace(made([LEAF]), number=np.ones(1, np.float32)), "float32"),
        (replace(made([LEAF]), column=np.array([LEAF])), "int64"),
    ],
)
def test_what_is_no_tree_is_refused(some: Ensemble, words: str) -> None:
    with pytest.raises(TreesRefused, match=words):
        some.check(COLUMNS)


def test_a_limit_may_be_infinite() -> None:
    replace(made([0, LEAF, LEAF]), number=np.array([np.inf, 1.0, -1.0])).check(COLUMNS)


@given(st.lists(st.integers(-2, COLUMNS), max_size=40))
def test_whatever_passes_is_asked_to_the_end(columns: list[int]) -> None:
    some = made(columns)
    try:
        some.check(COLUMNS)
    except TreesRefused:
        return
    told = PackedTrees([some]).log_odds(np.zeros((3, COLUMNS)))
    assert told.tolist() == [[0.5 + len(some.ends())] * 3]


def test_trees_that_do_not_fit_are_refused_when_they_are_made() -> None:
    Ensemble.of(fitted(max_leaf_nodes=MOST_LEAVES))
    with pytest.raises(TreesRefused, match="more than 8 leaves"):
        Ensemble.of(fitted(max_leaf_nodes=MOST_LEAVES + 1, min_samples_leaf=5))
    with pytest.raises(TreesRefused, match="categories"):
        Ensemble.of(fitted(max_leaf_nodes=4, categorical_features=[4]))
