"""Which learned model scores beside the rival, and why not another; a bad one is never used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.learning.options import RiskOptions
from daemon.learning.shelf import Shelf, gate_is_on, threshold_of

if TYPE_CHECKING:
    from models.learned import LearnedRisk

# The model that comes with tocsin, trained on the simulator (models/evaluation/ship.py).
SHIPPED = Path(__file__).parent.parent.parent / "models" / "shipped"


@dataclass(frozen=True)
class Choice:
    """``model`` is None where only the rival scores; ``refused`` then says why, if a model
    should have scored. ``acts``: its gate is on, so that policy may weigh its risks.
    ``threshold`` is the probability at which it keeps its budget of false drains."""

    source: str = "none"  # configured, promoted, shipped or none
    path: Path | None = None
    model: LearnedRisk | None = None
    acts: bool = False
    threshold: float | None = None
    refused: str = ""

    @property
    def name(self) -> str:
        """The model's name, or empty."""
        return self.model.name if self.model is not None else ""

    @property
    def words(self) -> str:
        """For ``tocsin check`` and ``tocsin status``."""
        if self.refused:
            return f"REFUSED, only the rival scores: {self.refused}"
        if self.model is None:
            return "none; the rival scores alone"
        if self.model.facts.get("simulated") is True:
            whence = f"{self.source}, trained on the simulator"
        else:
            whence = self.source
        how = "may drain, as policy.risk_mode says" if self.acts else "in shadow: its gate is off"
        return f"{self.name} ({whence}), {how}"


def choose(options: RiskOptions, shelf: Shelf, shipped: Path = SHIPPED) -> Choice:
    """The configured model, else the newest promoted, else the shipped one, else none."""
    if options.model is not None:
        return _opened("configured", options.model)
    name = shelf.promoted()
    if name:
        return _opened("promoted", shelf.directory / name)
    if options.shipped and (shipped / "manifest.json").is_file():
        return _opened("shipped", shipped)
    return Choice()


def _opened(source: str, path: Path) -> Choice:
    # Imported here: a head without a learned model needs none of SciPy in memory.
    from models.artifact import ModelRefused, load

    try:
        model = load(path)
    except ModelRefused as error:
        return Choice(source, path, refused=str(error))
    except Exception as error:
        # Whatever a damaged file does to the reader: the head goes on with the rival.
        return Choice(source, path, refused=f"{path} cannot be read: {type(error).__name__}")
    return Choice(source, path, model, gate_is_on(model.facts), threshold_of(model.facts))
