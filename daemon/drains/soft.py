"""Steps softer than a drain, for a risk below the drain's threshold: which nodes, and what. Pure.

Section ``[policy.soft]``. A node that may fail is made less wanted instead of taken away: its
weight is raised (Slurm takes it last), a feature is added (a site's own rules look at it), or it
is reserved for nobody (as good as a drain for new jobs, with an end of its own).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from daemon.settings import Section
from daemon.slurm.soft import WEIGHT_MAX, Shown


class SoftOptions(Section):
    """Softer than a drain, for a risk from ``threshold`` on that does not drain: off by default.

    ``weight`` raises the node's Weight, so that Slurm takes it last; ``feature`` adds a feature
    that a site's job_submit plugin or users look at; ``reservation`` keeps new jobs away, as a
    drain does, and ends by itself. The old value is put back when the risk is over, or after
    ``hours``, and only where Slurm still shows ours. Written in mode ``act`` only; ``soft`` in
    ``[policy.rules]`` keeps it further back.
    """

    step: Literal["none", "weight", "feature", "reservation"] = "none"
    threshold: float = Field(default=0.5, ge=0.01, le=1.0)
    # A step ends when the risk is below this share of the threshold.
    ends_share: float = Field(default=0.8, gt=0, le=1)
    # Added to the node's weight.
    weight: int = Field(default=1000, ge=1, le=1_000_000)
    feature: str = Field(default="tocsin_risk", pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")
    # The longest that a step stands; a risk that lasts is then for a person.
    hours: float = Field(default=24.0, gt=0, le=720)
    # On so many nodes, and this share of the cluster, at once.
    nodes_max: int = Field(default=16, ge=0, le=10_000)
    share_max: float = Field(default=0.05, ge=0, le=1)


@dataclass(frozen=True, slots=True)
class Wish:
    """A node that should be made less wanted: how likely it fails, in words and as a number."""

    node: str
    probability: float
    text: str


def ours_of(step: str, before: Shown, options: SoftOptions) -> Shown:
    """What Slurm is to show once ``step`` is written over ``before``."""
    if step == "weight":
        raised = max(before.weight, min(before.weight + options.weight, WEIGHT_MAX))
        return Shown(raised, before.available, before.active)
    if step == "feature":
        word = options.feature
        return Shown(before.weight, _with(before.available, word), _with(before.active, word))
    return before


def back_of(step: str, before: Shown, ours: Shown, shown: Shown) -> Shown | None:
    """What to write so that our step is gone and nothing else: None where nothing of it stands.

    A weight is put back only where it still is ours. Of features only our own word is taken out:
    what others added or took meanwhile stays as it is.

    >>> back_of("weight", Shown(1), Shown(1001), Shown(7)) is None
    True
    """
    if step == "weight":
        if shown.weight != ours.weight:
            return None
        return Shown(before.weight, shown.available, shown.active)
    if step == "feature":
        left = Shown(
            shown.weight,
            _without(shown.available, before.available, ours.available),
            _without(shown.active, before.active, ours.active),
        )
        return None if left == shown else left
    return None


def stands(step: str, ours: Shown, weight: int, features: Sequence[str], before: Shown) -> bool:
    """Whether a reading of the node still shows the step. A reservation is looked at apart."""
    if step == "weight":
        return weight == ours.weight
    if step == "feature":
        added = [word for word in ours.active if word not in before.active]
        return all(word in features for word in added)
    return True


def plain_shown(shown: Shown) -> dict[str, object]:
    """As JSON data."""
    return {"weight": shown.weight, "available": list(shown.available),
            "active": list(shown.active)}  # fmt: skip


def shown_from(plain: Mapping[str, object]) -> Shown:
    """What ``plain_shown`` gave."""
    available, active = plain.get("available"), plain.get("active")
    return Shown(
        int(str(plain.get("weight", 0))),
        tuple(map(str, available)) if isinstance(available, list) else (),
        tuple(map(str, active)) if isinstance(active, list) else (),
    )


def _with(words: tuple[str, ...], word: str) -> tuple[str, ...]:
    return words if word in words else (*words, word)


def _without(
    words: tuple[str, ...], before: tuple[str, ...], ours: tuple[str, ...]
) -> tuple[str, ...]:
    added = [word for word in ours if word not in before]
    return tuple(word for word in words if word not in added)
