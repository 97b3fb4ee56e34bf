"""What tocsin's own drains came to: how many were wrong, how fast they were, what they cost.

By the ledger, over the last days. A drain is wrong when a person called it wrong; what nobody
judged is counted apart, and never as right. GPU-hours out of service are measured. What was saved
is reckoned (nobody sees the job that was not hit), by the numbers of ``policy.cost``, for drains
that were called right alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from collectors.sample import Metric, Sample, sample
from daemon.policy.cost import CostOptions
from daemon.store.database import Database

DAY_NS = 86_400 * 1_000_000_000
HOUR_NS = 3_600 * 1_000_000_000
WINDOW_DAYS = 30

METRICS = (
    Metric("record", "drains", "gauge", "drains that were made in the last 30 days", 0),
    Metric("record", "right", "gauge", "of these, called right by a person", 0),
    Metric("record", "wrong", "gauge", "of these, called wrong by a person", 0),
    Metric("record", "node_days", "gauge", "nodes times days that were watched", 0),
    Metric("record", "wrong_per_1000_node_days", "gauge", "false drains per 1000 node-days", 0),
    Metric("record", "shadow_drains", "gauge", "drains that shadow mode held back", 0),
    Metric("record", "shadow_wrong", "gauge", "of these, called wrong by a person", 0),
    Metric("record", "reaction_median_seconds", "gauge", "fault to drain in Slurm, median", 0),
    Metric("record", "reaction_longest_seconds", "gauge", "fault to drain in Slurm, longest", 0),
    Metric("record", "out_gpu_hours", "gauge", "GPU-hours out of service by its drains", 0),
    Metric("record", "out_wrong_gpu_hours", "gauge", "of these, for drains called wrong", 0),
    Metric("record", "saved_gpu_hours", "gauge", "GPU-hours saved, reckoned by policy.cost", 0),
)


@dataclass(frozen=True, slots=True)
class Made:
    """One drain that Slurm showed: when, until when (0: still), and what was said of it."""

    node: str
    voice: str
    onset_ns: int
    drained_ns: int
    ended_ns: int
    verdict: bool | None
    asked: bool  # a person's yes was waited for


@dataclass(frozen=True, slots=True)
class Record:
    """The figures of METRICS; None where there was nothing to measure."""

    drains: int
    right: int
    wrong: int
    node_days: float
    shadow_drains: int
    shadow_wrong: int
    reaction_median_seconds: float | None
    reaction_longest_seconds: float | None
    out_gpu_hours: float
    out_wrong_gpu_hours: float
    saved_gpu_hours: float

    @property
    def wrong_per_1000_node_days(self) -> float | None:
        """False drains, by people's words."""
        return 1000 * self.wrong / self.node_days if self.node_days else None

    @property
    def unjudged(self) -> int:
        """Drains of which nobody said whether they were right."""
        return self.drains - self.right - self.wrong


def record(
    made: Sequence[Made],
    shadow: Mapping[str, bool | None],
    gpus: Mapping[str, int],
    watched_since_ns: int,
    now_ns: int,
    cost: CostOptions,
) -> Record:
    """Pure. ``shadow``: cases that shadow mode held back, with verdicts; ``gpus``: of each node."""
    begin_ns = max(now_ns - WINDOW_DAYS * DAY_NS, watched_since_ns)
    some = [one for one in made if one.drained_ns >= begin_ns]
    delays = [
        max(0.0, (one.drained_ns - one.onset_ns) / 1e9)
        for one in some
        if one.voice == "fact" and not one.asked
    ]
    lost = cost.checkpoint_hours / 2 + cost.restart_hours

    def hours(one: Made) -> float:
        end_ns = min(one.ended_ns or now_ns, now_ns)
        return gpus.get(one.node, 0) * max(0, end_ns - max(one.drained_ns, begin_ns)) / HOUR_NS

    return Record(
        drains=len(some),
        right=sum(one.verdict is True for one in some),
        wrong=sum(one.verdict is False for one in some),
        node_days=len(gpus) * max(0, now_ns - begin_ns) / DAY_NS,
        shadow_drains=len(shadow),
        shadow_wrong=sum(verdict is False for verdict in shadow.values()),
        reaction_median_seconds=median(delays) if delays else None,
        reaction_longest_seconds=max(delays) if delays else None,
        out_gpu_hours=sum(map(hours, made)),
        out_wrong_gpu_hours=sum(hours(one) for one in made if one.verdict is False),
        saved_gpu_hours=sum(lost * gpus.get(one.node, 0) for one in some if one.verdict is True),
    )


def read(database: Database, gpus: Mapping[str, int], now_ns: int, cost: CostOptions) -> Record:
    """The record by the ledger's tables, as it is now."""
    since_ns = now_ns - WINDOW_DAYS * DAY_NS
    rows = database.query(
        "SELECT node, voice, onset_ns, acknowledged_ns, ended_ns, verdict, EXISTS (SELECT 1 FROM "
        "audit WHERE subject = cases.id AND verb = 'approve') AS asked FROM cases "
        "WHERE acknowledged_ns > 0 AND (ended_ns = 0 OR ended_ns >= ?)",
        (since_ns,),
    )
    made = [
        Made(
            row["node"], row["voice"], row["onset_ns"], row["acknowledged_ns"], row["ended_ns"],
            None if row["verdict"] is None else bool(row["verdict"]), bool(row["asked"]),
        )
        for row in rows
    ]  # fmt: skip
    held_back = database.query(
        "SELECT DISTINCT decisions.id AS id, cases.verdict AS verdict FROM decisions "
        "JOIN cases ON cases.id = decisions.id WHERE decisions.guard = 'shadow' "
        "AND decisions.time_ns >= ? AND cases.acknowledged_ns = 0 AND cases.voice != 'silence'",
        (since_ns,),
    )
    shadow = {
        row["id"]: None if row["verdict"] is None else bool(row["verdict"]) for row in held_back
    }
    first = database.query("SELECT MIN(time_ns) AS first FROM decisions")
    first_audit = database.query("SELECT MIN(time_ns) AS first FROM audit")
    begun = [row["first"] for row in (*first, *first_audit) if row["first"]]
    return record(made, shadow, gpus, min(begun, default=now_ns), now_ns, cost)


def figures(found: Record) -> dict[str, float]:
    """The record as numbers by name; what could not be measured is absent."""
    named = {metric.name: getattr(found, metric.name) for metric in METRICS}
    return {name: float(value) for name, value in named.items() if value is not None}


def points(found: Record, cluster: str, now_ns: int) -> list[Sample]:
    """The record as one point of the store."""
    return [sample("record", now_ns, figures(found), cluster=cluster)]
