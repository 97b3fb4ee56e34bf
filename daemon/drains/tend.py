"""Looks after the jobs on nodes that we hold: plans each job's steps once, does each once.

A step is written down before it is done: after a kill in between it is not done again, for a
second requeue or signal would hurt more than a missing one. A requeue is done only while the
job still runs on the node, for Slurm would run a finished job a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from collectors.slurm.reader import Job
from daemon.drains.jobcare import JobCare, JobStep, Step, plan
from daemon.drains.ledger import SECOND_NS, Ledger
from daemon.policy.cases import Case, State
from daemon.slurm.adapter import SlurmUnavailable
from daemon.stages import Stages
from daemon.store.database import Database, Row

SCHEMA = """
CREATE TABLE IF NOT EXISTS job_steps (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, case_id TEXT NOT NULL, node TEXT NOT NULL,
    job TEXT NOT NULL, user TEXT NOT NULL, step TEXT NOT NULL, signal TEXT NOT NULL,
    text TEXT NOT NULL, due_ns INTEGER NOT NULL, begun_ns INTEGER NOT NULL DEFAULT 0,
    result TEXT NOT NULL DEFAULT '', UNIQUE (case_id, job, step)
);
"""
# Steps done in one call; the rest comes with the next.
STEPS_PER_CALL = 50


class DoesJobSteps(Protocol):
    """What ``daemon.slurm.jobs.JobTools`` does."""

    def do(self, step: JobStep) -> str:
        """Does one step; answers "" or why it was refused. Raises SlurmUnavailable."""
        ...


class Tender:
    """Not for use from two threads at once."""

    def __init__(
        self,
        tools: DoesJobSteps,
        database: Database,
        ledger: Ledger,
        care: JobCare,
        stages: Stages | None = None,
    ) -> None:
        self._stages = stages or Stages()
        self._tools = tools
        self._database = database
        self._ledger = ledger
        self._care = care
        database.define(SCHEMA)

    def tend(self, jobs: Mapping[str, Job], now_ns: int) -> None:
        """Plans for jobs on newly held nodes, and does what is due. ``jobs`` is a fresh reading."""
        held = {case.id: case for case in self._ledger.held() if case.state is not State.INTENT}
        for case in held.values():
            if case.state is not State.TESTING:  # the only job there is our own proof
                self._stages.run(f"jobs on {case.node}", self._plan, case, jobs, now_ns)
        due = self._database.query(
            "SELECT * FROM job_steps WHERE begun_ns = 0 AND due_ns <= ? ORDER BY seq LIMIT ?",
            (now_ns, STEPS_PER_CALL),
        )
        for row in due:
            name, held_now = f"jobs on {row['node']}", row["case_id"] in held
            if self._stages.run(name, self._due, row, jobs, held_now, now_ns) is False:
                return

    def _due(self, row: Row, jobs: Mapping[str, Job], held: bool, now_ns: int) -> bool:
        """One step that is due; False when Slurm is away and the rest should wait."""
        job = jobs.get(row["job"])
        why = self._not_now(row["step"], row["node"], job, held)
        step = JobStep(
            job or Job(row["job"], row["job"], "", row["user"], ()),
            Step(row["step"]), row["text"], row["signal"],
        )  # fmt: skip
        return self._do(row["seq"], row["case_id"], row["node"], step, why, now_ns)

    def _plan(self, case: Case, jobs: Mapping[str, Job], now_ns: int) -> None:
        severity = next((one.severity for one in self._ledger.decisions(case=case.id, limit=1)), 0)
        steps = plan(jobs.values(), case.node, case.reason, severity, self._care)
        if not steps:
            return
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO job_steps (case_id, node, job, user, step, signal, text, "
                "due_ns) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        case.id, case.node, one.job.id, one.job.user, one.step.value, one.signal,
                        one.text, now_ns + int(one.after_seconds * SECOND_NS),
                    )
                    for one in steps
                ],
            )  # fmt: skip

    def _not_now(self, step: str, node: str, job: Job | None, held: bool) -> str:
        if not held:
            return "the node is no longer held by tocsin"
        if job is None or node not in job.nodes or job.state != "RUNNING":
            return "the job no longer runs there"
        if step == Step.REQUEUE and self._care.requeue == "never":
            return "requeue is switched off by now"
        return ""

    def _do(self, seq: int, case_id: str, node: str, step: JobStep, why: str, now_ns: int) -> bool:
        """One step; False when Slurm is away and the rest should wait."""
        self._database.execute(
            "UPDATE job_steps SET begun_ns = ?, result = 'begun' WHERE seq = ?", (now_ns, seq)
        )
        if not why:
            try:
                why = self._tools.do(step)
            except SlurmUnavailable as error:
                if error.not_sent:
                    # Certainly not done: it may be tried again.
                    self._database.execute(
                        "UPDATE job_steps SET begun_ns = 0, result = ? WHERE seq = ?",
                        (str(error), seq),
                    )
                    return False
                why = f"not known whether it was done: {error}"
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE job_steps SET result = ? WHERE seq = ?", (why or "done", seq)
            )
            self._ledger.say(
                now_ns, user="tocsin", verb=f"job_{step.step.value}", node=node, subject=case_id,
                text=f"job {step.job.key} of {step.job.user}: {why or 'done'}",
            )  # fmt: skip
        return True
