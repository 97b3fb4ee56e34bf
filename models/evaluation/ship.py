"""The model that comes with tocsin: ``python -m models.evaluation.ship OUT [SHIPPED]``.

OUT is the folder of ``models.evaluation.held_out``. Its model goes to SHIPPED (models/shipped),
and into the manifest what was judged of it on the usual case: figures, threshold and gate.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import models
from models.artifact import ModelRefused, load, save
from models.evaluation.table import USUAL
from models.learned import LearnedRisk

SHIPPED = Path(models.__file__).parent / "shipped"
BUDGET = "2"  # false drains per 1000 node-days


def judged_facts(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says of a judged case, in the words of the night's training."""
    days, failures = result["test_node_days"], result["failures_in_test"]

    def figures(name: str) -> dict[str, Any]:
        at = result["scorers"][name]["budgets"][BUDGET]
        kept = ("threshold", "early", "false", "alarms", "false_per_1000_node_days")
        return {
            "name": name,
            **{key: at[key] for key in kept},
            "failures": failures,
            "node_days": days,
            "net_gpu_hours": at["net_gpu_hours"],
            "net_gpu_hours_95": at["net_gpu_hours_95"],
        }

    learned, gate = figures("learned"), result["gate"]
    return {
        "gate": {**gate, "why": f"judged on the simulator: {gate['why']}"},
        "threshold": learned["threshold"],
        "alarms_per_1000_node_days": round(1000 * learned["alarms"] / days, 3),
        "judged": {
            "case": USUAL,
            "telemetry": result["telemetry"],
            "budget_per_1000_node_days": float(BUDGET),
            "challenger": learned,
            "rival": figures("rival"),
        },
    }


def ship(out: Path, shipped: Path) -> LearnedRisk:
    """Writes the judged model of ``out`` to ``shipped``. Raises ModelRefused and OSError."""
    model = load(out / "trained" / "model")
    model.facts |= judged_facts(json.loads((out / f"{USUAL}.json").read_text()))
    save(model, shipped)
    return model


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python -m models.evaluation.ship OUT [SHIPPED]")
    try:
        ship(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else SHIPPED)
    except (ModelRefused, OSError) as error:
        sys.exit(f"tocsin: {error}")
