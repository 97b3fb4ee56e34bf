"""A GPU that is much hotter than its siblings at like power: told early, never drained for.

A hot room, job or day moves all GPUs of a node; what moves one is its own cooling (paste,
sink, flow). That it *is* hot is certain, so it is a fact; that it will fail is not, so the
fact asks for a person only.

Limits. Healthy cards at like power differ by 1 to 3 celsius and a card that always runs warm
by about 5 (ASSUMED in the simulator's default scenario); ggpu129 of the GWDG data set stood
21 above its siblings two days before it was lost. What a hot card's chance to fail is stands
in docs/evaluation.md, by the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from models.features import FeatureFrame
from models.voices import Entity, Fact, Remedy

HOT_CELSIUS = 12.0  # above siblings over about 10 minutes: told
CALM_CELSIUS = 9.0  # below it no longer told: well above what a harmless warm card shows
# A card whose job has just begun differs from its siblings for a minute or two.
HELD_SECONDS = 600.0
FRESH_SECONDS = 3600.0  # what was not read for so long is not known to be hot now
EXCESS = "temperature_over_siblings.mean_10m"
NOW = "temperature_over_siblings.now"
LEVEL = "temperature.mean_10m"
AGE = "presence.silent_seconds"
NEEDS = (EXCESS, NOW, LEVEL, AGE)


@dataclass
class Heat:
    """Which GPUs are hot, and since when. ``dump`` is JSON data."""

    hot_celsius: float = HOT_CELSIUS
    calm_celsius: float = CALM_CELSIUS
    since_ns: dict[Entity, int] = field(default_factory=dict)

    def facts(self, frame: FeatureFrame) -> list[Fact]:
        """One fact a hot GPU of ``frame``, by entity. Needs the frame's kind ``gpu``."""
        part = frame.of("gpu")
        if part is None:
            self.since_ns.clear()
            return []
        excess = np.asarray(part.column(EXCESS), np.float64)
        fresh = ~np.isnan(part.column(NOW)) & (part.column(AGE) <= FRESH_SECONDS)
        with np.errstate(invalid="ignore"):
            rows = np.flatnonzero(fresh & (excess >= self.calm_celsius)).tolist()
        held: dict[Entity, int] = {}
        found: list[Fact] = []
        for row in rows:
            entity = part.entities[row]
            value = float(excess[row])
            # Not later than now: the head's clock may have been set back.
            since_ns = min(self.since_ns.get(entity, frame.time_ns), frame.time_ns)
            told = frame.time_ns - since_ns >= HELD_SECONDS * 1e9
            if not told and value < self.hot_celsius:
                continue
            held[entity] = since_ns
            if not told:
                continue
            level = float(part.column(LEVEL)[row])
            found.append(
                Fact(
                    entity,
                    rule="heat",
                    code="hot",
                    severity=1,
                    remedy=Remedy.ALERT,
                    onset_ns=since_ns,
                    text=f"{entity.device} is hotter than its siblings at like power",
                    advice="look at its cooling before it slows down or is lost",
                    evidence=(
                        f"{value:.0f} celsius above its siblings over about 10 minutes, "
                        f"at {level:.0f} celsius",
                    ),
                )
            )
        self.since_ns = held
        return sorted(found, key=lambda fact: fact.entity)

    def clear(self, node: str) -> None:
        """The node came back: what is hot from now on is told anew."""
        self.since_ns = {one: at for one, at in self.since_ns.items() if one.node != node}

    def dump(self) -> list[list[Any]]:
        """[node, device, since_ns] of each hot GPU."""
        return [[one.node, one.device, at] for one, at in sorted(self.since_ns.items())]

    def load(self, state: list[list[Any]]) -> None:
        """Takes back what ``dump`` gave."""
        self.since_ns = {Entity("gpu", str(n), str(d)): int(at) for n, d, at in state}
