"""Proof before return: what is run on a drained node, and how its figures are judged. Pure.

Section ``[policy.proof]``. Off by default: ``when = "never"``. A proof is one job that runs each
command in turn and reports ``name=value`` figures; see ``daemon/slurm/probe.py`` for the script.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field, field_validator

from daemon.settings import Section

# Below so many peers a figure is not held against them.
PEERS_MIN = 3
_FIGURE = re.compile(r"([a-z][a-z0-9_]{0,62})=(-?\d+(?:\.\d+)?(?:e[+-]?\d{1,3})?)")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


class Probe(Section):
    """One command of a proof: argv, without a shell. ``features`` limits it to such nodes.

    ``builtin:gemm`` and ``builtin:loopback`` are tocsin's own, in plain Python. Exit code 0 is
    needed; each line ``name=value`` of its output is a figure, in the unit its name ends in.
    """

    command: tuple[str, ...] = Field(min_length=1, max_length=64)
    deadline_seconds: float = Field(default=300.0, gt=0, le=86_400)
    features: tuple[str, ...] = ()
    minimum: dict[str, float] = Field(default_factory=dict)

    @field_validator("minimum")
    @classmethod
    def _names(cls, value: dict[str, float]) -> dict[str, float]:
        bad = [name for name in value if not _NAME.fullmatch(name)]
        if bad:
            raise ValueError(f"no name of a figure: {bad[0]!r}; use a-z, 0-9 and _")
        return value


class ProofOptions(Section):
    """When a drained node is tested, by what, and what follows.

    ``when``: ``never``; ``asked`` (a person says so); ``reboot`` (also once it has been rebooted
    since its drain); ``drained`` (also at once when it is empty). ``returns``: ``person`` (the
    node is drained again with the result in its reason) or ``passed`` (it goes back into service
    after ``passes`` passed jobs and a clean window).
    """

    when: Literal["never", "asked", "reboot", "drained"] = "never"
    returns: Literal["person", "passed"] = "person"
    probes: dict[str, Probe] = Field(
        default_factory=lambda: {
            "gemm": Probe(command=("builtin:gemm",)),
            "loopback": Probe(command=("builtin:loopback",)),
        }
    )
    passes: int = Field(default=2, ge=1, le=20)
    clean_seconds: float = Field(default=60.0, ge=0, le=86_400)
    nodes_at_once: int = Field(default=1, ge=1, le=100)
    # The job must have ended so long after its submission; else the proof has failed.
    job_seconds: float = Field(default=3600.0, gt=0, le=7 * 86_400)
    # A figure below this share of the median of other nodes' last figures fails.
    peers_share: float = Field(default=0.7, ge=0, le=1)
    # Empty: the node's first partition.
    partition: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,64}$")
    account: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,64}$")
    qos: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,64}$")
    python: str = Field(default="/usr/bin/env python3", pattern=r"^/[A-Za-z0-9_./ -]{1,100}$")

    def probes_for(self, features: Sequence[str]) -> dict[str, Probe]:
        """The probes of a node with these Slurm features."""
        return {
            name: probe
            for name, probe in self.probes.items()
            if not probe.features or set(probe.features) & set(features)
        }


@dataclass(frozen=True, slots=True)
class Result:
    """What a proof job said: ``ok``, its figures, and which probe failed, if one did."""

    ok: bool
    figures: Mapping[str, float] = field(default_factory=dict)
    failed: str = ""


def parse_result(comment: str) -> Result | None:
    """The result in a job's comment; None where there is none, which is no pass.

    >>> parse_result("tocsin=ok;gemm_flops=2.5e7").figures
    {'gemm_flops': 25000000.0}
    """
    head, _, rest = comment.strip().partition(";")
    match = re.fullmatch(r"tocsin=(ok|failed:([A-Za-z0-9_.:-]{1,200}))", head)
    if not match:
        return None
    figures = {}
    for part in rest.split(";"):
        told = _FIGURE.fullmatch(part)
        if told and math.isfinite(value := float(told[2])):
            figures[told[1]] = value
    return Result(match[1] == "ok", figures, match[2] or "")


def judge(
    result: Result,
    probes: Mapping[str, Probe],
    peers: Mapping[str, Sequence[float]],
    peers_share: float,
) -> str:
    """Why the result is no pass, or empty. ``peers``: each figure's last value on other nodes."""
    if not result.ok:
        return f"{result.failed} failed"
    for name, probe in probes.items():
        for figure, least in probe.minimum.items():
            value = result.figures.get(figure)
            if value is None:
                return f"{name} gave no {figure}"
            if value < least:
                return f"{figure} {value:.3g}, at least {least:.3g} is needed"
    for figure, value in result.figures.items():
        others = peers.get(figure, ())
        if len(others) >= PEERS_MIN:
            median = statistics.median(others)
            if value < median * peers_share:
                return f"{figure} {value:.3g}, its {len(others)} peers have {median:.3g}"
    return ""
