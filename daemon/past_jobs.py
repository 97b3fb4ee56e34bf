"""Remembers the jobs over several nodes for as long as their traces may stand.

A fault that a job brings about (a collective that upsets the fabric, a kernel that hangs the
driver) shows on many of its nodes at once, and the job is gone a moment later. What policy held
back for it must not be drained because the job has ended, nor because the head was restarted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from collectors.slurm.hostlist import HostlistError, compress, expand
from collectors.slurm.reader import Job
from daemon.policy.ran import SECOND_NS, Ran, RanOn, by_node
from daemon.store.database import Database

KEEP_NS = 30 * 86_400 * SECOND_NS
JOBS_LIMIT = 5000
# A job that goes on is stamped no more often than this.
STAMP_NS = 60 * SECOND_NS
SCHEMA = """
CREATE TABLE IF NOT EXISTS ran (
    job TEXT PRIMARY KEY, nodes TEXT NOT NULL, begin_ns INTEGER NOT NULL, seen_ns INTEGER NOT NULL
);
"""


class PastJobs:
    """Remembers the jobs over more than ``nodes_above`` nodes. For the hand's thread alone."""

    def __init__(self, database: Database, nodes_above: int) -> None:
        self._database = database
        self._above = nodes_above
        database.define(SCHEMA)
        self._known: dict[str, Ran] = {}
        for row in database.query("SELECT * FROM ran ORDER BY seen_ns"):
            try:
                nodes = frozenset(expand(row["nodes"]))
            except HostlistError:
                continue
            self._known[row["job"]] = Ran(row["job"], nodes, row["begin_ns"], row["seen_ns"])
        self._stored = {key: one.seen_ns for key, one in self._known.items()}
        self.on: RanOn = by_node(self._known.values())

    def observe(self, jobs: Mapping[str, Job], now_ns: int) -> None:
        """One reading of the jobs that hold nodes."""
        for job in jobs.values():
            if len(job.nodes) <= self._above:
                continue
            begin_ns = now_ns - int(job.elapsed_seconds * SECOND_NS)
            before = self._known.pop(job.key, None)
            nodes = frozenset(job.nodes)
            # A job that was requeued runs anew, on other nodes perhaps: the old run is another.
            if before is not None and (before.nodes != nodes or begin_ns > before.seen_ns):
                self._known[f"{job.key}@{before.begin_ns}"] = before
                before = None
            if before is not None:
                begin_ns = min(begin_ns, before.begin_ns)
            self._known[job.key] = Ran(job.key, nodes, begin_ns, now_ns)
        gone = [key for key, one in self._known.items() if one.seen_ns < now_ns - KEEP_NS]
        gone += list(self._known)[: max(0, len(self._known) - len(gone) - JOBS_LIMIT)]
        for key in gone:
            self._known.pop(key, None)
        self._store(gone)
        self.on = by_node(self._known.values())

    def _store(self, gone: Iterable[str]) -> None:
        fresh = {
            key: one
            for key, one in self._known.items()
            if abs(one.seen_ns - self._stored.get(key, 0)) >= STAMP_NS
        }
        gone = [key for key in gone if key in self._stored]
        if not fresh and not gone:
            return
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO ran VALUES (?, ?, ?, ?)",
                [
                    (key, compress(sorted(one.nodes)), one.begin_ns, one.seen_ns)
                    for key, one in fresh.items()
                ],
            )
            connection.executemany("DELETE FROM ran WHERE job = ?", [(key,) for key in gone])
        self._stored.update((key, one.seen_ns) for key, one in fresh.items())
        for key in gone:
            del self._stored[key]
