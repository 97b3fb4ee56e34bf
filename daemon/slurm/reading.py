"""Reads nodes for the ``slurm`` source through an adapter: as it writes, so it reads."""

from __future__ import annotations

from collections.abc import Iterable

from collectors.sample import Problem
from collectors.slurm.faults import MISSING, SlurmTrouble
from collectors.slurm.nodes import Nodes
from collectors.slurm.reader import Job, SlurmReader
from daemon.slurm.adapter import SlurmAdapter, SlurmError


class AdapterReader:
    """What ``collectors.slurm.reader.SlurmReader`` does, by an adapter of its own.

    The adapter's own deadline holds. Jobs are read by ``commands`` all the same, where they are
    here. Not for use from two threads at once.
    """

    def __init__(self, adapter: SlurmAdapter, commands: SlurmReader) -> None:
        self._adapter = adapter
        self._commands = commands
        self.reads_total = 0

    def nodes(
        self, names: Iterable[str] | None = None, deadline_seconds: float = 10.0
    ) -> tuple[Nodes, list[Problem]]:
        """All nodes, or those of ``names`` that exist. Raises SlurmTrouble."""
        del deadline_seconds
        self.reads_total += 1
        try:
            nodes = self._adapter.nodes(names)
        except SlurmError as error:
            raise SlurmTrouble(error.kind, str(error)) from error
        if not nodes and names is None:
            raise SlurmTrouble("garbage", f"{self._adapter.name} gives no nodes")
        return nodes, []

    def jobs(self, deadline_seconds: float = 10.0) -> dict[str, Job]:
        """By Slurm's own commands. Raises SlurmTrouble, which says what to do without them."""
        try:
            return self._commands.jobs(deadline_seconds)
        except SlurmTrouble as error:
            if error.kind != MISSING:
                raise
            words = "install Slurm's commands, or set slurm.jobs = false"
            name = self._adapter.name
            raise SlurmTrouble(MISSING, f"{name} reads no jobs: {words} ({error})") from error

    def close(self) -> None:
        """Lets the adapter go."""
        self._adapter.close()
