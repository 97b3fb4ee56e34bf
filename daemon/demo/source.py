"""The head's ``slurm`` source over a Slurm in memory: the real source, another reader."""

from __future__ import annotations

from collections.abc import Iterable
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

    def __init__(self, slurm: SimulatedSlurm) -> None:
        super().__init__(Tools(), Runner())
        self._slurm = slurm

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
        """Nothing more than the nodes say."""
        return {}


def simulated_source(slurm: SimulatedSlurm, period_seconds: float, folder: Path) -> SlurmSource:
    """The source that the head polls."""
    folder.mkdir(parents=True, exist_ok=True)
    options = Options(period_seconds=period_seconds, deadline_seconds=600.0, jobs=False)
    source = SlurmSource(options, Context("", folder))
    source.reader = SimulatedReader(slurm)
    return source
