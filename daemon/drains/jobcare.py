"""What a job on a node that is being drained is told, and offered: pure planning.

A drain never ends a job. What more may be done is the site's word (section ``[policy.jobs]``)
and the job's own, in its comment: ``sbatch --comment tocsin=requeue`` or ``tocsin=signal:USR1``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pydantic import Field

from collectors.slurm.reader import Job
from daemon.settings import Section


class Step(StrEnum):
    """One thing that can be done for a job. The order is the order in which they are done."""

    NOTIFY = "notify"  # a line in its output (scontrol notify)
    SIGNAL = "signal"  # a signal on which it can write a checkpoint
    REQUEUE = "requeue"  # ended and queued again, if Slurm may requeue it
    NOTE = "note"  # AdminComment says why


class JobCare(Section):
    """What is done for the jobs on a node that tocsin drains. Nothing ends a job by default.

    ``notify`` writes a line to the job's output. ``signal`` and ``requeue`` are ``never``,
    ``asked`` (the job's comment asks for it) or ``always``. ``requeue`` comes after
    ``checkpoint_seconds`` when the job was signalled. ``severity_min`` of the fact from which
    on a requeue may be (3: the GPU is gone, and the job with it).
    """

    notify: bool = False
    signal: Literal["never", "asked", "always"] = "never"
    signal_name: str = Field(default="USR1", pattern=r"^[A-Z][A-Z0-9]{1,9}$")
    requeue: Literal["never", "asked"] = "never"
    severity_min: int = Field(default=3, ge=0, le=3)
    checkpoint_seconds: float = Field(default=120.0, ge=0, le=86_400)
    note: bool = True


@dataclass(frozen=True, slots=True)
class JobStep:
    """One step for one job; ``after_seconds`` from now."""

    job: Job
    step: Step
    text: str
    signal: str = ""
    after_seconds: float = 0.0


_ASKS = re.compile(r"\btocsin=(requeue|signal(?::([A-Z][A-Z0-9]{1,9}))?)(?=\W|\Z)")


def asks(comment: str) -> tuple[bool, str]:
    """Whether a job's comment asks to be requeued, and the signal it asks for.

    >>> asks("run 7 tocsin=signal:USR2 tocsin=requeue")
    (True, 'USR2')
    """
    requeue = False
    signal = ""
    for match in _ASKS.finditer(comment):
        if match[1] == "requeue":
            requeue = True
        else:
            signal = match[2] or "default"
    return requeue, signal


def plan(
    jobs: Iterable[Job], node: str, reason: str, severity: int, care: JobCare
) -> list[JobStep]:
    """The steps for the jobs that run on ``node``, in order."""
    steps: list[JobStep] = []
    for job in jobs:
        if node not in job.nodes or job.state not in ("RUNNING", "SUSPENDED"):
            continue
        wants_requeue, wants_signal = asks(job.comment)
        text = f"node {node} is being drained: {reason}"
        if care.notify:
            steps.append(JobStep(job, Step.NOTIFY, text))
        signal = care.signal == "always" or (care.signal == "asked" and bool(wants_signal))
        if signal:
            name = wants_signal if wants_signal not in ("", "default") else care.signal_name
            steps.append(JobStep(job, Step.SIGNAL, text, name))
        if care.requeue == "asked" and wants_requeue and severity >= care.severity_min:
            wait = care.checkpoint_seconds if signal else 0.0
            steps.append(JobStep(job, Step.REQUEUE, text, after_seconds=wait))
        if care.note and len(steps) and steps[-1].job is job:
            steps.append(JobStep(job, Step.NOTE, f"tocsin: {text}"))
    return steps
