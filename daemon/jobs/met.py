"""Which job met which fault: written down when a fault begins, while Slurm still knows the job.

A fault of a node counts for each job that ran there when it began, with the GPUs that the job held
and about how many GPU-hours it had to lose. Whether the job died of it Slurm's accounting knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from collectors.slurm.nodes import NodeState
from collectors.slurm.reader import Job
from daemon.clock import NANOSECONDS
from daemon.jobs.held import Held, held
from daemon.policy.cost import CostOptions, checkpoint_hours
from daemon.slurm_desk import SlurmDesk
from daemon.store.database import Database
from models.voices import Fact
from models.watch import Judgement

# What began longer ago is no news: a head that starts again finds old facts beside new jobs.
NEWS_NS = 3_600 * NANOSECONDS
# The jobs were read up to a reading of Slurm before the fault was judged.
SLACK_NS = 30 * NANOSECONDS
SEVERITY_LEAST = 2
KEEP_NS = 730 * 86_400 * NANOSECONDS
_SEEN_MOST = 100_000
SCHEMA = """
CREATE TABLE IF NOT EXISTS job_faults (
    job TEXT NOT NULL, node TEXT NOT NULL, device TEXT NOT NULL, rule TEXT NOT NULL,
    onset_ns INTEGER NOT NULL, code TEXT NOT NULL, text TEXT NOT NULL, user TEXT NOT NULL,
    partition TEXT NOT NULL, gpus INTEGER NOT NULL, elapsed_seconds REAL NOT NULL,
    at_stake_gpu_hours REAL NOT NULL, PRIMARY KEY (job, node, device, rule, onset_ns)
);
CREATE INDEX IF NOT EXISTS job_faults_onset ON job_faults (onset_ns);
"""
_INSERT = "INSERT OR IGNORE INTO job_faults VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class MetFault:
    """One fault that one job met. ``gpus`` 0: how many it held is not known."""

    job: str
    node: str
    device: str
    rule: str
    onset_ns: int
    code: str
    text: str
    user: str
    partition: str
    gpus: int
    elapsed_seconds: float
    at_stake_gpu_hours: float


def at_stake(one: Held, elapsed_seconds: float, cost: CostOptions) -> float:
    """GPU-hours that a job loses when it dies now: what it has not saved, and its new start."""
    hours, every = elapsed_seconds / 3600, checkpoint_hours(one.job.comment, cost)
    unsaved = min(hours, every / 2 if math.isfinite(every) else hours)
    return one.total * (unsaved + cost.restart_hours)


class Met:
    """``look`` at each judgement, in the hand's thread; ``newest`` from any."""

    def __init__(self, database: Database, cost: CostOptions) -> None:
        self._database, self._cost = database, cost
        self._seen: dict[tuple[str, str, str, int], None] = {}
        database.define(SCHEMA)

    def look(self, judgement: Judgement, desk: SlurmDesk, now_ns: int) -> None:
        """One judgement beside the jobs as they were last read."""
        self.observe(judgement.facts, desk.jobs, desk.nodes, now_ns)

    def observe(
        self,
        facts: Iterable[Fact],
        jobs: Mapping[str, Job],
        nodes: Mapping[str, NodeState],
        now_ns: int,
    ) -> None:
        """Writes down what is new among ``facts`` on nodes where jobs run."""
        fresh = [one for one in facts if self._is_news(one, now_ns)]
        if not fresh:
            return
        running = held(jobs.values(), nodes)
        rows = [
            self._row(fact, one, now_ns)
            for fact in fresh
            for one in running.values()
            if fact.entity.node in one.gpus and self._began_before(one, fact, now_ns)
        ]
        with self._database.transaction() as connection:
            connection.executemany(_INSERT, rows)
            connection.execute("DELETE FROM job_faults WHERE onset_ns < ?", (now_ns - KEEP_NS,))

    def _is_news(self, fact: Fact, now_ns: int) -> bool:
        key = (fact.entity.node, fact.entity.device, fact.rule, fact.onset_ns)
        if fact.severity < SEVERITY_LEAST or key in self._seen:
            return False
        self._seen[key] = None
        while len(self._seen) > _SEEN_MOST:
            del self._seen[next(iter(self._seen))]
        return now_ns - fact.onset_ns < NEWS_NS

    def _began_before(self, one: Held, fact: Fact, now_ns: int) -> bool:
        began_ns = now_ns - int(one.job.elapsed_seconds * NANOSECONDS)
        return began_ns <= fact.onset_ns + SLACK_NS

    def _row(self, fact: Fact, one: Held, now_ns: int) -> tuple[object, ...]:
        since_seconds = max(0.0, (now_ns - fact.onset_ns) / NANOSECONDS)
        elapsed = max(0.0, one.job.elapsed_seconds - since_seconds)
        return (
            one.job.key, fact.entity.node, fact.entity.device, fact.rule, fact.onset_ns, fact.code,
            fact.text, one.job.user, one.job.partition, one.total, elapsed,
            at_stake(one, elapsed, self._cost),
        )  # fmt: skip

    def newest(self, since_ns: int, job: str = "", limit: int = 1000) -> list[MetFault]:
        """What jobs met since then, newest first; of one job, or of all."""
        rows = self._database.query(
            "SELECT * FROM job_faults WHERE onset_ns >= ? AND (? = '' OR job = ?) "
            "ORDER BY onset_ns DESC, job, node, device LIMIT ?",
            (since_ns, job, job, limit),
        )
        return [MetFault(**dict(row)) for row in rows]
