"""Runs one of Slurm's own commands under a deadline, and says what its failure means.

What the tools beside the adapters share: a reboot, a softer step, a proof, a step for a job. Two
kinds of failure are told apart, for everything hangs on it: a *no* of slurmctld (nothing was
done), and a way to it that failed (a write may have been done all the same).
"""

from __future__ import annotations

from collections.abc import Callable

from collectors.command import Result, Runner
from collectors.slurm.faults import AWAY, SlurmTrouble, trouble
from collectors.slurm.hostlist import valid_name
from collectors.slurm.reader import Tools
from collectors.slurm.source import Options
from daemon.slurm.adapter import SlurmRefused, SlurmUnavailable


def open_fence() -> str:
    """The fence of a head that has no other beside it: nothing stands against a write."""
    return ""


class Commands:
    """``kind`` names whose commands these are: one that hangs keeps only its like from running.

    ``fence``: why nothing may be written now, or "". Blocks; ends by the deadline of ``options``.
    """

    def __init__(
        self,
        kind: str,
        options: Options | None = None,
        runner: Runner | None = None,
        fence: Callable[[], str] = open_fence,
    ) -> None:
        options = options or Options()
        self._kind = kind
        self._tools = Tools(options.conf, options.binaries)
        self._runner = runner or Runner()
        self._deadline_seconds = options.deadline_seconds
        self._fence = fence

    def run(self, name: str, *arguments: str, output_bytes: int | None = None) -> Result:
        """How the command went, whatever happened."""
        return self._runner.run(
            self._tools.command(name, *arguments),
            deadline_seconds=self._deadline_seconds,
            kind=self._kind,
            env=self._tools.environment(),
            output_bytes=output_bytes,
        )

    def write(self, name: str, *arguments: str) -> Result:
        """A command that changes something. Raises SlurmUnavailable where this head may not."""
        self.check_fence()
        return self.run(name, *arguments)

    def check_fence(self) -> None:
        """Raises SlurmUnavailable where this head may not write now."""
        why = self._fence()
        if why:
            raise SlurmUnavailable(f"this head does not act: {why}", "standby", not_sent=True)

    def must(self, name: str, *arguments: str) -> Result:
        """``write``, and raises what ``error_of`` says where it did not go well."""
        result = self.write(name, *arguments)
        if not result.ok:
            raise error_of(result)
        return result


def error_of(result: Result) -> SlurmUnavailable | SlurmRefused:
    """What a command of Slurm's that failed means: no answer, or a no."""
    return error_of_trouble(trouble(result))


def error_of_trouble(error: SlurmTrouble) -> SlurmUnavailable | SlurmRefused:
    """The same for what is named already."""
    if error.kind in AWAY:
        return SlurmUnavailable(str(error), error.kind, not_sent=error.not_sent)
    return SlurmRefused(str(error), error.kind, not_sent=True)


def node_name(name: str) -> str:
    """``name``, which is one node's. Raises ValueError where it is not."""
    if not valid_name(name):
        raise ValueError(f"no node name: {name!r}")
    return name
