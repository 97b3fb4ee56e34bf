"""Does the steps of ``daemon.drains.jobcare`` through Slurm's own commands, one job at a time.

Jobs are named by their own number, never by a node list: ``scancel --nodelist`` and its like
would reach jobs of other nodes. A task of an array is named as one (``12_3``): the task that was
started last keeps the number of the array, and that number alone means all tasks.
"""

from __future__ import annotations

import re

from collectors.command import Result, Runner
from collectors.slurm.faults import AWAY, trouble
from collectors.slurm.source import Options
from daemon.drains.jobcare import JobStep, Step
from daemon.slurm.adapter import SlurmUnavailable, plain_text
from daemon.slurm.commands import Commands

TEXT_LIMIT_CHARACTERS = 500
_TASK = re.compile(r"\d{1,10}_\d{1,10}")


class JobTools:
    """``do`` runs one step. Blocks; ends by the deadline of ``options``."""

    def __init__(self, options: Options | None = None, runner: Runner | None = None) -> None:
        self._commands = Commands("slurm-jobs", options, runner)

    def do(self, step: JobStep) -> str:
        """Does ``step``; answers "" or why Slurm refused it. Raises SlurmUnavailable."""
        number = step.job.id
        if not number.isdecimal():
            raise ValueError(f"no job number: {number!r}")
        if _TASK.fullmatch(step.job.key):
            number = step.job.key
        if step.step is Step.REQUEUE:
            # The reading is some seconds old, and Slurm would run a job that has ended since anew.
            shown = self._commands.run("squeue", "--noheader", "-j", number, "-o", "%T")
            if shown.ok and shown.text().strip() != "RUNNING":
                return "the job no longer runs"
            if not shown.ok:
                return _fault(shown, nothing_asked=True)
        result = self._commands.run(*_command(step, number))
        return "" if result.ok else _fault(result)


def _fault(result: Result, nothing_asked: bool = False) -> str:
    error = trouble(result)
    if error.kind in AWAY:
        raise SlurmUnavailable(str(error), error.kind, not_sent=nothing_asked or error.not_sent)
    return str(error)


def _command(step: JobStep, number: str) -> tuple[str, ...]:
    text = plain_text(step.text, TEXT_LIMIT_CHARACTERS)
    if step.step is Step.NOTIFY:
        return ("scontrol", "notify", number, text)
    if step.step is Step.SIGNAL:
        # The batch shell and all steps: the script may hold the trap.
        return ("scancel", "--full", f"--signal={step.signal}", number)
    if step.step is Step.REQUEUE:
        return ("scontrol", "requeue", number)
    return ("scontrol", "update", f"JobId={number}", f"AdminComment={text}")
