"""The protocol: thresholds on the first part of the time, figures on the rest.

Nothing is tuned on what is judged. A model is trained before the judged time (or handed
in); every scorer gets its threshold for each budget of false drains on the tuning part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score

from models.dataset import STEP_NS, WARM_UP_NS, Progress, mined
from models.evaluation.alarms import Alarm, alarms, node_days
from models.evaluation.events import Record, Target, from_labels, from_truth
from models.evaluation.operating import WORTH_BUDGET, Costs, Operating, operating
from models.evaluation.parts import record_parts
from models.evaluation.rivals import RIVALS, Forest, Learned, Logistic, Scorer, Within
from models.features.arrays import Floats
from models.fitting import TooFewFailures, train
from models.horizons import horizons_with, label
from models.labels import Labels
from models.learned import LearnedRisk
from models.parts import Over, build_parts, in_process
from models.telemetry import Telemetry, read_truth

SECOND_NS = 1_000_000_000
BUDGETS = (1.0, 2.0, 5.0)  # false drains per 1000 node-days
LEADS_SECONDS = {"15min": 900, "1h": 3600, "6h": 6 * 3600}
TRAIN_SHARE = 0.4  # of the time, when no model is handed in
TUNE_SHARE = 0.2  # of the time, after training, for thresholds
MOST_STEP_NS = 4 * STEP_NS  # to learn by; to be judged by, looks may be farther apart
PART_FAILING_NS = 7 * 86_400 * SECOND_NS

__all__ = ["BUDGETS", "Costs", "Evaluation", "decide_gate", "evaluate"]


@dataclass
class Evaluation:
    """Everything that ``tocsin evaluate`` reports; ``result`` is plain JSON data."""

    result: dict[str, Any]
    record: Record
    alarms: dict[tuple[str, float], list[Alarm]] = field(default_factory=dict)


def evaluate(
    telemetry: Telemetry,
    *,
    model: LearnedRisk | None = None,
    others: Sequence[Scorer] = (),
    tuned: Mapping[str, Operating] | None = None,
    horizon_seconds: float = 86400.0,
    budgets: Sequence[float] = BUDGETS,
    costs: Costs | None = None,
    seed: int = 0,
    step_ns: int = STEP_NS,
    bootstraps: int = 500,
    progress: Progress | None = None,
    over: Over = in_process,
) -> Evaluation:
    """Judges the rivals and the model on a directory.

    With ``model`` None one is trained on the first 40 % of the time (and logistic regression
    and an isolation forest with it); with too few failures there, only rivals are judged.
    ``others`` are further scorers, trained elsewhere. ``tuned`` are thresholds from another
    directory (models/evaluation/operating.py): then nothing is tuned here and all the time after
    the first day is judged; it needs a model that was handed in.
    """
    costs = costs or Costs()
    horizon_ns = int(horizon_seconds * SECOND_NS)
    first_ns, last_ns = telemetry.span_ns()
    span_ns = last_ns - first_ns
    labels = mined(telemetry)
    truth_path = telemetry.directory / "truth.csv"
    targets = from_truth(read_truth(truth_path)) if truth_path.exists() else from_labels(labels)
    scorers: list[Scorer] = [one() for one in RIVALS]
    notes: list[str] = []
    train_end_ns = first_ns
    if model is not None:
        scorers.append(Learned(model))
    else:
        train_end_ns = first_ns + int(TRAIN_SHARE * span_ns)
        scorers += _trained(telemetry, labels, horizon_ns, step_ns, train_end_ns, seed, notes, over)
    scorers += others
    beside = _beside(scorers, horizon_seconds)
    looking = [*scorers, *beside]
    whole = record_parts(telemetry, looking, targets, labels, step_ns, progress, over)
    tune_first = int(np.searchsorted(whole.times_ns, max(train_end_ns, first_ns + WARM_UP_NS)))
    test_ns = train_end_ns + int(TUNE_SHARE * span_ns)
    if tuned is not None and model is not None:
        test_ns = first_ns + WARM_UP_NS
    test_first = int(np.searchsorted(whole.times_ns, test_ns))
    # The end has no known future: an alarm there can neither be right nor wrong.
    test_last = int(np.searchsorted(whole.times_ns, last_ns - horizon_ns))
    # Nor may a threshold be judged by failures of the test part.
    tune_last = int(np.searchsorted(whole.times_ns, test_ns - horizon_ns))
    tested = [
        one
        for one in targets
        if whole.times_ns[test_first] < one.onset_ns <= whole.times_ns[test_last - 1]
    ]
    found = Evaluation({}, whole)
    judged = {}
    for scorer in scorers:
        scores = whole.scores[scorer.name]
        entry = _overall(whole, scores, scorer.is_probability, test_first, test_last, horizon_ns)
        points = (tuned or {}).get(scorer.name) or operating(
            whole, scores, budgets, tune_first, tune_last, horizon_ns, costs
        )
        days = node_days(whole, test_first, test_last)

        def told(
            threshold: float, scores: Floats = scores, days: float = days
        ) -> tuple[list[Alarm], dict[str, Any]]:
            rung = alarms(whole, scores, threshold, test_first, test_last, horizon_ns)
            return rung, _at_budget(rung, tested, whole, threshold, days, costs, bootstraps, seed)

        entry["budgets"] = {}
        for budget in budgets:
            rung, figures = told(points.at[budget])
            found.alarms[scorer.name, budget] = rung
            entry["budgets"][f"{budget:g}"] = figures
        _, entry["worth"] = told(points.worth)
        judged[scorer.name] = entry
    found.result = {
        "telemetry": str(telemetry.directory.name),
        "nodes": len(whole.nodes),
        "days": round(span_ns / 86400e9, 2),
        "test_days": round(
            (whole.times_ns[test_last - 1] - whole.times_ns[test_first]) / 86400e9, 2
        ),
        "test_node_days": round(node_days(whole, test_first, test_last), 1),
        "horizon_seconds": horizon_seconds,
        "failures_in_test": len(tested),
        "predictable_in_test": sum(one.predictable is True for one in tested),
        "by_class": dict(sorted(Counter(one.fault_class for one in tested).items())),
        "truth": "truth.csv" if truth_path.exists() else "mined from events",
        "reaction": _reaction(labels, tested),
        "fleet_events_set_aside": len(labels.fleet_events),
        "costs": {name: getattr(costs, name) for name in Costs.__slots__},
        "thresholds": "another history" if tuned is not None else "earlier time",
        "scorers": judged,
        "horizons": {
            label(one.seconds): _overall(
                whole,
                whole.scores[one.name],
                True,
                test_first,
                int(np.searchsorted(whole.times_ns, last_ns - int(one.seconds * SECOND_NS))),
                int(one.seconds * SECOND_NS),
            )
            for one in beside
        },
        "gate": decide_gate(judged),
        "notes": notes,
    }
    return found


def _beside(scorers: Sequence[Scorer], own_seconds: float) -> list[Within]:
    """The learned model within its other horizons."""
    return [
        Within(one.model, seconds)
        for one in scorers
        if isinstance(one, Learned)
        for seconds in horizons_with(own_seconds)
        if seconds != own_seconds
    ]


def _trained(
    telemetry: Telemetry,
    labels: Labels,
    horizon_ns: int,
    step_ns: int,
    until_ns: int,
    seed: int,
    notes: list[str],
    over: Over,
) -> list[Scorer]:
    horizons_ns = [int(one * SECOND_NS) for one in horizons_with(horizon_ns / SECOND_NS)]
    looks = build_parts(
        telemetry,
        over,
        horizons_ns=horizons_ns,
        labels=labels,
        seed=seed,
        step_ns=min(step_ns, MOST_STEP_NS),
        until_ns=until_ns,
    )
    scorers: list[Scorer] = []
    try:
        model, left_out = train(looks, horizon_ns / SECOND_NS, seed)
        notes += left_out
        scorers.append(Learned(model))
    except TooFewFailures as error:
        notes.append(f"no model was trained: {error}")
    examples = {kind: some.within(horizon_ns) for kind, some in looks.items()}
    logistic, forest = Logistic(examples, seed), Forest(examples, seed)
    scorers += [one for one in (logistic, forest) if one.kinds]
    return scorers


def _overall(
    whole: Record, scores: Floats, is_probability: bool, first: int, last: int, horizon_ns: int
) -> dict[str, Any]:
    """Figures over all (time, node) pairs of the test: AUPRC, and calibration."""
    service = whole.service[first:last]
    y = whole.coming(900 * SECOND_NS, horizon_ns)[first:last][service]
    p = np.asarray(scores[first:last][service], np.float64)
    prevalence = float(y.mean()) if len(y) else 0.0
    entry: dict[str, Any] = {
        "prevalence": prevalence,
        "auprc": float(average_precision_score(y, p)) if y.any() else None,
    }
    if is_probability and y.any():
        reference = prevalence * (1 - prevalence)
        entry["brier_skill"] = 1.0 - float(np.mean((p - y) ** 2)) / reference
        entry["mean_probability"] = float(p.mean())
        entry["reliability"] = _reliability(p, y)
    return entry


def _reliability(
    p: Floats, y: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> list[dict[str, float]]:
    edges = np.unique(np.quantile(p, [0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0]))
    bins = np.clip(np.searchsorted(edges, p, side="right") - 1, 0, max(len(edges) - 2, 0))
    return [
        {
            "said": float(p[bins == i].mean()),
            "was": float(y[bins == i].mean()),
            "count": int((bins == i).sum()),
        }
        for i in range(max(len(edges) - 1, 1))
        if (bins == i).any()
    ]


def _at_budget(
    rung: list[Alarm],
    tested: list[Target],
    whole: Record,
    threshold: float,
    days: float,
    costs: Costs,
    bootstraps: int,
    seed: int,
) -> dict[str, Any]:
    false = [one for one in rung if one.target is None]
    best: dict[int, int] = {}  # id of a target -> longest lead
    for one in rung:
        if one.target is not None:
            best[id(one.target)] = max(best.get(id(one.target), 0), one.lead_ns)
    leads = {id(one): best.get(id(one), 0) / SECOND_NS for one in tested}
    early = sum(lead >= 900 for lead in leads.values())
    total = max(1, len(tested))
    classes = Counter(one.fault_class for one in tested)
    early_classes = Counter(one.fault_class for one in tested if leads[id(one)] >= 900)
    foreseeable = [one for one in tested if one.predictable]
    entry: dict[str, Any] = {
        "threshold": threshold if np.isfinite(threshold) else None,
        "alarms": len(rung),
        "false": len(false),
        "false_per_1000_node_days": 1000 * len(false) / days if days else None,
        # Strictly false, for nothing failed within the horizon; yet something did soon after.
        "false_but_failed_within_7d": _failed_soon(false, whole),
        "precision": 1 - len(false) / len(rung) if rung else None,
        "recall": {
            name: sum(lead >= seconds for lead in leads.values()) / total
            for name, seconds in LEADS_SECONDS.items()
        },
        "early": early,
        "recall_of_predictable": (
            sum(leads[id(one)] >= 900 for one in foreseeable) / len(foreseeable)
            if foreseeable
            else None
        ),
        "recall_by_class": {
            name: f"{early_classes[name]}/{count}" for name, count in sorted(classes.items())
        },
        "lead_hours": sorted(round(lead / 3600, 2) for lead in leads.values() if lead >= 900),
        "net_gpu_hours": costs.net(early, len(false)),
    }
    if bootstraps:
        entry |= _bootstrap(false, tested, leads, whole, days, costs, bootstraps, seed)
    return entry


def _failed_soon(false: list[Alarm], whole: Record) -> int:
    onsets = whole.onsets()
    return sum(
        any(
            one.time_ns < target.onset_ns <= one.time_ns + PART_FAILING_NS
            for target in onsets.get(one.node, ())
        )
        for one in false
    )


def _bootstrap(
    false: list[Alarm],
    tested: list[Target],
    leads: Mapping[int, float],
    whole: Record,
    days: float,
    costs: Costs,
    bootstraps: int,
    seed: int,
) -> dict[str, Any]:
    """95 % intervals by resampling nodes (a node's failures hang together)."""
    place = {name: i for i, name in enumerate(whole.nodes)}
    per_node = np.zeros((3, len(whole.nodes)))  # early, targets, false
    for one in tested:
        node = place.get(one.node)
        if node is not None:
            per_node[0, node] += leads[id(one)] >= 900
            per_node[1, node] += 1
    for alarm in false:
        per_node[2, alarm.node] += 1
    rng = np.random.default_rng([seed, 23])
    picks = rng.multinomial(
        len(whole.nodes), np.full(len(whole.nodes), 1 / len(whole.nodes)), bootstraps
    )
    early, targets, wrong = (picks @ row for row in per_node)
    recall = early / np.maximum(targets, 1)
    net = [costs.net(e, f) for e, f in zip(early.tolist(), wrong.tolist(), strict=True)]

    def interval(values: Any) -> list[float]:
        return [round(float(value), 4) for value in np.quantile(values, [0.025, 0.975])]

    return {
        "recall_15min_95": interval(recall),
        "false_95": interval(1000 * wrong / days) if days else None,
        "net_gpu_hours_95": interval(net),
    }


def _reaction(labels: Labels, tested: list[Target]) -> dict[str, Any]:
    """How soon after the onset events tell of the failure (the fact's own delay)."""
    onsets = labels.node_onsets()
    delays = []
    for one in tested:
        times = onsets.get(one.node)
        if times is None:
            continue
        after = times[
            (times >= one.onset_ns - SECOND_NS) & (times <= max(one.end_ns, one.onset_ns + 1))
        ]
        if len(after):
            delays.append(max(0.0, (int(after[0]) - one.onset_ns) / SECOND_NS))
    if not delays:
        return {"told_by_events": 0, "of": len(tested)}
    return {
        "told_by_events": len(delays),
        "of": len(tested),
        "delay_seconds_p50": float(np.median(delays)),
        "delay_seconds_p95": float(np.quantile(delays, 0.95)),
    }


def decide_gate(judged: Mapping[str, Any]) -> dict[str, Any]:
    """A learned model ships off unless it wins GPU-hours, and more than every rival does.

    Each scorer is judged where it won most on other time, within 2 false drains per 1000
    node-days there; one that breaks that budget twofold on what is judged wins nothing. To lose
    less than a rival is no reason to drain, nor is a gain that other nodes might not show (the
    95 % interval, where there is one, has to lie above nothing).
    """
    if "learned" not in judged:
        return {"learned": "off", "why": "no learned model was judged"}
    won = {name: _won(entry["worth"]) for name, entry in judged.items()}
    ours = won.pop("learned")
    best = max(won, key=lambda name: won[name])
    least = judged["learned"]["worth"].get("net_gpu_hours_95", [ours])[0]
    better = ours > max(won[best], 0.0) and least > 0.0
    return {
        "learned": "on" if better else "off",
        "why": f"net GPU-hours within 2 false drains per 1000 node-days: {ours:g} against "
        f"{won[best]:g} of the best rival ({best}); with other nodes it could be {least:g}",
    }


def _won(worth: Mapping[str, Any]) -> float:
    kept = (worth["false_per_1000_node_days"] or 0.0) <= 2 * WORTH_BUDGET
    return float(worth["net_gpu_hours"]) if kept else min(0.0, float(worth["net_gpu_hours"]))
