"""Learning on a site's own history: train on earlier time, judge on later, say what came of it.

The time is cut in three: trees and calibration learn on the first, thresholds are set on the
second, and the third judges challenger, champion and rival. The model that is judged is the one
that is kept: it is not trained again on what judged it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from models.artifact import save
from models.dataset import STEP_NS, Progress, build_looks, mined
from models.drift import histograms
from models.evaluation.events import Record, from_labels, record
from models.evaluation.operating import Costs
from models.evaluation.rivals import Combined, Learned, Scorer
from models.features.arrays import Times
from models.fitting import LEAST_FAILURES, LEAST_LATER_FAILURES, TooFewFailures, train
from models.horizons import horizons_with
from models.labels import Labels
from models.learned import LearnedRisk
from models.promotion import Judged, Promotion, Rules, decide, judge
from models.telemetry import Telemetry
from models.telemetry.truth import iso

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS
TRAIN_SHARE = 0.6  # of the time; then
TUNE_SHARE = 0.15  # sets thresholds, and the rest judges
LEAST_DAYS = 7.0

CHALLENGER, CHAMPION, RIVAL = "challenger", "champion", "rival"


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """How a site learns. ``step_ns``: how often all parts are looked at."""

    horizon_seconds: float = 86_400.0
    step_ns: int = 2 * STEP_NS
    negatives_share: float = 0.02
    seed: int = 0
    failures_min: int = 0
    rules: Rules = field(default_factory=Rules)
    costs: Costs = field(default_factory=Costs)


@dataclass(frozen=True)
class Learnt:
    """``state`` is ``waiting`` (too little to learn from) or ``judged``; ``why`` in words."""

    state: str
    why: str
    failures: int
    promotion: Promotion | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON data, for the head that asked."""
        made = self.promotion
        return {
            "state": self.state,
            "why": self.why,
            "failures": self.failures,
            "promote": bool(made and made.promote),
            "gate": bool(made and made.gate),
            "evidence": dict(made.evidence) if made else {},
        }


def learn(
    telemetry: Telemetry,
    out: Path,
    name: str,
    *,
    champion: LearnedRisk | None = None,
    options: SiteOptions | None = None,
    progress: Progress | None = None,
) -> Learnt:
    """Trains ``name`` on ``telemetry``, judges it, and saves it to ``out`` with its evidence.

    Nothing is saved when there is too little to learn from.
    """
    asked = options or SiteOptions()
    first_ns, last_ns = telemetry.span_ns()
    days = (last_ns - first_ns) / DAY_NS
    if days < LEAST_DAYS:
        return Learnt("waiting", f"{days:.1f} days of history; {LEAST_DAYS:g} are needed", 0)
    labels = mined(telemetry)
    cut_ns = first_ns + int(TRAIN_SHARE * (last_ns - first_ns))
    failures = len(labels.failures)
    early = sum(one.onset_ns <= cut_ns for one in labels.failures)
    if failures < asked.failures_min:
        why = f"{failures} failures in {days:.0f} days; {asked.failures_min} are needed"
        return Learnt("waiting", why, failures)
    least = LEAST_FAILURES + LEAST_LATER_FAILURES
    if early < least:
        why = f"{early} failures in the first {TRAIN_SHARE:.0%} of the time; {least} are needed"
        return Learnt("waiting", why, failures)
    horizon_ns = int(asked.horizon_seconds * SECOND_NS)
    looks = build_looks(
        telemetry,
        horizons_ns=[int(one * SECOND_NS) for one in horizons_with(asked.horizon_seconds)],
        labels=labels,
        negatives_share=asked.negatives_share,
        seed=asked.seed,
        step_ns=asked.step_ns,
        until_ns=cut_ns,
        progress=progress,
    )
    try:
        model, left_out = train(looks, asked.horizon_seconds, asked.seed)
    except TooFewFailures as error:
        return Learnt("waiting", str(error), failures)
    model.name = name
    whole, judged = _judged(telemetry, labels, model, champion, cut_ns, asked, progress)
    made = decide(judged[CHALLENGER], judged.get(CHAMPION), judged[RIVAL], asked.rules)
    model.facts = {
        "site": True,
        "simulated": False,
        "trained_on": [
            {
                "telemetry": str(telemetry.directory.name),
                "begin": iso(first_ns),
                "end": iso(cut_ns),
                "end_ns": cut_ns,
                "failures": early,
                "nodes": len(whole.nodes),
            }
        ],
        "judged_until": iso(last_ns),
        "gate": {"learned": "on" if made.gate else "off", "why": made.why},
        "threshold": judged[CHALLENGER].threshold or judged[CHALLENGER].watch,
        "alarms_per_1000_node_days": judged[CHALLENGER].alarms_per_1000,
        "judged": dict(made.evidence),
        "left_out": left_out,
        "histograms": {
            kind: histograms(looks[kind].within(horizon_ns), one.names)
            for kind, one in model.kinds.items()
        },
    }
    save(model, out)
    return Learnt("judged", made.why, failures, made)


def _judged(
    telemetry: Telemetry,
    labels: Labels,
    model: LearnedRisk,
    champion: LearnedRisk | None,
    cut_ns: int,
    asked: SiteOptions,
    progress: Progress | None,
) -> tuple[Record, dict[str, Judged]]:
    """Every scorer on the time after ``cut_ns``."""
    scorers: list[Scorer] = [Combined(), Learned(model, CHALLENGER)]
    if champion is not None:
        scorers.append(Learned(champion, CHAMPION))
    whole = record(telemetry, scorers, from_labels(labels), labels, asked.step_ns, progress)
    horizon_ns = int(asked.horizon_seconds * SECOND_NS)
    tune, test = split(whole.times_ns, cut_ns, trained_until_ns(champion), horizon_ns)
    judged = {
        one.name: judge(whole, one.name, tune, test, horizon_ns, asked.rules, asked.costs)
        for one in scorers
    }
    return whole, judged


def split(
    times_ns: Times, cut_ns: int, champion_ns: int, horizon_ns: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """The steps that set thresholds, and those that judge: [first, last) each.

    ``cut_ns`` ends what the challenger learned from, ``champion_ns`` what the champion did.
    """
    first_ns, last_ns = int(times_ns[0]), int(times_ns[-1])
    test_ns = cut_ns + int(TUNE_SHARE * (last_ns - first_ns))
    # What the champion learned from judges nobody.
    test_ns = max(test_ns, min(champion_ns, last_ns - 2 * horizon_ns))

    def step(at_ns: int) -> int:
        return int(np.searchsorted(times_ns, at_ns))

    # A threshold may not be set by failures of the judged time; its end has no known future.
    tune = (step(cut_ns), max(step(cut_ns) + 1, step(test_ns - horizon_ns)))
    test = (step(test_ns), max(step(test_ns) + 1, step(last_ns - horizon_ns)))
    return tune, test


def trained_until_ns(model: LearnedRisk | None) -> int:
    """The end of the time that a model of this site was trained on; 0 for any other."""
    trained = model.facts.get("trained_on") if model is not None else None
    ends = [one.get("end_ns", 0) for one in trained] if isinstance(trained, list) else []
    return max((end for end in ends if isinstance(end, int)), default=0)
