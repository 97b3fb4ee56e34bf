"""The rival: "28-day history + sibling z-score". No learning on site, no training data.

It is what a careful site would write in an afternoon, with probabilities from published
failure data. Every learned model has to beat it at the same budget of false drains.

History. The chance that a node fails within a day, by its decayed count of failure
episodes (weight exp(-age / 28 d)). Measured on LANL LA-UR-05-7318, systems 18, 19 and 20,
first half of each, day by day from day 28 on: 1.44 million node-days, 2.3 failures per
1000 node-days without history and 107 with six episodes. The overall rate, 3.2 per 1000,
lies between the 2.34 and 6.50 of two GPU clusters (Kokolis et al. 2024, "Revisiting
Reliability in Large-Scale Machine Learning Research Clusters").

Siblings. A GPU's day-long temperature above its siblings at like power, as a z-score in
units of the fleet's spread (1.4826 * MAD, within bounds). How much a hot card's odds rise is not
published; the factors are ASSUMED, kept low, and capped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from models.features import FeatureFrame, KindFrame
from models.features.arrays import Floats
from models.horizons import horizons_with, scaled
from models.risk import DAY_SECONDS, LEAST_TOLD, combined, rest, signal
from models.voices import Entity, Outlook, Risk, Signal

# (decayed episodes, failures within a day per 1000 node-days): LANL, see above.
HISTORY_TABLE = (
    (0.0, 2.34),
    (0.05, 3.6),
    (0.36, 4.2),
    (0.62, 5.9),
    (0.87, 9.9),
    (1.21, 15.0),
    (1.72, 24.5),
    (2.42, 38.5),
    (3.78, 80.9),
    (6.16, 106.7),
)
BASE_NODE = HISTORY_TABLE[0][1] / 1000.0

# Llama 3 (2024), table 5: 148 + 72 + 19 + 17 + 6 GPU interruptions in 884 736 GPU-days.
BASE_GPU = 262 / 884_736

# (z-score, factor on the GPU's base risk): assumed, see above.
SIBLING_TABLE = ((0.0, 1.0), (3.0, 1.0), (5.0, 5.0), (8.0, 20.0), (12.0, 60.0), (20.0, 100.0))
LEAST_EXCESS_CELSIUS = 4.0  # below it a z-score is sensor rounding, whatever the fleet
LEAST_SPREAD_CELSIUS = 0.75  # a fleet of few GPUs can look more alike than sensors allow
MOST_SPREAD_CELSIUS = 3.0  # assumed: healthy cards at like power differ by 1 to 3 celsius

HOTTER = "temperature_over_siblings.mean_1d"
HOTTER_NOW = "temperature_over_siblings.mean_1h"
EPISODES = "failure.episodes_28d"
LOSSES = "gpu_max.presence.losses_28d"
SINCE = "failure.days_since"


@dataclass(frozen=True, slots=True)
class _Gpus:
    frame: KindFrame
    probability: Floats
    z: Floats
    excess: Floats
    nodes: np.ndarray[tuple[int], np.dtype[np.int64]]  # row of the node among all nodes


class Rival:
    """The rival as a RiskModel. Keeps no state: all it needs is in the features."""

    name = "rival-1"
    kinds = ("gpu", "node")
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "gpu": (HOTTER, HOTTER_NOW),
        "node": (EPISODES, LOSSES, SINCE),
    }

    def __init__(self, horizon_seconds: float = DAY_SECONDS) -> None:
        self.horizon_seconds = horizon_seconds

    def nodes(self, frame: FeatureFrame) -> tuple[list[str], Floats]:
        """Names of all nodes heard of and the risk of each, all its parts together."""
        names, history, _, _ = self._nodes(frame)
        gpus = self._gpus(frame, names)
        return names, self._total(history, gpus)

    def outlook(self, probability: Floats) -> list[Outlook]:
        """What each probability means within every horizon that people are shown."""
        horizons = horizons_with(self.horizon_seconds)
        told = [scaled(probability, self.horizon_seconds, seconds) for seconds in horizons]
        rows = np.stack(told, axis=1).tolist()
        return [tuple(zip(horizons, row, strict=True)) for row in rows]

    def score(self, frame: FeatureFrame, now_ns: int) -> list[Risk]:
        """A Risk for each GPU that is hot for its place, and one for every node heard of."""
        names, history, episodes, since = self._nodes(frame)
        gpus = self._gpus(frame, names)
        own = self._total(history, gpus)
        risks: list[Risk] = []
        if gpus is not None:
            told = np.flatnonzero(gpus.probability > LEAST_TOLD * self._scaled(BASE_GPU))
            own = rest(own, gpus.probability[told], gpus.nodes[told])
            outlooks = self.outlook(gpus.probability[told])
            risks += [
                self._gpu_risk(gpus, row, outlook)
                for row, outlook in zip(told.tolist(), outlooks, strict=True)
            ]
        base, horizon_seconds, name = self._scaled(BASE_NODE), self.horizon_seconds, self.name
        columns = (one.tolist() for one in (own, history, episodes, since))
        for node, p, chance, count, days, outlook in zip(
            names, *columns, self.outlook(own), strict=True
        ):
            signals = _history_signals(count, days, chance / base)
            entity = Entity("node", node)
            risks.append(Risk(entity, p, horizon_seconds, name, "history", signals, outlook))
        return risks

    def _total(self, history: Floats, gpus: _Gpus | None) -> Floats:
        """History holds the usual risk of the GPUs already; only what is above it adds."""
        if gpus is None:
            return history
        extra = np.maximum(gpus.probability - self._scaled(BASE_GPU), 0.0)
        return combined(history, extra, gpus.nodes)

    def _scaled(self, p_day: float) -> float:
        """A probability within a day, for this model's horizon (constant hazard)."""
        return float(-math.expm1(math.log1p(-p_day) * self.horizon_seconds / DAY_SECONDS))

    def _nodes(self, frame: FeatureFrame) -> tuple[list[str], Floats, Floats, Floats]:
        """All node names; per node the risk from history, episodes and days since."""
        names: dict[str, None] = {}
        for kind in ("node", "gpu"):
            part = frame.of(kind)
            if part is not None:
                names.update(dict.fromkeys(part.nodes))
        listed = list(names)
        episodes = np.zeros(len(listed))
        since = np.full(len(listed), np.nan)
        nodes = frame.of("node")
        if nodes is not None:
            place = {name: i for i, name in enumerate(listed)}
            rows = np.array([place[entity.node] for entity in nodes.entities], np.int64)
            # A GPU that froze and vanished failed, also where nobody reads the kernel log.
            told, seen = (np.nan_to_num(nodes.column(name)) for name in (EPISODES, LOSSES))
            episodes[rows] = np.maximum(told, seen)
            since[rows] = nodes.column(SINCE)
        x, y = zip(*HISTORY_TABLE, strict=True)
        p_day = np.interp(episodes, x, y) / 1000.0
        scale = self.horizon_seconds / DAY_SECONDS
        return listed, -np.expm1(np.log1p(-p_day) * scale), episodes, since

    def _gpus(self, frame: FeatureFrame, names: list[str]) -> _Gpus | None:
        part = frame.of("gpu")
        if part is None:
            return None
        excess = np.asarray(part.column(HOTTER), np.float64)
        z = sibling_z(excess)
        x, y = zip(*SIBLING_TABLE, strict=True)
        factor = np.where(excess >= LEAST_EXCESS_CELSIUS, np.interp(z, x, y), 1.0)
        factor = np.where(np.isnan(z), 1.0, factor)
        p_day = np.minimum(BASE_GPU * factor, 0.5)
        scale = self.horizon_seconds / DAY_SECONDS
        place = {name: i for i, name in enumerate(names)}
        node_row = np.array([place[name] for name in part.nodes], np.int64)
        probability = -np.expm1(np.log1p(-p_day) * scale)
        return _Gpus(part, probability, z, excess, node_row[part.node_rows])

    def _gpu_risk(self, gpus: _Gpus, row: int, outlook: Outlook) -> Risk:
        return Risk(
            gpus.frame.entities[row],
            float(gpus.probability[row]),
            self.horizon_seconds,
            self.name,
            "risk",
            self._hot_signals(gpus, row),
            outlook,
        )

    def _hot_signals(self, gpus: _Gpus, row: int) -> tuple[Signal, ...]:
        factor = float(gpus.probability[row]) / self._scaled(BASE_GPU)
        device = gpus.frame.entities[row].device
        hour = float(gpus.frame.column(HOTTER_NOW)[row])
        text = (
            f"{device} runs {gpus.excess[row]:.1f} celsius above its siblings at like power "
            f"over a day ({hour:.1f} over the last hour); z {gpus.z[row]:.1f} in the fleet"
        )
        return (signal(HOTTER, gpus.excess[row], factor, text),)


