"""A Slurm in memory that also knows reservations and the jobs of proofs, for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from daemon.proofs.proof import Probe
from daemon.slurm.adapter import SlurmUnavailable
from daemon.slurm.proving import ProofJob
from daemon.slurm.simulated import SimulatedSlurm


class SimulatedProving:
    """``Proving`` over a SimulatedSlurm. Every job ends at once with ``result``.

    ``write`` is called before and after each write with its name: tests kill the head there.
    """

    def __init__(self, slurm: SimulatedSlurm, write: Callable[[str], None]) -> None:
        self.slurm = slurm
        self.write = write
        self.reservations: dict[str, str] = {}
        self.jobs: dict[str, ProofJob] = {}
        self.result = "tocsin=ok;gemm_flops=1e9"
        self.jobs_run_on: list[str] = []

    def _answer(self) -> None:
        if self.slurm.away:
            raise SlurmUnavailable(self.slurm.away, "stopped")

    def reserved_for_us(self, name: str, node: str) -> bool | None:
        """See Proving."""
        self._answer()
        held = self.reservations.get(name)
        return None if held is None else held == node

    def reserve(self, name: str, node: str) -> None:
        """See Proving."""
        self._answer()
        self.write("before reserve")
        self.reservations[name] = node
        self.write("after reserve")

    def release(self, name: str) -> None:
        """See Proving."""
        self._answer()
        self.write("before release")
        self.reservations.pop(name, None)
        self.write("after release")

    def find_job(self, job_name: str) -> ProofJob | None:
        """See Proving."""
        self._answer()
        return self.jobs.get(job_name)

    def submit(
        self, job_name: str, reservation: str, node: str, partition: str,
        probes: Mapping[str, Probe],
    ) -> None:  # fmt: skip
        """See Proving."""
        self._answer()
        self.write("before submit")
        if self.slurm.nodes()[node].drain:
            state, comment = "PENDING", ""
        else:
            failed = not self.result.startswith("tocsin=ok")
            state, comment = ("FAILED" if failed else "COMPLETED"), self.result
            self.jobs_run_on.append(node)
        self.jobs[job_name] = ProofJob(str(len(self.jobs) + 1), state, comment)
        self.write("after submit")

    def cancel(self, job_id: str) -> None:
        """See Proving."""
        self._answer()
        for name, job in self.jobs.items():
            if job.id == job_id:
                self.jobs[name] = ProofJob(job.id, "CANCELLED", job.comment)
