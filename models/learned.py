"""Learned risk: gradient boosting per kind of entity, calibrated on later time.

Each cause of failure is learned by itself. Trained on down-sampled quiet times, calibrated
with the weights that undo it, so that probabilities are true rates. Missing stays missing (the
trees have a way for it). Where physics says so, risk may only rise with a feature. What tells
how long tocsin has been watching is left out: it is a clock, and a clock learns the history of
one site by heart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from collectors.sample import Sample
from models.causes import CAUSES
from models.dataset import Examples
from models.features import FeatureFrame, KindFrame, feature
from models.features.arrays import Floats
from models.risk import LEAST_TOLD, combined, rest, signal, words
from models.voices import Entity, Risk, Signal

# Suffixes of features that grow with the time of watching, and so tell the time.
# The level of a counter is one as well, and tells one part from another.
CLOCKS = ("age_days", "count_ever", "episodes_ever", "losses_ever", "gaps", ".total")
KEPT_CLOCKS = ("reboots.age_days", "node.reboots.age_days")  # the age of the boot is physics

RISING = (
    "ecc_corrected.count_",
    "ecc_uncorrected.count_",
    "remapped_uncorrected.count_",
    "nvlink_crc.count_",
    "edac_corrected.count_",
    "edac_uncorrected.count_",
    "temperature_over_siblings.mean_",
    "failure.episodes_",
    "node.failure.episodes_",
    "gpu_max.temperature_over_siblings.mean_",
    "gpu_max.ecc_corrected.count_",
    "gpu_max.remapped_uncorrected.count_",
    "gpu_max.nvlink_crc.count_",
    "link_max.symbol_errors.count_",
    "link_max.receive_errors.count_",
    "link_max.link_recoveries.count_",
)

LEAST_SIGNALLED = 1e-3  # a part below it is not told apart, whatever is usual

# Different failures (not examples: one failure gives dozens) to learn and to calibrate by.
LEAST_FAILURES = 10
LEAST_LATER_FAILURES = 4
LEAST_OF_CAUSE = 6  # different failures of one cause, to give it trees of its own
OTHER = "other"
LEAST_VARYING = 20  # rows; a column that varies in fewer tells of single parts
LATER_SHARE = 0.3  # of the failures, the latest, kept for calibration


def usable_feature(name: str) -> bool:
    """Whether a model may see this feature."""
    return name in KEPT_CLOCKS or not name.endswith(CLOCKS)


class TooFewFailures(ValueError):
    """There are too few failures to learn from. The text says how many and what is needed."""


@dataclass
class KindModel:
    """The model of one kind: columns it looks at, trees by cause, and the calibration (a, b, c).

    Each cause of failure has trees of its own; what they say is combined, then calibrated.
    Beta calibration (Kull et al. 2017): log-odds = a*ln(s) - b*ln(1-s) + c, a and b >= 0.
    ``typical`` is the median of each feature, what "as usual" means in an explanation.
    """

    kind: str
    names: tuple[str, ...]
    trees: dict[str, HistGradientBoostingClassifier]
    calibration: tuple[float, float, float]
    base_rate: float
    typical: Floats

    def columns(self, frame: KindFrame) -> Floats:
        """The frame's values in this model's order. Raises KeyError for a missing feature."""
        return np.asarray(frame.values[:, [frame.positions[name] for name in self.names]])

    def probability(self, x: Floats) -> Floats:
        """Calibrated probability of each row of ``x`` [n, names]."""
        if not len(x):
            return np.zeros(0)
        with threadpool_limits(1):
            raw = raw_score(self.trees, x)
        return apply_calibration(raw, self.calibration)

    def signals(self, x: Floats, most: int = 4) -> tuple[Signal, ...]:
        """What moved the risk of one row ``x`` [names] most.

        Exact for this model: each family of features is set to its usual values and the
        row is scored again; the weight is the change of the log-odds.
        """
        families: dict[str, list[int]] = {}
        for index, name in enumerate(self.names):
            families.setdefault(name.rsplit(".", 1)[0], []).append(index)
        rows = np.repeat(x[None, :], len(families) + 1, axis=0)
        for row, columns in enumerate(families.values(), start=1):
            rows[row, columns] = self.typical[columns]
        odds = _logit(self.probability(rows))
        weights = odds[0] - odds[1:]
        order = np.argsort(-weights, kind="stable")[:most]
        stems = list(families.items())
        found = []
        for index in order.tolist():
            if weights[index] < 0.1:
                break
            stem, columns = stems[index]
            column = self._telling(x, columns)
            meant = feature(self.kind, self.names[column])
            value = float(x[column])
            usual = float(self.typical[column])
            text = f"{meant.meaning}: {words(value, meant.unit)}"
            if usual == usual:
                text += f" (usual {words(usual, meant.unit)})"
            found.append(signal(stem, value, float(weights[index]), text))
        return tuple(found)

    def _telling(self, x: Floats, columns: list[int]) -> int:
        """The member of a family that is farthest from its usual value."""

        def distance(column: int) -> float:
            value, usual = float(x[column]), float(self.typical[column])
            if value != value:
                return -1.0
            if usual != usual:
                return 0.5
            return abs(value - usual) / (abs(usual) + 1e-3)

        return max(columns, key=distance)


@dataclass
class LearnedRisk:
    """A RiskModel of trained KindModels. ``scores`` and ``trained`` go into the manifest."""

    horizon_seconds: float
    kinds: dict[str, KindModel]
    name: str = "learned-1"
    facts: dict[str, object] = field(default_factory=dict)

    def observe(self, sample: Sample, arrival_ns: int) -> None:
        """Nothing: the features keep the history."""

    @property
    def needs(self) -> dict[str, tuple[str, ...]]:
        """The features that it looks at, by kind: frames need hold no others."""
        return {kind: model.names for kind, model in self.kinds.items()}

    def parts(self, frame: FeatureFrame) -> dict[str, Floats]:
        """Calibrated probability of every entity, by kind."""
        found = {}
        for kind, model in self.kinds.items():
            part = frame.of(kind)
            if part is not None:
                found[kind] = model.probability(model.columns(part))
        return found

    def nodes(self, frame: FeatureFrame) -> tuple[list[str], Floats]:
        """Node names and the probability of each node, all its parts together."""
        names = node_names(frame)
        place = {name: i for i, name in enumerate(names)}
        return names, self._combined(frame, self.parts(frame), place)

    def _combined(
        self, frame: FeatureFrame, parts: Mapping[str, Floats], place: Mapping[str, int]
    ) -> Floats:
        total: Floats = np.zeros(len(place))
        for kind, probability in parts.items():
            part = frame.of(kind)
            assert part is not None
            rows = np.array([place[name] for name in part.nodes], np.int64)[part.node_rows]
            total = combined(total, probability, rows)
        return total

    def score(self, frame: FeatureFrame, now_ns: int) -> list[Risk]:
        """A Risk for each part whose risk stands out, and one for every node."""
        parts = self.parts(frame)
        names = node_names(frame)
        place = {name: i for i, name in enumerate(names)}
        own = self._combined(frame, parts, place)
        risks: list[Risk] = []
        reasons: dict[str, tuple[Signal, ...]] = {}
        for kind, probability in parts.items():
            part, model = frame.of(kind), self.kinds[kind]
            assert part is not None
            told = np.flatnonzero(probability > max(LEAST_TOLD * model.base_rate, LEAST_SIGNALLED))
            if not len(told):
                continue
            x = model.columns(part)[told]
            signals = [model.signals(row) for row in x]
            if kind == "node":
                reasons = {
                    part.entities[row].node: why
                    for row, why in zip(told.tolist(), signals, strict=True)
                }
                continue
            nodes = np.array([place[part.entities[row].node] for row in told.tolist()], np.int64)
            own = rest(own, probability[told], nodes)
            risks += [
                self._risk(part.entities[row], float(probability[row]), why)
                for row, why in zip(told.tolist(), signals, strict=True)
            ]
        risks += [
            self._risk(Entity("node", name), float(own[node]), reasons.get(name, ()))
            for node, name in enumerate(names)
        ]
        return risks

    def _risk(self, entity: Entity, probability: float, signals: tuple[Signal, ...]) -> Risk:
        history = bool(signals) and "failure" in signals[0].feature
        voice = "history" if history else "risk"
        return Risk(entity, probability, self.horizon_seconds, self.name, voice, signals)


def node_names(frame: FeatureFrame) -> list[str]:
    """All nodes of a frame, each once."""
    names: dict[str, None] = {}
    for part in frame.kinds.values():
        names.update(dict.fromkeys(entity.node for entity in part.entities))
    return list(names)


def train_kind(examples: Examples, seed: int = 0, later: Examples | None = None) -> KindModel:
    """Fits the trees and calibrates them on ``later``, other examples at the true rate.

    Without ``later`` it fits on earlier time and calibrates on the last 30 % of the failures.
    Raises TooFewFailures when either part foretells too few.
    """
    if later is None:
        failing = examples.y > 0
        cut_ns = np.quantile(examples.times_ns[failing], 1 - LATER_SHARE) if failing.any() else 0
        early = examples.times_ns <= cut_ns
        examples, later = examples.part(early), examples.part(~early)
    counts = examples.failures(), later.failures()
    if counts[0] < LEAST_FAILURES or counts[1] < LEAST_LATER_FAILURES:
        raise TooFewFailures(
            f"{examples.kind}: {counts[0]} failures to learn from and {counts[1]} later ones to "
            f"calibrate by; {LEAST_FAILURES} and {LEAST_LATER_FAILURES} are needed"
        )
    columns = [
        index
        for index, name in enumerate(examples.names)
        if usable_feature(name) and _varies(examples.x[:, index])
    ]
    names = tuple(examples.names[index] for index in columns)
    x = np.ascontiguousarray(examples.x[:, columns])
    # One thread: on a head that does other work, waiting threads cost more than they gain.
    with threadpool_limits(1):
        trees = _by_cause(examples, x, names, seed)
        places = {name: index for index, name in enumerate(later.names)}
        raw = raw_score(trees, later.x[:, [places[name] for name in names]])
    calibration = fit_calibration(raw, later.y, later.weight)
    base_rate = float(np.average(later.y, weights=later.weight))
    quiet = x[examples.y == 0]
    with np.errstate(all="ignore"):
        known = ~np.isnan(quiet).all(axis=0)
        typical = np.full(len(names), np.nan)
        typical[known] = np.nanmedian(quiet[:, known], axis=0)
    return KindModel(examples.kind, names, trees, calibration, base_rate, typical)


def _by_cause(
    examples: Examples, x: Floats, names: tuple[str, ...], seed: int
) -> dict[str, HistGradientBoostingClassifier]:
    """Trees for each cause that has enough failures; the others are learned together."""
    causes = CAUSES[examples.kind]
    counted = [examples.failures(cause) for cause in range(len(causes))]
    alone = [cause for cause, count in enumerate(counted) if count >= LEAST_OF_CAUSE]
    groups = {causes[cause]: examples.causes == cause for cause in alone}
    left = (examples.y > 0) & ~np.isin(examples.causes, alone)
    if left.any():
        groups[OTHER] = left
    rising = [1 if name.startswith(RISING) else 0 for name in names]
    found = {}
    for name, failing in groups.items():
        # Before a failure of another cause a part does not fail of this one.
        found[name] = HistGradientBoostingClassifier(
            learning_rate=0.05,
            max_iter=100,
            max_leaf_nodes=8,
            min_samples_leaf=40,
            l2_regularization=20.0,
            max_features=0.5,
            monotonic_cst=rising,
            early_stopping=False,
            random_state=seed,
        ).fit(x, failing.astype(np.float64))
    return found


def raw_score(trees: Mapping[str, HistGradientBoostingClassifier], x: Floats) -> Floats:
    """What all trees say together of each row: 1 - product of (1 - p), not yet calibrated."""
    safe = np.ones(len(x))
    for one in trees.values():
        safe *= 1.0 - one.predict_proba(x)[:, 1]
    return np.asarray(1.0 - safe)


def _varies(values: Floats) -> bool:
    """Whether enough rows differ from the usual value for a leaf to hold them."""
    known = values[~np.isnan(values)]
    return len(known) > 0 and int((known != np.median(known)).sum()) >= LEAST_VARYING


def fit_calibration(raw: Floats, y: Floats, weight: Floats) -> tuple[float, float, float]:
    """Beta calibration of raw scores by weighted logistic regression; slopes never negative."""
    raw = np.clip(raw, 1e-9, 1 - 1e-9)
    both = np.stack([np.log(raw), -np.log1p(-raw)], axis=1)
    model = LogisticRegression(C=1e3, max_iter=2000).fit(both, y, sample_weight=weight)
    a, b = (float(value) for value in model.coef_[0])
    if a >= 0 and b >= 0:
        return a, b, float(model.intercept_[0])
    column = 0 if b < 0 else 1
    one = LogisticRegression(C=1e3, max_iter=2000).fit(both[:, [column]], y, sample_weight=weight)
    slope = max(float(one.coef_[0][0]), 0.0)
    c = float(one.intercept_[0])
    return (slope, 0.0, c) if column == 0 else (0.0, slope, c)


def apply_calibration(raw: Floats, calibration: tuple[float, float, float]) -> Floats:
    """Calibrated probabilities."""
    a, b, c = calibration
    raw = np.clip(raw, 1e-9, 1 - 1e-9)
    odds = a * np.log(raw) - b * np.log1p(-raw) + c
    return np.asarray(1.0 / (1.0 + np.exp(-odds)))


def _logit(p: Floats) -> Floats:
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(p) - np.log1p(-p))


def train(
    examples: Mapping[str, Examples],
    horizon_seconds: float,
    seed: int = 0,
    later: Mapping[str, Examples] | None = None,
) -> tuple[LearnedRisk, list[str]]:
    """A model of every kind that has enough failures, and words about the kinds that have not.

    Raises TooFewFailures when no kind has enough.
    """
    kinds: dict[str, KindModel] = {}
    left_out: list[str] = []
    for kind, some in sorted(examples.items()):
        try:
            kinds[kind] = train_kind(some, seed, None if later is None else later[kind])
        except TooFewFailures as error:
            left_out.append(str(error))
    if not kinds:
        raise TooFewFailures("; ".join(left_out) or "no examples")
    return LearnedRisk(horizon_seconds, kinds), left_out
