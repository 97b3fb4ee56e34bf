"""``tocsin train``: from a telemetry directory to a saved model, with what it was made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.artifact import save
from models.dataset import STEP_NS, Progress, mined
from models.drift import histograms
from models.fitting import train
from models.horizons import horizons_with, label
from models.learned import LearnedRisk
from models.looks import Looks
from models.parts import Over, build_parts, in_process, joined
from models.telemetry import Telemetry
from models.telemetry.truth import iso

SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class Material:
    """What is learned from: ``looks`` by kind, ``later`` ones to calibrate by (None: the last of
    ``looks``), and a line for the manifest on each directory."""

    looks: dict[str, Looks]
    later: dict[str, Looks] | None
    trained_on: list[dict[str, Any]]
    calibrated_on: list[dict[str, Any]]
    horizon_seconds: float
    negatives_share: float
    seed: int


def gather(
    directories: Sequence[Path],
    calibrate_on: Sequence[Path] = (),
    *,
    horizon_seconds: float = 86400.0,
    negatives_share: float = 0.02,
    seed: int = 0,
    step_ns: int = STEP_NS,
    progress: Progress | None = None,
    over: Over = in_process,
) -> Material:
    """Looks at all parts of all directories. Labels come from the events alone; a truth.csv is
    never looked at."""
    parts: list[dict[str, Looks]] = []
    told: list[dict[str, Any]] = []
    for directory in [*directories, *calibrate_on]:
        telemetry = Telemetry(directory)
        labels = mined(telemetry)
        first_ns, last_ns = telemetry.span_ns()
        parts.append(
            build_parts(
                telemetry,
                over,
                horizons_ns=[int(one * SECOND_NS) for one in horizons_with(horizon_seconds)],
                labels=labels,
                negatives_share=negatives_share,
                seed=seed,
                step_ns=step_ns,
                progress=progress,
            )
        )
        told.append(
            {
                "telemetry": directory.name,
                "begin": iso(first_ns),
                "end": iso(last_ns),
                "failures": len(labels.failures),
                "simulated": (directory / "scenario.json").exists(),
            }
        )
    count = len(directories)
    return Material(
        joined(parts[:count]),
        joined(parts[count:]) if calibrate_on else None,
        told[:count],
        told[count:],
        horizon_seconds,
        negatives_share,
        seed,
    )


def fitted(
    material: Material, frequent: Mapping[str, float] | None = None
) -> tuple[LearnedRisk, dict[str, Any]]:
    """The model, and the facts that stand in its manifest. Raises TooFewFailures."""
    looks = material.looks
    horizons = horizons_with(material.horizon_seconds)
    model, left_out = train(
        looks, material.horizon_seconds, material.seed, material.later, frequent
    )
    own_ns = int(material.horizon_seconds * SECOND_NS)
    model.facts = {
        "trained_on": material.trained_on,
        "calibrated_on": material.calibrated_on,
        "simulated": all(
            one["simulated"] for one in [*material.trained_on, *material.calibrated_on]
        ),
        "seed": material.seed,
        "negatives_share": material.negatives_share,
        "left_out": left_out,
        "looks": {kind: len(some.times_ns) for kind, some in looks.items()},
        "failures_within": {
            kind: {label(one): some.failures(int(one * SECOND_NS)) for one in horizons}
            for kind, some in looks.items()
        },
        "histograms": {
            kind: histograms(looks[kind].within(own_ns), one.names)
            for kind, one in model.kinds.items()
        },
    }
    return model, model.facts


def train_model(
    directories: Sequence[Path],
    out: Path | None,
    *,
    calibrate_on: Sequence[Path] = (),
    frequent: Mapping[str, float] | None = None,
    **asked: Any,
) -> tuple[LearnedRisk, dict[str, Any]]:
    """Trains on one or more directories and saves to ``out`` (None: only returns it).

    ``calibrate_on`` are other directories with failures at their true rate: then ``directories``
    may hold more failures than happen (a simulation of many), of the kinds in ``frequent`` so many
    times more than of the others, and all of their time is learned from. ``asked`` as
    :func:`gather` takes it. Raises TooFewFailures.
    """
    model, facts = fitted(gather(directories, calibrate_on, **asked), frequent)
    if out is not None:
        save(model, out)
    return model, facts
