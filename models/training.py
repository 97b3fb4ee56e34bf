"""``tocsin train``: from a telemetry directory to a saved model, with what it was made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.artifact import save
from models.dataset import STEP_NS, Examples, Progress, mined
from models.drift import histograms
from models.learned import LearnedRisk, train
from models.parts import Over, build_parts, in_process, joined
from models.telemetry import Telemetry
from models.telemetry.truth import iso

SECOND_NS = 1_000_000_000


def train_model(
    directories: Sequence[Path],
    out: Path | None,
    *,
    horizon_seconds: float = 86400.0,
    negatives_share: float = 0.02,
    seed: int = 0,
    step_ns: int = STEP_NS,
    progress: Progress | None = None,
    calibrate_on: Sequence[Path] = (),
    over: Over = in_process,
) -> tuple[LearnedRisk, dict[str, Any]]:
    """Trains on one or more directories and saves to ``out`` (None: only returns it).

    Labels come from the events alone; a truth.csv is never looked at. ``calibrate_on`` are
    other directories with failures at their true rate: then ``directories`` may hold more
    failures than happen (a simulation of many), and all of their time is learned from.
    Returns the model and the facts that stand in its manifest. Raises TooFewFailures.
    """
    horizon_ns = int(horizon_seconds * SECOND_NS)
    parts: list[dict[str, Examples]] = []
    trained: list[dict[str, Any]] = []
    for directory in [*directories, *calibrate_on]:
        telemetry = Telemetry(directory)
        labels = mined(telemetry)
        first_ns, last_ns = telemetry.span_ns()
        parts.append(
            build_parts(
                telemetry,
                over,
                horizon_ns=horizon_ns,
                labels=labels,
                negatives_share=negatives_share,
                seed=seed,
                step_ns=step_ns,
                progress=progress,
            )
        )
        trained.append(
            {
                "telemetry": directory.name,
                "begin": iso(first_ns),
                "end": iso(last_ns),
                "failures": len(labels.failures),
                "simulated": (directory / "scenario.json").exists(),
            }
        )
    examples = joined(parts[: len(directories)])
    later = joined(parts[len(directories) :]) if calibrate_on else None
    model, left_out = train(examples, horizon_seconds, seed, later)
    model.facts = {
        "trained_on": trained[: len(directories)],
        "calibrated_on": trained[len(directories) :],
        "simulated": all(one["simulated"] for one in trained),
        "seed": seed,
        "negatives_share": negatives_share,
        "left_out": left_out,
        "examples": {
            kind: {
                "all": len(some.y),
                "before_failures": int(some.y.sum()),
                "failures": some.failures(),
            }
            for kind, some in examples.items()
        },
        "histograms": histograms(examples, {kind: one.names for kind, one in model.kinds.items()}),
    }
    if out is not None:
        save(model, out)
    return model, model.facts
