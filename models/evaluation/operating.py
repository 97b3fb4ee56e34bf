"""Where each scorer is told to alarm: thresholds, set on a history that is not judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from models.dataset import STEP_NS, WARM_UP_NS, Progress, mined
from models.evaluation.alarms import threshold_at, worth_threshold
from models.evaluation.events import Record, from_labels, from_truth, record
from models.evaluation.rivals import Scorer
from models.features.arrays import Floats
from models.telemetry import Telemetry, read_truth

WORTH_BUDGET = 2.0  # false drains per 1000 node-days that nobody should pass, whatever is won

# A budget is kept on nodes that set no threshold: nine times of ten, if these are like those.
SURE_SIGMAS = 1.28


@dataclass(frozen=True, slots=True)
class Costs:
    """What a failure and a false drain cost, in GPU-hours. ASSUMED; a site sets its own.

    A failure kills the job on the node: ``job_gpus`` lose ``lost_hours`` of work since the
    last checkpoint and for the restart. A false drain takes ``node_gpus`` out of service
    for ``drained_hours`` of tests.
    """

    job_gpus: float = 32.0
    lost_hours: float = 1.5
    node_gpus: float = 8.0
    drained_hours: float = 4.0

    def net(self, early: float, false: float) -> float:
        """GPU-hours won by early drains less those lost by false ones."""
        return early * self.job_gpus * self.lost_hours - false * self.node_gpus * self.drained_hours


@dataclass(frozen=True)
class Operating:
    """Thresholds of one scorer: ``at`` each budget of false drains, and ``worth``.

    ``worth`` is the one within WORTH_BUDGET that won most GPU-hours, infinity when none won any.
    """

    at: Mapping[float, float]
    worth: float

    def facts(self) -> dict[str, float | None]:
        """The same as JSON data: budget or ``worth`` -> threshold, None for "never"."""
        named = {f"{budget:g}": value for budget, value in self.at.items()} | {"worth": self.worth}
        return {name: value if np.isfinite(value) else None for name, value in named.items()}


def operating(
    whole: Record,
    scores: Floats,
    budgets: Sequence[float],
    first: int,
    last: int,
    horizon_ns: int,
    costs: Costs,
) -> Operating:
    """The thresholds of one scorer by its ``scores`` [times, nodes] in steps [first, last)."""
    at = {
        one: threshold_at(whole, scores, one, first, last, horizon_ns, SURE_SIGMAS)
        for one in budgets
    }
    worth = worth_threshold(
        whole, scores, WORTH_BUDGET, first, last, horizon_ns, costs.net, SURE_SIGMAS
    )
    return Operating(at, worth)


def tune(
    telemetry: Telemetry,
    scorers: Sequence[Scorer],
    *,
    budgets: Sequence[float],
    horizon_ns: int,
    costs: Costs | None = None,
    step_ns: int = STEP_NS,
    progress: Progress | None = None,
) -> dict[str, Operating]:
    """The thresholds of every scorer on all the time of a directory that is not judged."""
    labels = mined(telemetry)
    truth_path = telemetry.directory / "truth.csv"
    targets = from_truth(read_truth(truth_path)) if truth_path.exists() else from_labels(labels)
    whole = record(telemetry, scorers, targets, labels, step_ns, progress)
    first_ns, last_ns = telemetry.span_ns()
    first = int(np.searchsorted(whole.times_ns, first_ns + WARM_UP_NS))
    last = int(np.searchsorted(whole.times_ns, last_ns - horizon_ns))
    return {
        one.name: operating(
            whole, whole.scores[one.name], budgets, first, last, horizon_ns, costs or Costs()
        )
        for one in scorers
    }
