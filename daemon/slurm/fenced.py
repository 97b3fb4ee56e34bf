"""An adapter behind a fence: nothing is written to Slurm unless this head holds the lease.

The lease is read once before a write begins and once for each node between look and write. What
remains is the moment from there to slurmctld: a head that is frozen in it and wakes up later than
``0.4 * lease seconds`` after could write once. It would still only drain a node without a reason,
or lift a drain that stands word for word in its ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from collectors.slurm.nodes import Nodes, NodeState
from daemon.drains.jobcare import JobStep
from daemon.drains.tend import DoesJobSteps
from daemon.proofs.proof import Probe
from daemon.slurm.adapter import Check, Outcome, SlurmAdapter, SlurmUnavailable
from daemon.slurm.proving import ProofJob, Proving

# Why this head must not write, or empty.
Fence = Callable[[], str]


def _pass(fence: Fence) -> None:
    why = fence()
    if why:
        raise SlurmUnavailable(f"this head does not act: {why}", "standby", not_sent=True)


class FencedAdapter:
    """See the module. Reading is free."""

    def __init__(self, adapter: SlurmAdapter, fence: Fence) -> None:
        self._adapter = adapter
        self._fence = fence
        self.name = adapter.name

    def nodes(self, names: Iterable[str] | None = None) -> Nodes:
        """See adapter.SlurmAdapter."""
        return self._adapter.nodes(names)

    def drain(self, reasons: Mapping[str, str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter."""
        _pass(self._fence)
        return self._adapter.drain(reasons, self._checked(check))

    def undrain(self, names: Iterable[str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter."""
        _pass(self._fence)
        return self._adapter.undrain(names, self._checked(check))

    def comment(self, comments: Mapping[str, str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter."""
        _pass(self._fence)
        return self._adapter.comment(comments, self._checked(check))

    def controller_start_ns(self) -> int:
        """See adapter.SlurmAdapter."""
        return self._adapter.controller_start_ns()

    def topology(self) -> str:
        """See adapter.SlurmAdapter."""
        return self._adapter.topology()

    def describe(self) -> list[str]:
        """See adapter.SlurmAdapter."""
        why = self._fence()
        return [*self._adapter.describe(), f"two heads: {why or 'this one holds the lease'}"]

    def close(self) -> None:
        """See adapter.SlurmAdapter."""
        self._adapter.close()

    def _checked(self, check: Check) -> Check:
        def both(node: NodeState) -> str:
            return self._fence() or check(node)

        return both


class FencedJobTools:
    """The same for what is done for jobs."""

    def __init__(self, tools: DoesJobSteps, fence: Fence) -> None:
        self._tools = tools
        self._fence = fence

    def do(self, step: JobStep) -> str:
        """See DoesJobSteps."""
        _pass(self._fence)
        return self._tools.do(step)


class FencedProving:
    """The same for what a proof writes."""

    def __init__(self, proving: Proving, fence: Fence) -> None:
        self._proving = proving
        self._fence = fence

    def reserved_for_us(self, name: str, node: str) -> bool | None:
        """See Proving."""
        return self._proving.reserved_for_us(name, node)

    def find_job(self, job_name: str) -> ProofJob | None:
        """See Proving."""
        return self._proving.find_job(job_name)

    def reserve(self, name: str, node: str) -> None:
        """See Proving."""
        _pass(self._fence)
        self._proving.reserve(name, node)

    def release(self, name: str) -> None:
        """See Proving."""
        _pass(self._fence)
        self._proving.release(name)

    def submit(
        self, job_name: str, reservation: str, node: str, partition: str,
        probes: Mapping[str, Probe],
    ) -> None:  # fmt: skip
        """See Proving."""
        _pass(self._fence)
        self._proving.submit(job_name, reservation, node, partition, probes)

    def cancel(self, job_id: str) -> None:
        """See Proving."""
        _pass(self._fence)
        self._proving.cancel(job_id)
