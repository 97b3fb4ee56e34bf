"""Champion and challenger: judged on later time at one budget, and which of them goes on.

Pure: figures in, a verdict with its evidence out. A model is better when it wins more GPU-hours
than the champion and than the rival that needs no training, keeps the budget of false drains on
time that set no threshold, and does so also when the nodes are drawn again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.evaluation.alarms import alarms, node_days, threshold_at, worth_threshold
from models.evaluation.events import Record
from models.evaluation.operating import Costs
from models.features.arrays import Floats

SECOND_NS = 1_000_000_000
LEAST_LEAD_NS = 900 * SECOND_NS


@dataclass(frozen=True, slots=True)
class Rules:
    """What a challenger needs. ``budget``: false drains per 1000 node-days. ``least_failures``
    must lie in the judged time. ``sure``: share of redraws of the nodes in which it must win."""

    budget: float = 2.0
    least_failures: int = 5
    sure: float = 0.8
    draws: int = 500


@dataclass(frozen=True)
class Judged:
    """One scorer on the judged time. ``per_node_net`` [nodes]: GPU-hours won at each node."""

    name: str
    threshold: float | None
    watch: float | None
    early: int
    false: int
    alarms: int
    failures: int
    node_days: float
    net_gpu_hours: float
    per_node_net: Floats

    @property
    def false_per_1000(self) -> float:
        """False drains per 1000 node-days."""
        return 1000 * self.false / self.node_days if self.node_days else 0.0

    @property
    def alarms_per_1000(self) -> float:
        """Alarms, right and false, per 1000 node-days."""
        return 1000 * self.alarms / self.node_days if self.node_days else 0.0

    def plain(self) -> dict[str, Any]:
        """As JSON data, for manifest and audit."""
        return {
            "name": self.name,
            "threshold": self.threshold,
            "early": self.early,
            "failures": self.failures,
            "false": self.false,
            "alarms": self.alarms,
            "node_days": round(self.node_days, 1),
            "false_per_1000_node_days": round(self.false_per_1000, 3),
            "alarms_per_1000_node_days": round(self.alarms_per_1000, 3),
            "net_gpu_hours": round(self.net_gpu_hours, 1),
        }


@dataclass(frozen=True)
class Promotion:
    """Whether the challenger goes on, whether it may drain (``gate``), and why."""

    promote: bool
    gate: bool
    why: str
    evidence: Mapping[str, Any]


def judge(
    record: Record,
    name: str,
    tune: tuple[int, int],
    test: tuple[int, int],
    horizon_ns: int,
    rules: Rules,
    costs: Costs,
) -> Judged:
    """``name``'s scores of ``record``: threshold on the steps ``tune``, figures on ``test``.

    The threshold is the one that won most GPU-hours there within the budget; infinite, so that
    nothing is drained, where none won any. ``watch`` uses the budget up: for shadow.
    """
    scores = record.scores[name]
    threshold = worth_threshold(record, scores, rules.budget, *tune, horizon_ns, costs.net)
    watch = threshold_at(record, scores, rules.budget, *tune, horizon_ns)
    rung = alarms(record, scores, threshold, *test, horizon_ns)
    low_ns, high_ns = int(record.times_ns[test[0]]), int(record.times_ns[test[1] - 1])
    tested = [one for one in record.targets if low_ns < one.onset_ns <= high_ns]
    wanted = {id(one): one for one in tested}
    place = {node: row for row, node in enumerate(record.nodes)}
    told = {
        id(one.target)
        for one in rung
        if one.target is not None and one.lead_ns >= LEAST_LEAD_NS and id(one.target) in wanted
    }
    false = [one for one in rung if one.target is None]
    net = np.zeros(len(record.nodes))
    for key in told:
        net[place[wanted[key].node]] += costs.net(1, 0)
    for alarm in false:
        net[alarm.node] += costs.net(0, 1)
    return Judged(
        name,
        float(threshold) if np.isfinite(threshold) else None,
        float(watch) if np.isfinite(watch) else None,
        len(told),
        len(false),
        len(rung),
        len(tested),
        node_days(record, *test),
        float(net.sum()),
        net,
    )


def share_won(ours: Judged, theirs: Judged, draws: int, seed: int = 0) -> float:
    """Share of redraws of the nodes in which ``ours`` wins more GPU-hours (a tie is half)."""
    difference = ours.per_node_net - theirs.per_node_net
    nodes = len(difference)
    if not nodes:
        return 0.0
    rng = np.random.default_rng([seed, 41])
    sums = rng.multinomial(nodes, np.full(nodes, 1 / nodes), draws) @ difference
    return float(np.mean((sums > 0) + 0.5 * (sums == 0)))


def decide(challenger: Judged, champion: Judged | None, rival: Judged, rules: Rules) -> Promotion:
    """Whether ``challenger`` takes the place of ``champion`` (None: only the rival scores)."""
    others = [rival] if champion is None else [champion, rival]
    won = {one.name: round(share_won(challenger, one, rules.draws), 3) for one in others}
    evidence = {
        "budget_per_1000_node_days": rules.budget,
        "challenger": challenger.plain(),
        "champion": champion.plain() if champion else None,
        "rival": rival.plain(),
        "share_of_redraws_won": won,
    }
    gate = (
        challenger.net_gpu_hours > max(rival.net_gpu_hours, 0.0)
        and challenger.false_per_1000 <= rules.budget
    )
    why = _why_not(challenger, others, won, rules)
    if why:
        return Promotion(False, False, why, evidence)
    text = ", ".join(f"{one.name} {one.net_gpu_hours:g}" for one in others)
    return Promotion(
        True,
        gate,
        f"{challenger.early} of {challenger.failures} failures told, "
        f"{challenger.false_per_1000:.2f} false drains per 1000 node-days; net GPU-hours "
        f"{challenger.net_gpu_hours:g} against {text}",
        evidence,
    )


def _why_not(
    challenger: Judged, others: list[Judged], won: Mapping[str, float], rules: Rules
) -> str:
    if challenger.failures < rules.least_failures:
        return (
            f"only {challenger.failures} failures in the time it is judged on; "
            f"{rules.least_failures} are needed"
        )
    if challenger.threshold is None or not challenger.early:
        return "it told no failure in time within the budget of false drains"
    if challenger.false_per_1000 > rules.budget:
        return (
            f"{challenger.false_per_1000:.2f} false drains per 1000 node-days on later time; "
            f"{rules.budget:g} are allowed"
        )
    for one in others:
        if challenger.net_gpu_hours <= one.net_gpu_hours:
            return (
                f"net GPU-hours {challenger.net_gpu_hours:g}, no better than "
                f"{one.name}'s {one.net_gpu_hours:g}"
            )
        if won[one.name] < rules.sure:
            return (
                f"better than {one.name}, but only in {won[one.name]:.0%} of the redraws of the "
                f"nodes; {rules.sure:.0%} are needed"
            )
    return ""
