"""The rivals, all behind one interface: a score for each node of a frame.

A score only has to order; its threshold is set on earlier time at a budget of false drains.
Scores that are probabilities say so, and are judged for calibration as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer

from models.features import FeatureFrame, KindFrame
from models.features.arrays import Floats
from models.horizons import label
from models.learned import LearnedRisk, node_names, usable_feature
from models.looks import Examples
from models.rival import EPISODES, HOTTER, Rival, sibling_z


class Scorer(Protocol):
    """``nodes(frame)`` gives node names and scores [nodes]. ``kinds``, where it has them, are the
    kinds of part that it looks at beside GPUs and nodes."""

    name: str
    is_probability: bool

    def nodes(self, frame: FeatureFrame) -> tuple[list[str], Floats]:
        """Scores of all nodes of the frame."""
        ...


def per_node(frame: FeatureFrame, scores: Mapping[str, Floats]) -> tuple[list[str], Floats]:
    """The largest score among each node's entities; NaN counts as 0."""
    names = node_names(frame)
    place = {name: i for i, name in enumerate(names)}
    best = np.zeros(len(names))
    for kind, values in scores.items():
        part = frame.of(kind)
        if part is not None:
            rows = np.array([place.get(name, -1) for name in part.nodes], np.int64)[part.node_rows]
            np.maximum.at(best, rows, np.nan_to_num(values))
    return names, best


def _columns(part: KindFrame | None, names: tuple[str, ...]) -> list[Floats]:
    if part is None:
        return []
    return [np.nan_to_num(np.asarray(part.column(name), np.float64)) for name in names]


class Never:
    """Never drains."""

    name = "never"
    is_probability = True

    def nodes(self, frame: FeatureFrame) -> tuple[list[str], Floats]:
        return per_node(frame, {})


class XidTable:
    """Drains on what the XID table calls a fault of the hardware, when it is there."""

    name = "xid-table"
    is_probability = False

    def nodes(self, frame: FeatureFrame) -> tuple[list[str], Floats]:
        part = frame.of("gpu")
        columns = _columns(part, ("failure.events_1h", "remap_failed.now", "lost.now"))
        return per_node(frame, {"gpu": np.max(columns, axis=0)} if columns else {})


class StaticThresholds:
    """Fixed limits in the manner of DCGM's health watches: any one exceeded is an alarm.

    The score counts the limits exceeded, each with its severity.
    """

    name = "static-thresholds"
    is_probability = False

    LIMITS = (
        ("temperature.mean_10m", 85.0, 2.0),
        ("memory_temperature.mean_10m", 95.0, 2.0),
        ("throttle_thermal.mean_10m", 0.05, 2.0),
        ("ecc_uncorrected.count_1d", 0.5, 3.0),
        ("remap_pending.now", 0.5, 1.0),
        ("remap_failed.now", 0.5, 3.0),
        ("remapped_uncorrected.count_7d", 4.0, 2.0),
        ("nvlink_crc.count_1h", 100.0, 1.0),
        ("pcie_replays.count_1h", 480.0, 1.0),
    )

    def nodes(self, frame: FeatureFrame) -> tuple[list[str], Floats]:
        part = frame.of("gpu")
        if part is None:
            return per_node(frame, {})
        score = np.zeros(len(part.entities))
        for name, limit, severity in self.LIMITS:
            with np.errstate(invalid="ignore"):
                score += severity * (np.asarray(part.column(name)) > limit)
        return per_node(frame, {"gpu": score})


class History:
    """Nodes that failed in the last 28 days, the most often first."""

    name = "history-28d"
    is_probability = False

    def nodes(self, frame: FeatureFrame) -> tuple[list[str], Floats]:
        columns = _columns(frame.of("node"), (EPISODES,))
        return per_node(frame, {"node": columns[0]} if columns else {})


class SiblingZ:
    """GPUs hotter than their siblings at like power, as a z-score over the fleet."""

    name = "sibling-z"
    is_probability = False

    def nodes(self, frame: FeatureFrame) -> tuple[list[str], Floats]:
        part = frame.of("gpu")
        if part is None:
            return per_node(frame, {})
        return per_node(frame, {"gpu": np.maximum(sibling_z(part.column(HOTTER)), 0.0)})


