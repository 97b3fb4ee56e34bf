"""Evaluation: how many failures are told early, at how many false drains, against rivals."""

from models.evaluation.evaluate import Evaluation, evaluate
from models.evaluation.rivals import RIVALS, Scorer

__all__ = ["RIVALS", "Evaluation", "Scorer", "evaluate"]
