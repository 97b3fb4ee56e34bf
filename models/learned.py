"""Learned risk: gradient boosting per kind of part and horizon, calibrated on later time.

Each cause of failure is learned by itself (models/fitting.py). Missing stays missing: the trees
have a way for it. What tells how long tocsin has been watching is left out: it is a clock, and a
clock learns the history of one site by heart.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.special import expit

from models.calibration import Beta, apply_calibration
from models.features import FeatureFrame, KindFrame, feature
from models.features.arrays import Floats, Rows
from models.horizons import horizons_with, ordered, scaled
from models.packed import PackedTrees
from models.risk import LEAST_TOLD, combined, rest, signal, words
from models.trees import Ensemble
from models.voices import Entity, Outlook, Risk, Signal

# Suffixes of features that grow with the time of watching, and so tell the time.
# The level of a counter is one as well, and tells one part from another.
CLOCKS = ("age_days", "count_ever", "episodes_ever", "losses_ever", "gaps", ".total")
KEPT_CLOCKS = ("reboots.age_days", "node.reboots.age_days")  # the age of the boot is physics

ROWS_EXPLAINED = 8192  # rows that are scored in one go to explain some
LEAST_SIGNALLED = 1e-3  # a part below it is not told apart, whatever is usual

# Parts that are scored in one go, in half a second; 10,000 nodes of 8 GPUs take 3 turns.
ROWS_AT_ONCE = 45_000

ALL = slice(None)
Trees = Mapping[str, Ensemble]


def usable_feature(name: str) -> bool:
    """Whether a model may see this feature."""
    return name in KEPT_CLOCKS or not name.endswith(CLOCKS)


@dataclass(frozen=True)
class Horizon:
    """What one kind says of one horizon: trees by cause of failure, and the calibration.

    What the trees of all causes say is combined, then calibrated. ``base_rate`` is the share of
    looks that a failure followed.
    """

    trees: Trees
    calibration: Beta
    base_rate: float

    @cached_property
    def packed(self) -> PackedTrees:
        """The trees, made ready to be asked."""
        return PackedTrees(list(self.trees.values()))

    def probability(self, x: Floats) -> Floats:
        """Calibrated probability of each row of ``x`` [n, names]."""
        return apply_calibration(raw_score(self.packed, x), self.calibration)


@dataclass
class KindModel:
    """The model of one kind: the columns it looks at, and what it says by horizon in seconds.

    ``own_seconds`` is the horizon of its risk; it is always there. ``typical`` is the median of
    each feature, what "as usual" means in an explanation.
    """

    kind: str
    names: tuple[str, ...]
    own_seconds: float
    horizons: dict[float, Horizon]
    typical: Floats

    @property
    def own(self) -> Horizon:
        """What it says of its own horizon."""
        return self.horizons[self.own_seconds]

    @property
    def base_rate(self) -> float:
        """The usual risk within its own horizon."""
        return self.own.base_rate

    def columns(self, frame: KindFrame, rows: Rows | slice = ALL) -> Floats:
        """The frame's values in this model's order.

        Raises KeyError for a missing feature.
        """
        places = [frame.positions[name] for name in self.names]
        return np.asarray(frame.values[rows][:, places])

    def probability(self, x: Floats) -> Floats:
        """Calibrated probability within its own horizon of each row of ``x`` [n, names]."""
        return self.own.probability(x)

    def outlook(self, x: Floats, asked: Sequence[float] = ()) -> dict[float, Floats]:
        """The same within every horizon, or its own and those ``asked`` for; never less within a
        longer one.

        A horizon for which there was too little to learn from is reckoned from its own.
        """
        told = {self.own_seconds: self.probability(x)}
        for seconds in asked or horizons_with(self.own_seconds):
            if seconds == self.own_seconds:
                continue
            if seconds in self.horizons:
                told[seconds] = self.horizons[seconds].probability(x)
            else:
                told[seconds] = scaled(told[self.own_seconds], self.own_seconds, seconds)
        return ordered(told, self.own_seconds)

    def signals(self, x: Floats, most: int = 4) -> list[tuple[Signal, ...]]:
        """What moved the risk of each row of ``x`` [n, names] most.

        Exact for this model: each family of features is set to its usual values and the
        row is scored again; the weight is the change of the log-odds.
        """
        families: dict[str, list[int]] = {}
        for index, name in enumerate(self.names):
            families.setdefault(name.rsplit(".", 1)[0], []).append(index)
        asked = self.own.packed.asks_of
        families = {stem: columns for stem, columns in families.items() if asked(columns)}
        at_once = max(1, ROWS_EXPLAINED // (len(families) + 1))
        found = []
        for first in range(0, len(x), at_once):
            # A median may lie between two values as they are read: float64.
            some = np.asarray(x[first : first + at_once], np.float64)
            varied = np.repeat(some[:, None, :], len(families) + 1, axis=1)
            for number, columns in enumerate(families.values(), start=1):
                varied[:, number, columns] = self.typical[columns]
            odds = _logit(self.probability(varied.reshape(-1, len(self.names))))
            odds = odds.reshape(len(some), -1)
            for row, weights in zip(some, odds[:, :1] - odds[:, 1:], strict=True):
                found.append(self._strongest(row, families, weights, most))
        return found

    def _strongest(
        self, x: Floats, families: Mapping[str, list[int]], weights: Floats, most: int
    ) -> tuple[Signal, ...]:
        """The families that moved one row ``x`` [names] most, by their ``weights``, in words."""
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
            read = words(value, meant.unit) if value == value else "not read"
            text = f"{meant.meaning}: {read}"
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
    """A RiskModel of trained KindModels. ``facts`` go into the manifest."""

    horizon_seconds: float
    kinds: dict[str, KindModel]
    name: str = "learned-1"
    facts: dict[str, object] = field(default_factory=dict)
    _turn: int = field(default=0, repr=False, compare=False)
    _said: dict[str, list[Risk]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def needs(self) -> dict[str, tuple[str, ...]]:
        """The features that it looks at, by kind: frames need hold no others."""
        return {kind: model.names for kind, model in self.kinds.items()}

    def parts(self, frame: FeatureFrame) -> dict[str, Floats]:
        """Calibrated probability within its own horizon of every entity, by kind."""
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
        return names, _combined(frame, self.parts(frame), place)

    def outlook(
        self, frame: FeatureFrame, asked: Sequence[float] = ()
    ) -> tuple[list[str], dict[float, Floats]]:
        """The same within every horizon, in seconds, or within those ``asked`` for."""
        names = node_names(frame)
        place = {name: i for i, name in enumerate(names)}
        told = self._outlooks(frame, asked)
        return names, {
            seconds: _combined(frame, {kind: one[seconds] for kind, one in told.items()}, place)
            for seconds in asked or horizons_with(self.horizon_seconds)
        }

    def score(self, frame: FeatureFrame, now_ns: int) -> list[Risk]:
        """A Risk for each part whose risk stands out, and one for every node.

        A large fleet is scored in turns, of about ROWS_AT_ONCE parts each: what is said of a node
        is as old as its last turn, and nothing is said of it before its first.
        """
        rows = sum(len(part.entities) for kind, part in frame.kinds.items() if kind in self.kinds)
        turns = -(-rows // ROWS_AT_ONCE)
        if turns <= 1:
            return self._score(frame)
        names = node_names(frame)
        mine = {name for name in names if zlib.crc32(name.encode()) % turns == self._turn % turns}
        self._turn += 1
        fresh: dict[str, list[Risk]] = {name: [] for name in mine}
        for risk in self._score(frame.of_nodes(mine)):
            fresh[risk.entity.node].append(risk)
        self._said = {name: self._said[name] for name in names if name in self._said} | fresh
        return [risk for some in self._said.values() for risk in some]

    def _score(self, frame: FeatureFrame) -> list[Risk]:
        names = node_names(frame)
        place = {name: i for i, name in enumerate(names)}
        told_of = self._outlooks(frame)
        horizons = horizons_with(self.horizon_seconds)
        own = {
            seconds: _combined(frame, {kind: one[seconds] for kind, one in told_of.items()}, place)
            for seconds in horizons
        }
        risks: list[Risk] = []
        reasons: dict[str, tuple[Signal, ...]] = {}
        for kind, outlook in told_of.items():
            part, model = frame.of(kind), self.kinds[kind]
            assert part is not None
            probability = outlook[self.horizon_seconds]
            told = np.flatnonzero(probability > max(LEAST_TOLD * model.base_rate, LEAST_SIGNALLED))
            if not len(told):
                continue
            signals = model.signals(model.columns(part, told))
            entities = [part.entities[row] for row in told.tolist()]
            if kind == "node":
                reasons = {one.node: why for one, why in zip(entities, signals, strict=True)}
                continue
            nodes = np.array([place[entity.node] for entity in entities], np.int64)
            told_outlook = {seconds: values[told] for seconds, values in outlook.items()}
            own = {
                seconds: rest(own[seconds], values, nodes)
                for seconds, values in told_outlook.items()
            }
            risks += self._risks(entities, told_outlook, signals)
        whole = [Entity("node", name) for name in names]
        return risks + self._risks(whole, own, [reasons.get(name, ()) for name in names])

    def _outlooks(
        self, frame: FeatureFrame, asked: Sequence[float] = ()
    ) -> dict[str, dict[float, Floats]]:
        """By kind and horizon, the probability of every entity."""
        found = {}
        for kind, model in self.kinds.items():
            part = frame.of(kind)
            if part is not None:
                found[kind] = model.outlook(model.columns(part), asked)
        return found

    def _risks(
        self,
        entities: Sequence[Entity],
        told: Mapping[float, Floats],
        signals: Sequence[tuple[Signal, ...]],
    ) -> list[Risk]:
        """One Risk an entity."""
        horizons = list(told)
        own = horizons.index(self.horizon_seconds)
        rows = np.stack(list(told.values()), axis=1).tolist()
        made = []
        for entity, row, why in zip(entities, rows, signals, strict=True):
            voice = "history" if why and "failure" in why[0].feature else "risk"
            outlook: Outlook = tuple(zip(horizons, row, strict=True))
            made.append(
                Risk(entity, row[own], self.horizon_seconds, self.name, voice, why, outlook)
            )
        return made


def _combined(frame: FeatureFrame, parts: Mapping[str, Floats], place: Mapping[str, int]) -> Floats:
    """Risk of each node in ``place`` by the risks of its ``parts``, by kind."""
    total: Floats = np.zeros(len(place))
    for kind, probability in parts.items():
        part = frame.of(kind)
        assert part is not None
        rows = np.array([place[name] for name in part.nodes], np.int64)[part.node_rows]
        total = combined(total, probability, rows)
    return total


def node_names(frame: FeatureFrame) -> list[str]:
    """All nodes of a frame, each once."""
    names: dict[str, None] = {}
    for part in frame.kinds.values():
        names.update(dict.fromkeys(entity.node for entity in part.entities))
    return list(names)


def raw_score(trees: PackedTrees, x: Floats) -> Floats:
    """What all trees say together of each row: 1 - product of (1 - p), not yet calibrated."""
    safe = np.ones(len(x))
    for log_odds in trees.log_odds(x):
        safe *= 1.0 - expit(log_odds)
    return np.asarray(1.0 - safe)


def _logit(p: Floats) -> Floats:
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(p) - np.log1p(-p))
