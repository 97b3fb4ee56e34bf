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

from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np

from models.features import FeatureFrame
from models.voices import Entity, Fact, Remedy

HOT_CELSIUS = 12.0  # above siblings over about 10 minutes: told
CALM_CELSIUS = 9.0  # below it not hot: well above what a harmless warm card shows
# A card whose job has just begun differs from its siblings for a minute or two.
HELD_SECONDS = 600.0
# Between jobs every card is cool. One that is hot in each job is one case, not one for each job:
# ggpu129's two hot cards made 83 alerts in 19 days before.
CALM_HELD_SECONDS = 12 * 3600.0
FRESH_SECONDS = 3600.0  # what was not read for so long is not known to be hot now
EXCESS = "temperature_over_siblings.mean_10m"
NOW = "temperature_over_siblings.now"
LEVEL = "temperature.mean_10m"
AGE = "presence.silent_seconds"
NEEDS = (EXCESS, NOW, LEVEL, AGE)


@dataclass(slots=True)
class Hot:
    """One hot GPU: since when, when it was seen so last and by how much; ``told`` once it was."""

    since_ns: int
    last_ns: int
    excess_celsius: float
    celsius: float
    told: bool = False


@dataclass
class Heat:
    """Which GPUs are hot, and since when. ``dump`` is JSON data."""

    hot_celsius: float = HOT_CELSIUS
    calm_celsius: float = CALM_CELSIUS
    hot: dict[Entity, Hot] = field(default_factory=dict)

    def facts(self, frame: FeatureFrame) -> list[Fact]:
        """One fact a hot GPU of ``frame``, by entity. Needs the frame's kind ``gpu``."""
        now_ns = frame.time_ns
        seen = self._seen(frame)
        held: dict[Entity, Hot] = {}
        for entity, one in self.hot.items():
            # Not later than now: the head's clock may have been set back.
            one.since_ns, one.last_ns = min(one.since_ns, now_ns), min(one.last_ns, now_ns)
            if entity in seen or (one.told and now_ns - one.last_ns < CALM_HELD_SECONDS * 1e9):
                held[entity] = one
        for entity, (excess, level) in seen.items():
            one = held.setdefault(entity, Hot(now_ns, now_ns, excess, level))
            one.last_ns, one.excess_celsius, one.celsius = now_ns, excess, level
            one.told = one.told or now_ns - one.since_ns >= HELD_SECONDS * 1e9
            if not one.told and excess < self.hot_celsius:
                del held[entity]
        self.hot = held
        return [_fact(entity, one) for entity, one in sorted(held.items()) if one.told]

    def _seen(self, frame: FeatureFrame) -> dict[Entity, tuple[float, float]]:
        """(above its siblings, level) in celsius of each GPU that is not calm now."""
        part = frame.of("gpu")
        if part is None:
            return {}
        excess = np.asarray(part.column(EXCESS), np.float64)
        fresh = ~np.isnan(part.column(NOW)) & (part.column(AGE) <= FRESH_SECONDS)
        with np.errstate(invalid="ignore"):
            rows = np.flatnonzero(fresh & (excess >= self.calm_celsius)).tolist()
        level = part.column(LEVEL) if rows else ()
        return {part.entities[row]: (float(excess[row]), float(level[row])) for row in rows}

    def clear(self, node: str) -> None:
        """The node came back: what is hot from now on is told anew."""
        self.hot = {entity: one for entity, one in self.hot.items() if entity.node != node}

    def dump(self) -> list[list[Any]]:
        """[node, device, since_ns, last_ns, excess, level, told] of each hot GPU."""
        return [
            [entity.node, entity.device, *astuple(one)] for entity, one in sorted(self.hot.items())
        ]

    def load(self, state: list[list[Any]]) -> None:
        """Takes back what ``dump`` gave; one of before knows the onset alone."""
        self.hot = {}
        for node, device, since_ns, *more in state:
            last_ns, excess, level, told = more or (since_ns, 0.0, 0.0, False)
            one = Hot(int(since_ns), int(last_ns), float(excess), float(level), bool(told))
            self.hot[Entity("gpu", str(node), str(device))] = one


def _fact(entity: Entity, one: Hot) -> Fact:
    return Fact(
        entity,
        rule="heat",
        code="hot",
        severity=1,
        remedy=Remedy.ALERT,
        onset_ns=one.since_ns,
        text="hotter than its siblings at like power",
        advice="look at its cooling before it slows down or is lost",
        evidence=(
            f"{one.excess_celsius:.0f} celsius above its siblings over about 10 minutes, "
            f"at {one.celsius:.0f} celsius",
        ),
    )
