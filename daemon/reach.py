"""All with which a head reaches into Slurm, behind one fence where two heads share a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collectors.command import Runner
from collectors.sample import Context
from collectors.slurm.reader import SlurmReader, Tools
from collectors.slurm.source import SlurmSource
from daemon.beside import BesideTools
from daemon.config import Config
from daemon.drains.tend import DoesJobSteps
from daemon.policy.decisions import Mode
from daemon.slurm.adapter import SlurmAdapter
from daemon.slurm.choose import choose
from daemon.slurm.fenced import Fence, FencedAdapter, FencedJobTools, FencedProving
from daemon.slurm.idling import IdleSlurm
from daemon.slurm.jobs import JobTools
from daemon.slurm.mining import Accounting
from daemon.slurm.proving import ProofTools, Proving
from daemon.slurm.reading import AdapterReader
from daemon.slurm.reboot import RebootSlurm
from daemon.slurm.soft import SoftSlurm


@dataclass(frozen=True, slots=True)
class Reach:
    """The adapter with the reason why it was chosen, and what proofs and care for jobs need.

    ``prover`` and ``beside`` (soft steps, reboots, probes of idle nodes) are None in shadow mode,
    where no job of ours is ever submitted and nothing is written. ``accounting`` only reads.
    """

    adapter: SlurmAdapter
    why: str
    prover: Proving | None
    job_tools: DoesJobSteps
    accounting: Accounting
    beside: BesideTools | None = None


def make_reach(config: Config, fence: Fence | None = None) -> Reach:
    """What ``config`` asks for. Asks Slurm nothing. Raises ValueError where it cannot be."""
    adapter, why = choose(config.slurm, Runner())
    job_tools: DoesJobSteps = JobTools(config.slurm, Runner())
    prover: Proving | None = None
    beside: BesideTools | None = None
    if config.mode is not Mode.SHADOW:
        prover = ProofTools(config.policy.proof, config.slurm, Runner())
        free = fence or _free
        beside = BesideTools(
            SoftSlurm(config.slurm, Runner(), free),
            RebootSlurm(config.slurm, Runner(), free),
            IdleSlurm(config.policy.idle, config.policy.proof, config.slurm, Runner(), free),
        )
    if fence is not None:
        adapter = FencedAdapter(adapter, fence)
        job_tools = FencedJobTools(job_tools, fence)
        prover = None if prover is None else FencedProving(prover, fence)
    accounting = Accounting(config.slurm, Runner())
    return Reach(adapter, why, prover, job_tools, accounting, beside)


def _free() -> str:
    return ""


def make_slurm_source(config: Config, state_dir: Path) -> SlurmSource:
    """The source that reads node states and jobs: the same way as the adapter writes."""
    folder = state_dir / "slurm"
    folder.mkdir(parents=True, exist_ok=True)
    adapter, _ = choose(config.slurm, Runner())
    reader = None
    if adapter.name == "cli":
        adapter.close()  # the source has the commands at hand itself
    else:
        slurm = config.slurm
        reader = AdapterReader(adapter, SlurmReader(Tools(slurm.conf, slurm.binaries), Runner()))
    return SlurmSource(config.slurm, Context("", folder), reader=reader)