def sibling_z(excess: Floats) -> Floats:
    """Excess over siblings in units of the fleet's own spread, NaN where it is missing.

    The spread is 1.4826 * MAD, held between what sensors can resolve and what a healthy
    fleet shows: a handful of GPUs, or a sick fleet, is no measure of what is usual.
    """
    known = excess[np.isfinite(excess)]  # what one node says must not spoil the fleet's spread
    if not len(known):
        return np.full(len(excess), np.nan)
    spread = 1.4826 * float(np.median(np.abs(known - np.median(known))))
    return np.asarray(excess / min(max(spread, LEAST_SPREAD_CELSIUS), MOST_SPREAD_CELSIUS))


def _history_signals(episodes: float, days_since: float, factor: float) -> tuple[Signal, ...]:
    if episodes < 0.05:
        return ()
    count = max(1, round(float(episodes)))
    times = "once" if count == 1 else f"about {count} times"
    text = f"it failed {times} in about 28 days"
    if days_since == days_since:  # not NaN
        text += f", last {_ago(float(days_since))} ago"
    return (signal(EPISODES, episodes, factor, text),)


def _ago(days: float) -> str:
    if days < 1 / 24:
        return f"{days * 1440:.0f} min"
    return f"{days * 24:.0f} h" if days < 2 else f"{days:.0f} days"
