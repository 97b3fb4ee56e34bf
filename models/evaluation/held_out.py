"""The judged runs of docs/evaluation.md: ``python -m models.evaluation.held_out OUT [CASE ...]``.

Trains by the recipe, trains the rivals that learn on the same fleet, sets every scorer's
thresholds on the recipe's calibration fleet, and judges all of them on fleets of seeds that none
has seen: at usual rates, at other rates, cadence and hardware, and with a class of fault left out
of the training. OUT gets one JSON file a case, and the fleets; what is there is not made again.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from models.evaluation.evaluate import BUDGETS, evaluate
from models.evaluation.operating import Operating, tune
from models.evaluation.rivals import RIVALS, Forest, Learned, Logistic, Scorer
from models.learned import LearnedRisk
from models.recipe import CALIBRATE, HOUR_NS, LEARN, Fleet, material, model_of
from models.telemetry import Telemetry

HORIZON_NS = 86_400 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """One judged fleet. ``without``: classes that the training fleet never showed."""

    fleet: Fleet
    without: tuple[str, ...] = ()


LOOKS_NS = 3 * HOUR_NS  # all nodes are scored so often
# Seeds 401, 411 and 412 were looked at before the model took its present shape.
BASE = Fleet(seed=402, nodes=400, days=40, cadence_seconds=1800.0)
CASES: dict[str, Case] = {
    "usual": Case(BASE),
    "rates-up": Case(replace(BASE, seed=421, nodes=300, rate=1.5)),
    "rates-down": Case(replace(BASE, seed=422, nodes=300, rate=0.5)),
    "cadence-5min": Case(replace(BASE, seed=413, nodes=100, cadence_seconds=300.0)),
    # 413 turned out to have no failure with a precursor: it shows nothing.
    "cadence-5min-large": Case(replace(BASE, seed=431, nodes=300, cadence_seconds=300.0)),
    "cadence-1min": Case(replace(BASE, seed=432, nodes=100, days=20, cadence_seconds=60.0)),
    "a100-4": Case(replace(BASE, seed=414, nodes=250, hardware="a100-4")),
    "gb200-4": Case(replace(BASE, seed=415, nodes=250, hardware="gb200-4")),
    "without-hbm": Case(BASE, ("hbm",)),
    "without-ib_link": Case(BASE, ("ib_link",)),
    "without-dimm": Case(BASE, ("dimm",)),
}


@dataclass
class Trained:
    """A model, the rivals that learned on the same fleet, and everybody's thresholds."""

    model: LearnedRisk
    others: list[Scorer]
    tuned: dict[str, Operating]


def trained(
    folder: Path, without: tuple[str, ...], learn: Fleet = LEARN, calibrate: Fleet = CALIBRATE
) -> Trained:
    """Trains by the recipe in ``folder`` and sets thresholds on the calibration fleet.

    Classes in ``without`` are in neither fleet: nothing may be known of them.
    """
    if without:  # to learn anew takes long: a smaller fleet, of which the figures say so
        learn = replace(learn, without=without, nodes=200, days=30)
        calibrate = replace(calibrate, without=without, nodes=300, days=30)
    seen = material(folder, learn, calibrate)
    model = model_of(seen, folder / "model", learn, calibrate)
    examples = {kind: some.within(HORIZON_NS) for kind, some in seen.looks.items()}
    del seen
    others: list[Scorer] = [Logistic(examples), Forest(examples)]
    scorers: list[Scorer] = [*(one() for one in RIVALS), Learned(model), *others]
    tuned = tune(
        Telemetry(folder / "calibrate"),
        scorers,
        budgets=BUDGETS,
        horizon_ns=HORIZON_NS,
        step_ns=LOOKS_NS,
    )
    return Trained(model, others, tuned)


def judged(case: Case, directory: Path, by: Trained) -> dict[str, Any]:
    """The figures of every scorer on one case, as JSON data."""
    telemetry = Telemetry(case.fleet.write(directory))
    return evaluate(
        telemetry, model=by.model, others=by.others, tuned=by.tuned, step_ns=LOOKS_NS
    ).result


def held_out(out: Path, names: list[str]) -> None:
    """Judges the named cases, in order, into ``out``."""
    known: dict[tuple[str, ...], Trained] = {}
    for name in names:
        case = CASES[name]
        if case.without not in known:
            folder = out / "-".join(["trained", *(f"without-{one}" for one in case.without)])
            known[case.without] = trained(folder, case.without)
        result = judged(case, out / f"seed-{case.fleet.seed}", known[case.without])
        (out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    chosen = sys.argv[2:] or list(CASES)
    if len(sys.argv) < 2 or not set(chosen) <= set(CASES):
        sys.exit(f"usage: python -m models.evaluation.held_out OUT [CASE ...] of {list(CASES)}")
    held_out(Path(sys.argv[1]), chosen)
