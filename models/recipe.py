"""The recipe of a model from the simulator: ``python -m models.recipe OUT``.

Failures are rare: a simulation at true rates long enough to learn from takes hours. So the
trees learn on a fleet where all that goes wrong, failures and look-alikes, happens ten times as
often, and are calibrated on another fleet at true rates, which sets the probabilities and the
thresholds. Fans, supplies and disks fail so seldom that they get three times more of both; the
calibration knows that. No fleet of these is one that anything is judged on (docs/evaluation.md
names the seeds).
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from models.artifact import save
from models.learned import LearnedRisk
from models.simulate import load
from models.simulate.write import write_simulation
from models.training import Material, fitted, gather

HOUR_NS = 3_600_000_000_000


# Classes of fault of which a fleet shows too few to learn from, and the kinds of part they are of.
RARE = ("fan", "psu", "ssd")
RARE_KINDS = ("chassis", "disk")


@dataclass(frozen=True, slots=True)
class Fleet:
    """One simulated fleet. Failures happen ``rate`` times as often as usual, and all that goes
    wrong, look-alikes as well, ``crowd`` times on top; what is RARE ``rare`` times more than that.
    Classes in ``without`` never happen."""

    seed: int
    nodes: int
    days: float
    rate: float = 1.0
    crowd: float = 1.0
    cadence_seconds: float = 600.0
    hardware: str = "h100-8"
    without: tuple[str, ...] = ()
    rare: float = 1.0

    def write(self, directory: Path) -> Path:
        """Simulates it into ``directory`` and returns that. What is whole there is kept."""
        if (directory / "scenario.json").exists():  # written last
            return directory
        scenario = load().crowded(self.crowd).crowded(self.rare, RARE)
        scenario = scenario.scaled(self.rate, self.without)
        write_simulation(
            directory,
            nodes=self.nodes,
            days=self.days,
            seed=self.seed,
            cadence_seconds=self.cadence_seconds,
            scenario=scenario.with_hardware(self.hardware),
        )
        return directory


LEARN = Fleet(seed=211, nodes=300, days=40, crowd=10.0, cadence_seconds=1800.0, rare=3.0)
CALIBRATE = Fleet(seed=203, nodes=400, days=40, cadence_seconds=1800.0)
STEP_NS = 2 * HOUR_NS
NEGATIVES_SHARE = 0.1  # a budget of false alarms is kept among rare quiet times: keep many

NAME = "simulator-1"  # another recipe, another number: scoreboards are kept by name


def constants(learn: Fleet = LEARN, calibrate: Fleet = CALIBRATE) -> dict[str, Any]:
    """The recipe as it stands in a model's manifest: JSON data."""
    fleets = {"learn": asdict(learn), "calibrate": asdict(calibrate)}
    for one in fleets.values():
        one["without"] = list(one["without"])
    return {
        **fleets,
        "rare": list(RARE),
        "rare_kinds": list(RARE_KINDS),
        "step_ns": STEP_NS,
        "negatives_share": NEGATIVES_SHARE,
    }


def material(folder: Path, learn: Fleet = LEARN, calibrate: Fleet = CALIBRATE) -> Material:
    """Simulates both fleets in ``folder`` and looks at them."""
    return gather(
        [learn.write(folder / "learn")],
        [calibrate.write(folder / "calibrate")],
        step_ns=STEP_NS,
        negatives_share=NEGATIVES_SHARE,
    )


def model_of(
    some: Material, out: Path | None, learn: Fleet = LEARN, calibrate: Fleet = CALIBRATE
) -> LearnedRisk:
    """Fits and calibrates, and saves to ``out``. Raises TooFewFailures when a fleet is small."""
    model, _ = fitted(some, dict.fromkeys(RARE_KINDS, learn.rare))
    model.name = NAME
    why = "trained on the simulator, and judged by nobody yet"
    model.facts |= {"recipe": constants(learn, calibrate), "gate": {"learned": "off", "why": why}}
    if out is not None:
        save(model, out)
    return model


def make_model(out: Path | None, learn: Fleet = LEARN, calibrate: Fleet = CALIBRATE) -> LearnedRisk:
    """The whole recipe, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="tocsin-model-") as temporary:
        return model_of(material(Path(temporary), learn, calibrate), out, learn, calibrate)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m models.recipe OUT")
    make_model(Path(sys.argv[1]))
