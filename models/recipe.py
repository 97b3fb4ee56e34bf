"""The recipe of a model from the simulator: ``python -m models.recipe OUT``.

Failures are rare: a simulation at true rates long enough to learn from takes hours. So the
trees learn on a fleet that fails ten times as often, where precursors look the same, and are
calibrated on another fleet at true rates, which sets the probabilities. Neither is a fleet
that anything is judged on (docs/evaluation.md names the seeds).
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
    """One simulated fleet. Everything that goes wrong happens ``rate`` times as often as usual.

    ``without`` names classes of fault that never happen there.
    """

    seed: int
    nodes: int
    days: float
    rate: float
    cadence_seconds: float = 600.0
    hardware: str = "h100-8"
    without: tuple[str, ...] = ()

    def write(self, directory: Path) -> Path:
        """Simulates it into ``directory`` and returns that."""
        write_simulation(
            directory,
            nodes=self.nodes,
            days=self.days,
            seed=self.seed,
            cadence_seconds=self.cadence_seconds,
            scenario=load().crowded(self.rate, self.without).with_hardware(self.hardware),
        )
        return directory


LEARN = Fleet(seed=211, nodes=300, days=40, rate=10.0)
CALIBRATE = Fleet(seed=203, nodes=400, days=40, rate=1.0, cadence_seconds=1800.0)


def make_model(
    out: Path | None, learn: Fleet = LEARN, calibrate: Fleet = CALIBRATE
) -> tuple[LearnedRisk, dict[str, Any]]:
    """Simulates both fleets in a temporary folder, trains and saves to ``out``.

    Raises TooFewFailures when a fleet is too small.
    """
    with tempfile.TemporaryDirectory(prefix="tocsin-model-") as folder:
        learned = learn.write(Path(folder) / "learn")
        calibrated = calibrate.write(Path(folder) / "calibrate")
        return train_model([learned], out, step_ns=HOUR_NS, calibrate_on=[calibrated])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m models.recipe OUT")
    make_model(Path(sys.argv[1]))
