"""The recipe of a model from the simulator: ``python -m models.recipe OUT``.

Failures are rare: a simulation at true rates long enough to learn from takes hours. So the
trees learn on a fleet where all that goes wrong, failures and look-alikes, happens ten times as
often, and are calibrated on another fleet at true rates, which sets the probabilities and the
thresholds. Neither is a fleet that anything is judged on (docs/evaluation.md names the seeds).
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.learned import LearnedRisk
from models.simulate import load
from models.simulate.write import write_simulation
from models.training import train_model

HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class Fleet:
    """One simulated fleet. Failures happen ``rate`` times as often as usual, and all that goes
    wrong, look-alikes as well, ``crowd`` times on top; classes in ``without`` never happen."""

    seed: int
    nodes: int
    days: float
    rate: float = 1.0
    crowd: float = 1.0
    cadence_seconds: float = 600.0
    hardware: str = "h100-8"
    without: tuple[str, ...] = ()

    def write(self, directory: Path) -> Path:
        """Simulates it into ``directory`` and returns that. What is whole there is kept."""
        if (directory / "scenario.json").exists():  # written last
            return directory
        scenario = load().crowded(self.crowd).scaled(self.rate, self.without)
        write_simulation(
            directory,
            nodes=self.nodes,
            days=self.days,
            seed=self.seed,
            cadence_seconds=self.cadence_seconds,
            scenario=scenario.with_hardware(self.hardware),
        )
        return directory


LEARN = Fleet(seed=211, nodes=300, days=40, crowd=10.0, cadence_seconds=1800.0)
CALIBRATE = Fleet(seed=203, nodes=400, days=40, cadence_seconds=1800.0)
STEP_NS = 2 * HOUR_NS
NEGATIVES_SHARE = 0.1  # a budget of false alarms is kept among rare quiet times: keep many


def make_model(
    out: Path | None,
    learn: Fleet = LEARN,
    calibrate: Fleet = CALIBRATE,
    folder: Path | None = None,
) -> tuple[LearnedRisk, dict[str, Any]]:
    """Simulates both fleets in ``folder`` (None: a temporary one), trains and saves to ``out``.

    Raises TooFewFailures when a fleet is too small.
    """
    with tempfile.TemporaryDirectory(prefix="tocsin-model-") as temporary:
        place = folder or Path(temporary)
        learned = learn.write(place / "learn")
        calibrated = calibrate.write(place / "calibrate")
        return train_model(
            [learned],
            out,
            step_ns=STEP_NS,
            negatives_share=NEGATIVES_SHARE,
            calibrate_on=[calibrated],
        )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m models.recipe OUT")
    make_model(Path(sys.argv[1]))
