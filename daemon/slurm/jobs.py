"""Does the steps of ``daemon.drains.jobcare`` through Slurm's own commands, one job at a time.

Jobs are named by their own number, never by a node list: ``scancel --nodelist`` and its like
would reach jobs of other nodes. A task of an array is named as one (``12_3``): the task that was
started last keeps the number of the array, and that number alone means all tasks.
"""

from __future__ import annotations

import re

from collectors.command import Result, Runner
from collectors.slurm.reader import Tools, trouble
from collectors.slurm.source import Options
from daemon.drains.jobcare import JobStep, Step
from daemon.slurm.adapter import SlurmUnavailable, plain_text

TEXT_LIMIT_CHARACTERS = 500
_TASK = re.compile(r"\d{1,10}_\d{1,10}")


class JobTools:
    """``do`` runs one step. Blocks; ends by the deadline of ``options``."""

    def __init__(self, options: Options | None = None, runner: Runner | None = None) -> None:
        options = options or Options()
        self._tools = Tools(options.conf, options.binaries)
        self._runner = runner or Runner()
        self._deadline_seconds = options.deadline_seconds

    def do(self, step: JobStep) -> str:
        """Does ``step``; answers "" or why Slurm refused it. Raises SlurmUnavailable."""
        number = step.job.id
        if not number.isdecimal():
            raise ValueError(f"no job number: {number!r}")
        if _TASK.fullmatch(step.job.key):
            number = step.job.key
        if step.step is Step.REQUEUE:
            # The reading is some seconds old, and Slurm would run a job that has ended since anew.
            shown = self._run(self._tools.command("squeue", "--noheader", "-j", number, "-o", "%T"))
            if shown.ok and shown.text().strip() != "RUNNING":
                return "the job no longer runs"
            if not shown.ok:
                return self._fault(shown)
        result = self._run(self._command(step, number))
        return "" if result.ok else self._fault(result)

    def _run(self, argv: list[str]) -> Result:
        return self._runner.run(
            argv,
            deadline_seconds=self._deadline_seconds,
            kind="slurm-jobs",
            env=self._tools.environment(),
        )

    def _fault(self, result: Result) -> str:
        error = trouble(result)
        if error.kind in ("stopped", "hung", "authentication", "unconfigured", "missing"):
            raise SlurmUnavailable(str(error), error.kind)
        return str(error)

    def _command(self, step: JobStep, number: str) -> list[str]:
        text = plain_text(step.text, TEXT_LIMIT_CHARACTERS)
        if step.step is Step.NOTIFY:
            return self._tools.command("scontrol", "notify", number, text)
        if step.step is Step.SIGNAL:
            # The batch shell and all steps: the script may hold the trap.
            return self._tools.command("scancel", "--full", f"--signal={step.signal}", number)
        if step.step is Step.REQUEUE:
            return self._tools.command("scontrol", "requeue", number)
        return self._tools.command("scontrol", "update", f"JobId={number}", f"AdminComment={text}")
