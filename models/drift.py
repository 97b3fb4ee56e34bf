"""Does the fleet still look as it did when the model was trained? Histograms and their distance.

The population stability index of one feature: sum over bins of (now - then) * ln(now / then).
Below 0.1 nothing moved, above 0.25 it did (Siddiqi, Credit Risk Scorecards, 2006). Missing is a
bin of its own: a family of readings that stops coming is the commonest drift of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.features import FeatureFrame, feature
from models.features.arrays import Floats
from models.looks import Examples

BINS = 10
LOOKED_AT = 5000  # entities of a kind at one look; more would tell no more
LEAST_PARTS = 100  # fewer tell more about their own jobs than about a drift
MOVED = 0.25
_FLOOR = 1e-4  # share of an empty bin: the index stays finite

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Histogram:
    """``edges`` [n] part n + 1 bins; ``shares`` [n + 2] is the share of each, missing last."""

    edges: Floats
    shares: Floats

    def counts(self, values: Floats) -> Counts:
        """How many of ``values`` lie in each bin, missing last."""
        known = values[~np.isnan(values)]
        places = np.searchsorted(self.edges, known, side="right")
        found = np.bincount(places, minlength=len(self.edges) + 2).astype(np.int64)
        found[-1] = len(values) - len(known)
        return found

    def distance(self, counts: Counts) -> float:
        """The population stability index of what was counted against the training."""
        now = np.maximum(counts / max(1, int(counts.sum())), _FLOOR)
        then = np.maximum(self.shares, _FLOOR)
        return float(np.sum((now - then) * np.log(now / then)))


def histogram(values: Floats, weight: Floats) -> Histogram:
    """Bins of about equal weight of the values that were read, and the share of those missing."""
    known = ~np.isnan(values)
    total = float(weight.sum())
    if not known.any() or total <= 0:
        return Histogram(np.zeros(0), np.array([0.0, 1.0]))
    order = np.argsort(values[known], kind="stable")
    sorted_values, sorted_weight = values[known][order], weight[known][order]
    share = np.cumsum(sorted_weight) / sorted_weight.sum()
    wanted = np.searchsorted(share, np.arange(1, BINS) / BINS)
    edges = np.unique(sorted_values[np.minimum(wanted, len(share) - 1)].astype(np.float64))
    places = np.searchsorted(edges, sorted_values, side="right")
    shares = np.bincount(places, sorted_weight, minlength=len(edges) + 2) / total
    shares[-1] = float(weight[~known].sum()) / total
    return Histogram(edges, shares)


def histograms(some: Examples, names: Sequence[str]) -> dict[str, Any]:
    """For a manifest: edges and shares of each feature in the training of one kind, as JSON data.

    ``names`` are the features that the model looks at.
    """
    place = {name: index for index, name in enumerate(some.names)}
    found: dict[str, Any] = {}
    for name in names:
        one = histogram(np.asarray(some.x[:, place[name]], np.float64), some.weight)
        found[name] = {
            "edges": [float(value) for value in one.edges],
            "shares": [round(float(value), 6) for value in one.shares],
        }
    return found


@dataclass(frozen=True, slots=True)
class Moved:
    """One feature and how far it moved; ``far`` when that is more than chance and custom."""

    kind: str
    name: str
    psi: float
    far: bool

    @property
    def words(self) -> str:
        """``GPU temperature now (gpu, PSI 0.41)``."""
        return f"{feature(self.kind, self.name).meaning} ({self.kind}, PSI {self.psi:.2f})"


@dataclass
class Drift:
    """Counts what frames show against a manifest's histograms. For one thread."""

    training: dict[str, dict[str, Histogram]]
    _counts: dict[tuple[str, str], Counts] = field(default_factory=dict)
    _parts: dict[str, int] = field(default_factory=dict)
    looks: int = 0

    @staticmethod
    def of(plain: Any) -> Drift:
        """From a manifest's ``histograms``. Raises ValueError for what is none."""
        try:
            training = {
                str(kind): {
                    str(name): _checked(one["edges"], one["shares"]) for name, one in some.items()
                }
                for kind, some in dict(plain).items()
            }
            for kind, some in training.items():
                for name in some:
                    feature(kind, name)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"histograms cannot be read: {error!r}") from error
        return Drift(training)

    def look(self, frame: FeatureFrame) -> None:
        """Counts one frame: every n-th entity where there are many."""
        self.looks += 1
        for kind, some in self.training.items():
            part = frame.of(kind)
            if part is None:
                continue
            count = len(part.entities)
            rows = slice(None, None, max(1, count // LOOKED_AT))
            self._parts[kind] = max(self._parts.get(kind, 0), count)
            for name, one in some.items():
                if name in part.positions:
                    found = one.counts(np.asarray(part.column(name)[rows], np.float64))
                    held = self._counts.get((kind, name))
                    self._counts[kind, name] = found if held is None else held + found

    def moved(self) -> list[Moved]:
        """Every feature's distance since the last :meth:`forget`, the farthest first.

        Kinds with too few parts to say are left out.
        """
        found = []
        for (kind, name), counts in self._counts.items():
            if self._parts[kind] >= LEAST_PARTS:
                psi = self.training[kind][name].distance(counts)
                found.append(Moved(kind, name, psi, psi > limit(self._parts[kind])))
        return sorted(found, key=lambda one: (-one.psi, one.kind, one.name))

    def forget(self) -> None:
        """Begins a new day."""
        self._counts.clear()
        self._parts.clear()
        self.looks = 0


def limit(parts: int) -> float:
    """From which index on a feature counts as moved: chance alone gives about bins / parts."""
    return MOVED + 3.0 * (BINS + 1) / max(parts, 1)


def _checked(edges: Any, shares: Any) -> Histogram:
    one = Histogram(np.array(edges, np.float64), np.array(shares, np.float64))
    whole = bool(np.isfinite(one.edges).all() and np.isfinite(one.shares).all())
    if not whole or one.edges.ndim != 1 or one.shares.shape != (len(one.edges) + 2,):
        raise ValueError("edges and shares do not belong together")
    return one


SURELY = 1e-3  # so seldom does chance alone give what is told as a drift of counts
TIMES = 2.0  # and it must be off by this factor, for a large fleet makes trifles sure


def unlike(observed: int, expected: float) -> int:
    """1 when ``observed`` is far more than ``expected``, -1 far less, 0 otherwise.

    Both ends of a Poisson count at SURELY, and off by a factor of TIMES at least.
    """
    from scipy.special import pdtr, pdtrc  # heavy; only sites with a learned model need it

    if observed > TIMES * expected and pdtrc(max(observed - 1, 0), expected) < SURELY:
        return 1
    if TIMES * observed < expected and pdtr(observed, expected) < SURELY:
        return -1
    return 0
