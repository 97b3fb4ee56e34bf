"""The head's ``slurm`` source over a Slurm in memory: the real source, another reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from collectors.command import Runner
from collectors.sample import Context, Problem
from collectors.slurm.faults import STOPPED, SlurmTrouble
from collectors.slurm.nodes import Nodes
from collectors.slurm.reader import Job, SlurmReader, Tools
from collectors.slurm.source import Options, SlurmSource
from daemon.slurm.adapter import SlurmUnavailable
from daemon.slurm.simulated import SimulatedSlurm


class SimulatedReader(SlurmReader):
    """Reads a SimulatedSlurm. Jobs stand in its nodes already."""

    def __init__(self, slurm: SimulatedSlurm, jobs: Callable[[], dict[str, Job]] = dict) -> None:
        super().__init__(Tools(), Runner())
        self._slurm = slurm
        self._told = jobs

    def nodes(
        self, names: Iterable[str] | None = None, deadline_seconds: float = 10.0
    ) -> tuple[Nodes, list[Problem]]:
        """All nodes, or those of ``names``; SlurmTrouble while it is away."""
        self.reads_total += 1
        try:
            return self._slurm.nodes(names), []
        except SlurmUnavailable as error:
            raise SlurmTrouble(STOPPED, str(error)) from error

    def jobs(self, deadline_seconds: float = 10.0) -> dict[str, Job]:
        """What the simulated cluster says of them; nothing more than the nodes say without it."""
        return self._told()


def simulated_source(
    slurm: SimulatedSlurm,
    period_seconds: float,
    folder: Path,
    jobs: Callable[[], dict[str, Job]] | None = None,
) -> SlurmSource:
    """The source that the head polls. ``jobs`` tells of the jobs that run, by id."""
    folder.mkdir(parents=True, exist_ok=True)
    options = Options(period_seconds=period_seconds, deadline_seconds=600.0, jobs=jobs is not None)
    source = SlurmSource(options, Context("", folder))
    source.reader = SimulatedReader(slurm, jobs or dict)
    return source
