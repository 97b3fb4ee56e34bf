"""Trees as plain arrays: what an ensemble of scikit-learn knows, bound to none of its versions.

The nodes of all trees stand one after the other, each tree from its root on, before a node's right
side its whole left side. An inner node has two sides and a leaf none, so the order alone says how
the trees hang together: no number in here points at another, and no file can make a tree that is
walked in circles or out of bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.features.arrays import Floats

MOST_LEAVES = 8  # of one tree; models/packed.py keeps one bit for each
LEAF = -1


class TreesRefused(ValueError):
    """The arrays are no trees that can be asked. The text says why."""


@dataclass(frozen=True, eq=False)
class Ensemble:
    """``baseline`` and trees that add to it, log-odds.

    By node: ``column`` int16, the column of a row that an inner node asks about, or LEAF;
    ``number`` float64, the limit up to which a value goes left (infinite: only what is missing
    goes right), or what a leaf adds; ``missing_left`` bool, whether a missing value goes left.
    """

    baseline: float
    column: NDArray[np.int16]
    number: Floats
    missing_left: NDArray[np.bool_]

    @classmethod
    def of(cls, fitted: Any) -> Ensemble:
        """From a fitted HistGradientBoostingClassifier of two classes.

        Raises TreesRefused for trees of more than MOST_LEAVES leaves, or that ask for categories.
        """
        nodes: list[tuple[int, float, bool]] = []
        for predictors in fitted._predictors:
            if len(predictors) != 1:
                raise TreesRefused("trees of more than two classes cannot be kept")
            if predictors[0].nodes["is_categorical"].any():
                raise TreesRefused("trees that ask for categories cannot be kept")
            _add(predictors[0].nodes, 0, nodes)
        column, number, missing_left = zip(*nodes, strict=True) if nodes else ((), (), ())
        made = cls(
            float(fitted._baseline_prediction[0, 0]),
            np.array(column, np.int16),
            np.array(number, np.float64),
            np.array(missing_left, np.bool_),
        )
        made.check(fitted.n_features_in_)
        return made

    def check(self, columns: int) -> None:
        """Raises TreesRefused unless these are whole trees that ask of ``columns`` columns."""
        column, number, missing_left = self.column, self.number, self.missing_left
        kinds = (column.dtype, number.dtype, missing_left.dtype)
        if kinds != (np.dtype(np.int16), np.dtype(np.float64), np.dtype(np.bool_)):
            raise TreesRefused(f"nodes of types {', '.join(map(str, kinds))}")
        if column.ndim != 1 or not column.shape == number.shape == missing_left.shape:
            raise TreesRefused("arrays of nodes that differ in length")
        if len(column) and not (column.min() >= LEAF and column.max() < columns):
            raise TreesRefused(f"a node asks for a column that is not among the {columns}")
        leaf = column == LEAF
        if not (np.isfinite(self.baseline) and np.isfinite(number[leaf]).all()):
            raise TreesRefused("a leaf or the baseline is no finite number")
        if np.isnan(number).any():
            raise TreesRefused("a limit is no number")
        ends = self.ends()
        if (ends[-1] if len(ends) else 0) != len(column):
            raise TreesRefused("the last tree is not whole")
        sizes = np.diff(ends, prepend=0)
        if len(sizes) and sizes.max() > 2 * MOST_LEAVES - 1:
            raise TreesRefused(f"a tree has more than {MOST_LEAVES} leaves")

    def ends(self) -> NDArray[np.int64]:
        """[trees]: the place after the last node of each tree that is whole."""
        # Each inner node opens one side more and each leaf closes one; a tree ends when as
        # many are closed as never before.
        opened = np.cumsum(np.where(self.column == LEAF, -1, 1), dtype=np.int64)
        least = np.minimum.accumulate(np.concatenate([np.zeros(1, np.int64), opened]))
        return np.flatnonzero(np.diff(least) < 0) + 1


def _add(nodes: Any, at: int, found: list[tuple[int, float, bool]]) -> None:
    """Adds node ``at`` of scikit-learn's and all that lies under it."""
    node = nodes[at]
    if node["is_leaf"]:
        found.append((LEAF, float(node["value"]), False))
        return
    found.append(
        (int(node["feature_idx"]), float(node["num_threshold"]), bool(node["missing_go_to_left"]))
    )
    _add(nodes, int(node["left"]), found)
    _add(nodes, int(node["right"]), found)
