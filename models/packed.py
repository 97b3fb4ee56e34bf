"""Small trees, asked about many rows at once: what scikit-learn says, bit for bit, sooner.

scikit-learn follows each row through each tree, one comparison after the other; most of the time
goes into guesses of the processor that were wrong. Here each comparison of a tree is made for a
whole block of rows at a time. Every leaf is one bit: a row that goes left at a node loses the
leaves on its right, and the rightmost leaf that is left is the row's. (Lucchese et al. 2015,
QuickScorer, turned round: a comparison with a missing value is never true, so it goes right.)

In a block of a healthy fleet many comparisons come out alike for all rows; those are made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.features.arrays import Floats
from models.trees import LEAF, MOST_LEAVES, Ensemble

BLOCK_ROWS = 8192

Bits = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Inner:
    """A node that asks: column, limit, whether a missing value goes left; leaves on each side."""

    column: int
    limit: float
    missing_left: bool
    left: int
    right: int


class PackedTrees:
    """Ensembles of trees, ready to be asked."""

    def __init__(self, ensembles: Sequence[Ensemble]) -> None:
        self.count = len(ensembles)
        self.spans: list[tuple[int, float, int, int]] = []  # ensemble, baseline, its trees
        trees: list[tuple[list[float], list[_Inner]]] = []
        for number, one in enumerate(ensembles):
            first = len(trees)
            trees += _grown(one)
            self.spans.append((number, one.baseline, first, len(trees)))
        self._pack(trees)

    def _pack(self, trees: list[tuple[list[float], list[_Inner]]]) -> None:
        asked: dict[tuple[int, bool, float], int] = {}  # every comparison, each once
        shape = (MOST_LEAVES - 1, len(trees))
        self.question = np.zeros(shape, np.int64)
        self.left, self.right = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
        # What a tree says, by the leaves that a row has lost.
        self.value = np.full((len(trees), 2**MOST_LEAVES), np.nan)
        lost = np.arange(2**MOST_LEAVES)
        for tree, (leaves, inner) in enumerate(trees):
            for place, node in enumerate(inner):
                key = (node.column, node.missing_left, node.limit)
                self.question[place, tree] = asked.setdefault(key, len(asked))
                self.left[place, tree], self.right[place, tree] = node.left, node.right
            for leaf, value in enumerate(leaves):
                self.value[tree, lost >> leaf & 1 == 0] = value  # the rightmost comes last
        if not asked:  # every tree is one leaf
            asked[0, False, 0.0] = 0
        self.columns = sorted({column for column, _, _ in asked})
        self._asked = frozenset(self.columns)
        place_of = {column: place for place, column in enumerate(self.columns)}
        # Two rows for each column: with a missing value as the least of all, and as none.
        rows = [2 * place_of[column] + (not missing_left) for column, missing_left, _ in asked]
        self.row = np.array(rows, np.int64)
        self.limits = np.array([limit for _, _, limit in asked], np.float64)
        with np.errstate(over="ignore"):
            narrow = self.limits.astype(np.float32)
        # x <= limit for a float32 x is x <= the greatest float32 that is not above the limit.
        above = narrow > self.limits
        narrow[above] = np.nextafter(narrow[above], np.float32(-np.inf))
        self.narrow_limits = narrow

    def asks_of(self, columns: Iterable[int]) -> bool:
        """Whether one of these columns could change what is told."""
        return not self._asked.isdisjoint(columns)

    def log_odds(self, x: Floats) -> Floats:
        """[ensembles, n]: what each ensemble says of each row of ``x`` [n, names], float32 or
        float64; as scikit-learn's ``decision_function``."""
        told: Floats = np.zeros((self.count, len(x)))
        if not len(x):
            return told
        for first in range(0, len(x), BLOCK_ROWS):
            rows = slice(first, first + BLOCK_ROWS)
            self._block(x[rows], told[:, rows])
        return told

    def _block(self, x: Floats, told: Floats) -> None:
        """Fills ``told`` [ensembles, n] for one block ``x`` [n, names]."""
        values = self._columns(x)
        limits = self.narrow_limits if values.dtype == np.float32 else self.limits
        # Where even the largest is not above the limit all go left; NaN is never below one.
        with np.errstate(invalid="ignore"):
            all_left = values.max(axis=1, initial=-np.inf)[self.row] <= limits
            all_right = ~(np.fmin.reduce(values, axis=1)[self.row] <= limits)
        goes_left, goes_right = all_left[self.question], all_right[self.question]
        lost: Bits = np.bitwise_or.reduce(np.where(goes_left, self.right, 0), axis=0)
        closed = lost | np.bitwise_or.reduce(np.where(goes_right, self.left, 0), axis=0)
        # A node is open when rows differ at it and some leaf on each side can still be reached.
        opened = ~(goes_left | goes_right)
        opened &= ((self.left & ~closed) != 0) & ((self.right & ~closed) != 0)
        answers = self._answers(values, limits, opened)
        each = self._lost_by_row(lost, opened, answers, len(x))
        alone = self.value[np.arange(len(lost)), closed].tolist()
        taken = np.empty(len(x))
        for number, baseline, first, last in self.spans:
            told[number] = baseline
            for tree in range(first, last):
                bits = each.get(tree)
                if bits is None:
                    told[number] += alone[tree]
                else:
                    self.value[tree].take(bits, out=taken, mode="clip")
                    told[number] += taken

    def _columns(self, x: Floats) -> Floats:
        """The columns that are asked about, twice: missing as the least of all, and as NaN."""
        values: Floats = np.empty((2 * len(self.columns), len(x)), x.dtype)
        values[1::2] = x[:, self.columns].T
        values[::2] = values[1::2]
        least = values[::2]
        least[np.isnan(least)] = -np.inf
        return values

    def _answers(
        self, values: Floats, limits: Floats, opened: NDArray[np.bool_]
    ) -> dict[int, Bits]:
        """By comparison of an open node: all bits set for each row that goes left."""
        asked = np.unique(self.question[opened])
        answers: Bits = np.empty((len(asked), values.shape[1]), np.uint8)
        for place, (row, limit) in enumerate(
            zip(self.row[asked].tolist(), limits[asked], strict=True)
        ):
            np.less_equal(values[row], limit, out=answers[place].view(np.bool_))
        np.negative(answers, out=answers)
        return dict(zip(asked.tolist(), answers, strict=True))

    def _lost_by_row(
        self, lost: Bits, opened: NDArray[np.bool_], answers: dict[int, Bits], rows: int
    ) -> dict[int, Bits]:
        """By tree that has an open node: the leaves that each row has lost."""
        each: dict[int, Bits] = {}
        some = np.empty(rows, np.uint8)
        places, trees = np.nonzero(opened)
        questions = self.question[places, trees].tolist()
        right = self.right[places, trees]
        for tree, question, leaves in zip(trees.tolist(), questions, right, strict=True):
            bits = each.get(tree)
            if bits is None:
                each[tree] = np.bitwise_and(answers[question], leaves)
                each[tree] |= lost[tree]
            else:
                np.bitwise_and(answers[question], leaves, out=some)
                np.bitwise_or(bits, some, out=bits)
        return each


def _grown(one: Ensemble) -> Iterator[tuple[list[float], list[_Inner]]]:
    """The trees of an ensemble: what its leaves add, from left to right, and the inner nodes."""
    nodes = zip(one.column.tolist(), one.number.tolist(), one.missing_left.tolist(), strict=True)
    for _ in one.ends():
        leaves: list[float] = []
        inner: list[_Inner] = []
        _walk(nodes, leaves, inner)
        yield leaves, inner


def _walk(
    nodes: Iterator[tuple[int, float, bool]], leaves: list[float], inner: list[_Inner]
) -> int:
    """Adds the next of ``nodes`` and what lies under it; the bits of its leaves."""
    column, number, missing_left = next(nodes)
    if column == LEAF:
        leaves.append(number)
        return int(1 << len(leaves) - 1)
    left = _walk(nodes, leaves, inner)
    right = _walk(nodes, leaves, inner)
    inner.append(_Inner(column, number, missing_left, left, right))
    return left | right
