"""Looks at parts while training: features, and when the part next failed. And what they teach.

A look is kept once for all horizons: whether it is a good example depends on the horizon, and
:meth:`Looks.within` says it for one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from models.features.arrays import Floats, Times

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Examples:
    """Training examples of one kind: ``x`` [n, names], ``y`` [n], ``weight`` [n].

    ``weight`` undoes the sampling: 1 / (share kept) for a negative, so that weighted rates are
    true rates. ``onsets_ns`` [n] is the failure that a positive foretells, 0 for a negative: many
    examples tell of one. ``causes`` [n] is that failure's cause as its place in CAUSES[kind], -1
    for a negative.
    """

    kind: str
    names: tuple[str, ...]
    x: Floats
    y: Floats
    weight: Floats
    times_ns: Times
    nodes: tuple[str, ...]
    onsets_ns: Times
    causes: Times

    def failures(self, cause: int | None = None) -> int:
        """How many different failures the positives foretell, of one cause or of all."""
        chosen = (self.y > 0) & ((self.causes == cause) if cause is not None else True)
        return _different(self.nodes, self.onsets_ns, chosen)

    def part(self, chosen: Mask) -> Examples:
        """The examples where ``chosen`` is true."""
        return Examples(
            self.kind,
            self.names,
            self.x[chosen],
            self.y[chosen],
            self.weight[chosen],
            self.times_ns[chosen],
            _picked(self.nodes, chosen),
            self.onsets_ns[chosen],
            self.causes[chosen],
        )


@dataclass(frozen=True)
class Looks:
    """Looks at the parts of one kind: ``x`` [n, names], the rest [n].

    ``onsets_ns`` is the next failure within the longest horizon, 0 for none; ``known_ns`` the end
    of what is known of that part's future. Kept were the looks before a failure, and of the
    others those whose ``lots``, even in [0, 1), lie below ``share``. A look that is ``fine`` was
    taken between two looks at all parts, since ``fine_ns``, the shortest horizon, is shorter than
    their distance: of such a failure ``fine_weight`` is the weight of each look.
    """

    kind: str
    names: tuple[str, ...]
    x: Floats
    times_ns: Times
    nodes: tuple[str, ...]
    onsets_ns: Times
    causes: Times
    lots: Floats
    known_ns: Times
    fine: Mask
    share: float
    fine_ns: int = 0
    fine_weight: float = 1.0

    def within(self, horizon_ns: int) -> Examples:
        """The examples for failures within ``horizon_ns``."""
        positive, kept = self._chosen(horizon_ns)
        good = positive[kept]
        weight = self.fine_weight if horizon_ns == self.fine_ns else 1.0
        return Examples(
            self.kind,
            self.names,
            self.x[kept],
            good.astype(np.float64),
            np.where(good, weight, 1.0 / self.share),
            self.times_ns[kept],
            _picked(self.nodes, kept),
            np.where(good, self.onsets_ns[kept], 0),
            np.where(good, self.causes[kept], -1),
        )

    def failures(self, horizon_ns: int) -> int:
        """How many different failures are foretold within ``horizon_ns``."""
        positive, kept = self._chosen(horizon_ns)
        return _different(self.nodes, self.onsets_ns, positive & kept)

    def _chosen(self, horizon_ns: int) -> tuple[Mask, Mask]:
        """Which looks are before a failure, and which are examples at all."""
        positive = (self.onsets_ns > 0) & (self.onsets_ns <= self.times_ns + horizon_ns)
        known = self.times_ns + horizon_ns <= self.known_ns
        usual = ~self.fine
        if horizon_ns == self.fine_ns:
            return positive, known & (positive | (usual & (self.lots < self.share)))
        return positive, known & usual & (positive | (self.lots < self.share))

    def part(self, chosen: Mask) -> Looks:
        """The looks where ``chosen`` is true."""
        return replace(
            self,
            x=self.x[chosen],
            times_ns=self.times_ns[chosen],
            nodes=_picked(self.nodes, chosen),
            onsets_ns=self.onsets_ns[chosen],
            causes=self.causes[chosen],
            lots=self.lots[chosen],
            known_ns=self.known_ns[chosen],
            fine=self.fine[chosen],
        )

    def until(self, end_ns: int) -> Looks:
        """What was looked at until then, and known then."""
        early = self.part(self.times_ns <= end_ns)
        return replace(early, known_ns=np.minimum(early.known_ns, end_ns))

    def without(self, causes: Collection[int]) -> Looks:
        """No look before a failure of these causes: others tell of it."""
        told = (self.onsets_ns > 0) & np.isin(self.causes, list(causes))
        return self.part(~told) if told.any() else self


def put_together(some: Sequence[Looks]) -> Looks:
    """The looks of several parts or histories as one. Times are kept, so later stays later."""
    return replace(
        some[0],
        x=np.concatenate([one.x for one in some]),
        times_ns=np.concatenate([one.times_ns for one in some]),
        nodes=tuple(node for one in some for node in one.nodes),
        onsets_ns=np.concatenate([one.onsets_ns for one in some]),
        causes=np.concatenate([one.causes for one in some]),
        lots=np.concatenate([one.lots for one in some]),
        known_ns=np.concatenate([one.known_ns for one in some]),
        fine=np.concatenate([one.fine for one in some]),
    )


def _picked(nodes: tuple[str, ...], chosen: Mask) -> tuple[str, ...]:
    return tuple(node for node, yes in zip(nodes, chosen.tolist(), strict=True) if yes)


def _different(nodes: tuple[str, ...], onsets_ns: Times, chosen: Mask) -> int:
    rows = np.flatnonzero(chosen).tolist()
    return len({(nodes[row], int(onsets_ns[row])) for row in rows})
