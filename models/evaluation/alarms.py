"""From scores to alarms at a budget, and what each alarm was worth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from models.dataset import LEAST_LEAD_NS
from models.evaluation.events import Record, Target
from models.features.arrays import Floats

DAY_NS = 86_400_000_000_000
MINUTE_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Alarm:
    """A node would have been drained at ``time_ns``. ``target``: the failure it foretold."""

    node: int
    time_ns: int
    target: Target | None

    @property
    def lead_ns(self) -> int:
        """Time from the alarm to the failure, 0 for a false alarm."""
        return self.target.onset_ns - self.time_ns if self.target else 0


def alarms(
    record: Record, scores: Floats, threshold: float, first: int, last: int, horizon_ns: int
) -> list[Alarm]:
    """All alarms in steps [first, last). A drained node is not drained again: after an alarm
    it is out of service for the horizon, or until it is mended when the failure came."""
    loud = (scores[first:last] >= threshold) & record.service[first:last]
    steps, nodes = np.nonzero(loud)
    order = np.lexsort((steps, nodes))
    onsets = record.onsets()
    found: list[Alarm] = []
    free_ns: dict[int, int] = {}
    for step, node in zip(steps[order].tolist(), nodes[order].tolist(), strict=True):
        now_ns = int(record.times_ns[first + step])
        if now_ns < free_ns.get(node, 0):
            continue
        target = next(
            (t for t in onsets.get(node, ()) if now_ns < t.onset_ns <= now_ns + horizon_ns), None
        )
        found.append(Alarm(node, now_ns, target))
        free_ns[node] = max(now_ns + horizon_ns, target.end_ns if target else 0)
    return found


def node_days(record: Record, first: int, last: int) -> float:
    """Time in service in steps [first, last), in node-days."""
    if last - first < 2:
        return 0.0
    step_ns = float(np.median(np.diff(record.times_ns)))
    return float(record.service[first:last].sum()) * step_ns / DAY_NS


def threshold_at(
    record: Record,
    scores: Floats,
    budget: float,
    first: int,
    last: int,
    horizon_ns: int,
    sigmas: float = 0.0,
) -> float:
    """The lowest threshold with at most ``budget`` false alarms per 1000 node-days.

    Infinity when no threshold keeps it (a scorer that says the same of all). ``sigmas``: so many
    standard errors above what was counted must lie within the budget as well.
    """
    kept = _within(record, scores, budget, first, last, horizon_ns, sigmas)
    return kept[0] if kept else float("inf")


def likely_false(found: Sequence[Alarm], sigmas: float) -> float:
    """The false alarms of ``found``, and ``sigmas`` standard errors more.

    The false alarms of one node hang together, so nodes are what is counted: the variance of the
    sum is about the sum of the squares.
    """
    per_node = Counter(one.node for one in found if one.target is None)
    squares = sum(count * count for count in per_node.values())
    return sum(per_node.values()) + sigmas * math.sqrt(squares)


def worth_threshold(
    record: Record,
    scores: Floats,
    budget: float,
    first: int,
    last: int,
    horizon_ns: int,
    net: Callable[[float, float], float],
    sigmas: float = 0.0,
) -> float:
    """The threshold within ``budget`` at which ``net(early, false)`` is largest.

    Infinity (never drain) when none wins anything: to use up a budget is no aim of its own.
    """
    best, chosen = 0.0, float("inf")
    for threshold in _within(record, scores, budget, first, last, horizon_ns, sigmas):
        found = alarms(record, scores, threshold, first, last, horizon_ns)
        early = {id(one.target) for one in found if one.lead_ns >= LEAST_LEAD_NS}
        won = net(len(early), sum(one.target is None for one in found))
        if won > best:
            best, chosen = won, threshold
    return chosen


def _within(
    record: Record,
    scores: Floats,
    budget: float,
    first: int,
    last: int,
    horizon_ns: int,
    sigmas: float,
) -> Sequence[float]:
    """Thresholds worth trying that keep the budget, the lowest first."""
    days = node_days(record, first, last)
    said = scores[first:last][record.service[first:last]]
    said = said[said > 0]
    if not len(said) or days <= 0:
        return []
    shares = np.unique(np.concatenate([1 - np.geomspace(1e-6, 0.3, 120), [1.0]]))
    candidates: Sequence[float] = np.unique(np.quantile(said, shares)).tolist()
    low, high = 0, len(candidates)  # the first candidate that keeps the budget
    while low < high:
        middle = (low + high) // 2
        found = alarms(record, scores, candidates[middle], first, last, horizon_ns)
        if 1000 * likely_false(found, sigmas) / days <= budget:
            high = middle
        else:
            low = middle + 1
    return candidates[low:]
