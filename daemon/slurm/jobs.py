"""Does the steps of ``daemon.jobcare`` through Slurm's own commands, one job at a time.

Jobs are named by their own number, never by a node list: ``scancel --nodelist`` and its like
would reach jobs of other nodes. An array task has a number of its own while it runs.
"""

from __future__ import annotations

from collectors.command import Runner
from collectors.slurm import Options
from collectors.slurm_reader import Tools, trouble
from daemon.jobcare import JobStep, Step
from daemon.slurm.adapter import SlurmUnavailable, plain_text

TEXT_LIMIT_CHARACTERS = 500


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
        result = self._runner.run(
            self._command(step, number),
            deadline_seconds=self._deadline_seconds,
            kind="slurm-jobs",
            env=self._tools.environment(),
        )
        if result.ok:
            return ""
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
