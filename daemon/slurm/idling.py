"""What a probe of an idle node needs of Slurm: who waits, and one short job of low priority."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from collectors.command import Runner
from collectors.slurm.hostlist import valid_name
from collectors.slurm.source import Options
from daemon.proofs.idle import IdleOptions, Pending
from daemon.proofs.proof import Probe, ProofOptions
from daemon.slurm.commands import Commands, error_of, open_fence
from daemon.slurm.probe import script
from daemon.slurm.proving import ProofJob, ProofTools

# Squeue tells each waiting job in one line, an array in one: so many bytes are a full queue.
QUEUE_LIMIT_BYTES = 64 * 1024 * 1024
_JOB_NAME = re.compile(r"tocsin-idle-\d{1,12}")


class IdleTools(Protocol):
    """All calls block and end by a deadline; they raise SlurmUnavailable where no answer came
    (a write may have happened then) and SlurmRefused where Slurm said no.
    """

    def pending(self) -> tuple[Pending, ...]:
        """The jobs of others that wait, all of them."""
        ...

    def submit(self, job_name: str, node: str, partition: str, probes: Mapping[str, Probe]) -> None:
        """Submits the probe's job. Slurm drops it by itself when it cannot start soon."""
        ...

    def find_job(self, job_name: str) -> ProofJob | None:
        """See slurm.proving.Proving."""
        ...

    def cancel(self, job_id: str) -> None:
        """See slurm.proving.Proving."""
        ...


class IdleSlurm:
    """``IdleTools`` through Slurm's own commands. ``fence`` answers why nothing may be written."""

    def __init__(
        self,
        idle: IdleOptions,
        proof: ProofOptions,
        options: Options | None = None,
        runner: Runner | None = None,
        fence: Callable[[], str] = open_fence,
    ) -> None:
        runner = runner or Runner()
        self._idle = idle
        self._proof = proof
        self._commands = Commands("slurm-idle", options, runner, fence)
        self._jobs = ProofTools(proof, options, runner)

    def pending(self) -> tuple[Pending, ...]:
        """See IdleTools."""
        result = self._commands.run(
            "squeue", "--noheader", "--all", "--states=PENDING", "--format=%P|%r|%j",
            output_bytes=QUEUE_LIMIT_BYTES,
        )  # fmt: skip
        if not result.ok:
            raise error_of(result)
        return parse_pending(result.text())

    def submit(self, job_name: str, node: str, partition: str, probes: Mapping[str, Probe]) -> None:
        """See IdleTools."""
        self._commands.check_fence()
        if not _JOB_NAME.fullmatch(job_name) or not valid_name(node):
            raise ValueError(f"no job or node of ours: {job_name!r} {node!r}")
        minutes = math.ceil(self._idle.job_seconds / 60)
        chosen = [
            ("partition", self._idle.partition or partition), ("account", self._idle.account),
            ("qos", self._idle.qos),
        ]  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="tocsin-idle-") as folder:
            file = Path(folder) / "probe.py"
            file.write_text(script(probes, self._proof.python))
            result = self._commands.run(
                "sbatch", "--parsable", "--no-requeue", "--exclusive", "--nodes=1",
                f"--nodelist={node}", f"--job-name={job_name}", f"--nice={self._idle.nice}",
                f"--time={minutes}", f"--deadline=now+{minutes + 2}minutes", "--output=/dev/null",
                "--chdir=/", "--export=PATH,SLURM_CONF",
                *(f"--{name}={value}" for name, value in chosen if value), str(file),
            )  # fmt: skip
        if not result.ok:
            raise error_of(result)

    def find_job(self, job_name: str) -> ProofJob | None:
        """See IdleTools."""
        return self._jobs.find_job(job_name)

    def cancel(self, job_id: str) -> None:
        """See IdleTools."""
        self._commands.check_fence()
        self._jobs.cancel(job_id)


def parse_pending(text: str) -> tuple[Pending, ...]:
    """squeue's lines; one that cannot be read counts as a job that waits everywhere it names."""
    found = []
    for line in text.splitlines():
        partitions, _, rest = line.strip().partition("|")
        reason, _, name = rest.partition("|")
        if partitions and not _JOB_NAME.fullmatch(name.strip()):
            found.append(Pending(tuple(partitions.split(",")), reason.strip("() ")))
    return tuple(found)