class Combined:
    """XID table + 28-day history + sibling z: the rival that a learned model has to beat."""

    name = "rival"
    is_probability = True

    def __init__(self) -> None:
        self.rival = Rival()

    def nodes(self, frame: FeatureFrame) -> tuple[list[str], Floats]:
        return self.rival.nodes(frame)


class Learned:
    """The learned model."""

    is_probability = True

    def __init__(self, model: LearnedRisk, name: str = "learned") -> None:
        self.model = model
        self.name = name
        self.kinds = tuple(model.kinds)

    def nodes(self, frame: FeatureFrame) -> tuple[list[str], Floats]:
        return self.model.nodes(frame)


class Within:
    """The learned model within another horizon than its own: for calibration, not for drains."""

    is_probability = True

    def __init__(self, model: LearnedRisk, seconds: float) -> None:
        self.model = model
        self.seconds = seconds
        self.name = f"learned within {label(seconds)}"
        self.kinds = tuple(model.kinds)

    def nodes(self, frame: FeatureFrame) -> tuple[list[str], Floats]:
        names, told = self.model.outlook(frame, (self.seconds,))
        return names, told[self.seconds]


class Logistic:
    """Logistic regression on ranks of the features, missing taken as usual."""

    name = "logistic"
    is_probability = False

    def __init__(self, examples: Mapping[str, Examples], seed: int = 0) -> None:
        self.kinds = {}
        for kind, some in _two(examples):
            if some.y.sum() < 20:
                continue
            columns = _informative(some)
            model = make_pipeline(
                QuantileTransformer(n_quantiles=100, random_state=seed),
                LogisticRegression(C=0.01, max_iter=300),
            )
            model.fit(np.nan_to_num(some.x[:, columns]), some.y)
            self.kinds[kind] = (columns, model)

    def nodes(self, frame: FeatureFrame) -> tuple[list[str], Floats]:
        scores = {}
        for kind, (columns, model) in self.kinds.items():
            part = frame.of(kind)
            if part is not None:
                x = np.nan_to_num(part.values[:, columns])
                scores[kind] = model.predict_proba(x)[:, 1]
        return per_node(frame, scores)


class Forest:
    """Isolation forest: knows no failures, tells what is unusual."""

    name = "isolation-forest"
    is_probability = False

    def __init__(self, examples: Mapping[str, Examples], seed: int = 0) -> None:
        self.kinds = {}
        for kind, some in _two(examples):
            columns = _informative(some)
            quiet = np.nan_to_num(some.x[some.y == 0][:, columns])
            if len(quiet) < 100:
                continue
            most = min(512, len(quiet))
            model = IsolationForest(n_estimators=50, max_samples=most, random_state=seed)
            model.fit(quiet)
            self.kinds[kind] = (columns, model)

    def nodes(self, frame: FeatureFrame) -> tuple[list[str], Floats]:
        scores = {}
        for kind, (columns, model) in self.kinds.items():
            part = frame.of(kind)
            if part is not None:
                scores[kind] = -model.score_samples(np.nan_to_num(part.values[:, columns]))
        return per_node(frame, scores)


def _two(examples: Mapping[str, Examples]) -> list[tuple[str, Examples]]:
    """GPUs and nodes: a node sees the worst of its other parts, and fails when one of them does."""
    return [(kind, examples[kind]) for kind in ("gpu", "node") if kind in examples]


def _informative(some: Examples) -> list[int]:
    x = np.nan_to_num(some.x)
    return [
        index
        for index, name in enumerate(some.names)
        if usable_feature(name) and float(np.ptp(x[:, index])) > 0
    ]


RIVALS: tuple[type[Never | XidTable | StaticThresholds | History | SiblingZ | Combined], ...] = (
    Never,
    XidTable,
    StaticThresholds,
    History,
    SiblingZ,
    Combined,
)
