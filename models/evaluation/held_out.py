"""The judged run of docs/evaluation.md: ``python -m models.evaluation.held_out OUT``.

Trains by the recipe, trains the rivals that learn on the same fleet, and judges all of them
on a fleet of a seed that neither has seen. OUT gets the result as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from models.dataset import build
from models.evaluation.evaluate import evaluate
from models.evaluation.rivals import Forest, Logistic, Scorer
from models.recipe import CALIBRATE, HOUR_NS, LEARN, Fleet
from models.telemetry import Telemetry
from models.training import train_model

JUDGED = Fleet(seed=301, nodes=400, days=40, rate=1.0)
STEP_NS = 3 * HOUR_NS


def held_out(
    learn: Fleet = LEARN, calibrate: Fleet = CALIBRATE, judged: Fleet = JUDGED
) -> dict[str, Any]:
    """The figures of every scorer on ``judged``, as JSON data."""
    with tempfile.TemporaryDirectory(prefix="tocsin-held-out-") as folder:
        learned = learn.write(Path(folder) / "learn")
        calibrated = calibrate.write(Path(folder) / "calibrate")
        model, _ = train_model([learned], None, step_ns=HOUR_NS, calibrate_on=[calibrated])
        examples = build(Telemetry(learned), horizon_ns=24 * HOUR_NS, step_ns=HOUR_NS)
        others: list[Scorer] = [Logistic(examples), Forest(examples)]
        telemetry = Telemetry(judged.write(Path(folder) / "judged"))
        return evaluate(telemetry, model=model, others=others, step_ns=STEP_NS).result


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m models.evaluation.held_out OUT")
    Path(sys.argv[1]).write_text(json.dumps(held_out(), indent=1) + "\n")
