"""What a risk model is, and how the risks of parts become the risk of their node."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

import numpy as np

from models.features import FeatureFrame
from models.features.arrays import Floats, Rows
from models.voices import Entity, Risk, Signal

DAY_SECONDS = 86400.0
LEAST_TOLD = 2.0  # a risk is told of a part when it is this many times the usual one


class RiskModel(Protocol):
    """Scores features. ``horizon_seconds``: the probability is of a failure within it."""

    name: str
    horizon_seconds: float

    @property
    def kinds(self) -> Collection[str]:
        """The kinds of entity that it looks at; frames need hold no others."""
        ...

    def score(self, frame: FeatureFrame, now_ns: int) -> list[Risk]:
        """One Risk for each part whose risk stands out, and one for every node.

        The node's own Risk stands for all that is not told apart, so that the risk of a
        node is 1 - product of (1 - p) over all its Risks of one model.
        """
        ...


def combined(own: Floats, parts: Floats, nodes: Rows) -> Floats:
    """Risk of each node: 1 - (1 - own) * product of (1 - p) over its parts.

    ``own`` [nodes] is the risk of the node beside its parts; ``parts`` [parts] and
    ``nodes`` [parts] are each part's risk and the row of its node in ``own``.
    """
    log_safe = np.log1p(-np.clip(own, 0.0, 1.0 - 1e-12))
    np.add.at(log_safe, nodes, np.log1p(-np.clip(parts, 0.0, 1.0 - 1e-12)))
    return np.asarray(-np.expm1(log_safe))


def rest(total: Floats, told: Floats, nodes: Rows) -> Floats:
    """What is left of each node's ``total`` risk when the parts ``told`` are taken out.

    ``told`` [parts] are the risks that are told apart, ``nodes`` [parts] their node's row.
    ``combined(rest(total, told, nodes), told, nodes)`` is ``total`` again.
    """
    log_safe = np.log1p(-np.clip(total, 0.0, 1.0 - 1e-12))
    np.subtract.at(log_safe, nodes, np.log1p(-np.clip(told, 0.0, 1.0 - 1e-12)))
    return np.asarray(np.maximum(-np.expm1(log_safe), 0.0))


def strongest(risks: Iterable[Risk]) -> dict[Entity, Risk]:
    """The highest risk of each entity."""
    best: dict[Entity, Risk] = {}
    for one in risks:
        held = best.get(one.entity)
        if held is None or one.probability > held.probability:
            best[one.entity] = one
    return best


def words(value: float, unit: str) -> str:
    """A value with its unit for people: 3 significant digits, ratio as a percentage.

    A count that has faded to next to nothing is 0.

    >>> words(0.12345, "ratio"), words(61.04, "celsius"), words(2.0, "count")
    ('12 %', '61 celsius', '2')
    >>> words(8.97e-12, "count")
    '0'
    """
    if unit == "count" and abs(value) < 5e-4:
        value = 0.0
    if unit == "ratio":
        return f"{100 * value:.0f} %" if abs(value) <= 2 else f"{value:.3g}"
    number = f"{value:.3g}"
    return number if unit in ("count", "flag", "flags", "code") else f"{number} {unit}"


def signal(name: str, value: float, weight: float, text: str) -> Signal:
    """A Signal with plain floats (numpy scalars do not go into JSON)."""
    return Signal(name, float(value), float(weight), text)
