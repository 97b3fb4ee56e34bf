"""Which GPUs a job holds, as far as one reading of Slurm tells.

Slurm tells cheaply how many GPUs of a node are held, and by which jobs, but not which ones are
whose: that takes a request a job. A job that is alone on its nodes holds what is held there. Of a
node that jobs share only the number is told, where the job asked by the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from collectors.slurm.nodes import NodeState
from collectors.slurm.reader import Job, jobs_by_node


@dataclass(frozen=True, slots=True)
class Held:
    """A running job: the GPUs that it holds on each node (0: not known), and where it is alone."""

    job: Job
    gpus: Mapping[str, int]
    alone: frozenset[str]

    @property
    def total(self) -> int:
        """GPUs in all, as far as known."""
        return sum(self.gpus.values())

    @property
    def whole(self) -> bool:
        """Whether the number is known on each of its nodes."""
        return bool(self.gpus) and all(self.gpus.values())


def held(jobs: Iterable[Job], nodes: Mapping[str, NodeState]) -> dict[str, Held]:
    """What each running job holds, by the key that people type. Jobs without GPUs are left out."""
    running = [one for one in jobs if one.state == "RUNNING"]
    sharers = jobs_by_node(running)
    found: dict[str, Held] = {}
    for job in running:
        known = [name for name in job.nodes if name in nodes]
        alone = frozenset(name for name in known if len(sharers[name]) == 1)
        gpus = {
            name: nodes[name].gpus_allocated if name in alone else job.gpus_per_node
            for name in known
            if nodes[name].gpus_allocated
        }
        if gpus:
            found[job.key] = Held(job, MappingProxyType(gpus), alone)
    return found
