"""What a proof needs of Slurm beside drain and undrain: a reservation of its own, and one job.

The reservation holds one node for this user alone (flags MAINT and IGNORE_JOBS, measured on
22.05): a node that is undrained inside it runs no job but ours. It has no end of its own, so
that a head that is away never opens a node by waiting.
"""

from __future__ import annotations

import os
import pwd
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from collectors.command import Runner
from collectors.slurm.hostlist import HostlistError, expand
from collectors.slurm.source import Options
from daemon.proofs.proof import Probe, ProofOptions
from daemon.slurm.adapter import SlurmUnavailable
from daemon.slurm.commands import Commands, error_of, node_name
from daemon.slurm.probe import script

_NAME = re.compile(r"tocsin_[0-9a-f]{8}")
# States in which a job has ended (squeue(1), "JOB STATE CODES").
ENDED = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL",
        "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT", "REVOKED",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation as Slurm shows it."""

    name: str
    nodes: tuple[str, ...]
    users: tuple[str, ...]
    active: bool
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ProofJob:
    """A proof's job as Slurm shows it. ``comment`` holds its result."""

    id: str
    state: str
    comment: str = ""

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self.state in ENDED


class Proving(Protocol):
    """All calls block and end by a deadline; they raise SlurmUnavailable where no answer came
    (a write may have happened then) and SlurmRefused where Slurm said no.
    """

    def reserved_for_us(self, name: str, node: str) -> bool | None:
        """Whether ``name`` is active and holds ``node`` for us alone; None: no such one."""
        ...

    def reserve(self, name: str, node: str) -> None:
        """Makes the reservation."""
        ...

    def release(self, name: str) -> None:
        """Deletes it. The node is open to users from here on, unless it is drained."""
        ...

    def find_job(self, job_name: str) -> ProofJob | None:
        """The newest job of ours of that name, ended ones too, as long as Slurm keeps it."""
        ...

    def submit(
        self, job_name: str, reservation: str, node: str, partition: str,
        probes: Mapping[str, Probe],
    ) -> None:  # fmt: skip
        """Submits the proof's job."""
        ...

    def cancel(self, job_id: str) -> None:
        """Ends a job of ours, by its own number."""
        ...


class ProofTools:
    """``Proving`` through Slurm's own commands."""

    def __init__(
        self, proof: ProofOptions, options: Options | None = None, runner: Runner | None = None
    ) -> None:
        self._proof = proof
        self._commands = Commands("slurm-proof", options, runner)
        self._user = pwd.getpwuid(os.geteuid()).pw_name

    def reserved_for_us(self, name: str, node: str) -> bool | None:
        """See Proving."""
        result = self._commands.run("scontrol", "--oneliner", "show", "reservation", _checked(name))
        said = result.text() + result.stderr.decode("utf-8", "replace")
        if not result.ok:
            if result.status == "ended" and "not found" in said:
                return None
            raise error_of(result)
        found = parse_reservation(said)
        if found is None or found.name != name:
            raise SlurmUnavailable(f"no reservation in the answer: {said[:200]}", "garbage")
        ours = found.nodes == (node,) and found.users == (self._user,)
        return ours and found.active and {"MAINT", "IGNORE_JOBS"} <= found.flags

    def reserve(self, name: str, node: str) -> None:
        """See Proving."""
        self._commands.must(
            "scontrol", "create", "reservation", f"ReservationName={_checked(name)}",
            "StartTime=now", "Duration=infinite", f"Users={self._user}",
            f"Nodes={node_name(node)}", "Flags=MAINT,IGNORE_JOBS",
        )  # fmt: skip

    def release(self, name: str) -> None:
        """See Proving."""
        result = self._commands.run("scontrol", "delete", f"ReservationName={_checked(name)}")
        said = result.stderr.decode("utf-8", "replace")
        if not result.ok and not no_such_reservation(said):
            raise error_of(result)

    def find_job(self, job_name: str) -> ProofJob | None:
        """See Proving."""
        result = self._commands.run(
            "squeue", "--noheader", "--all", "--states=all", f"--user={self._user}",
            f"--name={job_name}", "--format=%A|%T|%j|%k",
        )  # fmt: skip
        if not result.ok:
            raise error_of(result)
        found: dict[int, ProofJob] = {}
        for line in result.text().splitlines():
            parts = line.strip().split("|", 3)
            if len(parts) == 4 and parts[0].isdecimal() and parts[2] == job_name:
                found[int(parts[0])] = ProofJob(parts[0], parts[1], parts[3][:2000])
        return found[max(found)] if found else None

    def submit(
        self, job_name: str, reservation: str, node: str, partition: str,
        probes: Mapping[str, Probe],
    ) -> None:  # fmt: skip
        """See Proving."""
        proof = self._proof
        minutes = int(sum(probe.deadline_seconds for probe in probes.values()) / 60) + 2
        chosen = [("partition", proof.partition or partition), ("account", proof.account),
                  ("qos", proof.qos)]  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="tocsin-proof-") as folder:
            file = Path(folder) / "proof.py"
            file.write_text(script(probes, proof.python))
            self._commands.must(
                "sbatch", "--parsable", "--no-requeue", "--exclusive", "--nodes=1",
                f"--nodelist={node_name(node)}", f"--reservation={_checked(reservation)}",
                f"--job-name={job_name}", f"--time={minutes}", "--output=/dev/null",
                "--chdir=/", "--export=PATH,SLURM_CONF",
                *(f"--{name}={value}" for name, value in chosen if value), str(file),
            )  # fmt: skip

    def cancel(self, job_id: str) -> None:
        """See Proving."""
        if not job_id.isdecimal():
            raise ValueError(f"no job number: {job_id!r}")
        self._commands.must("scancel", job_id)


def no_such_reservation(said: str) -> bool:
    """Whether scontrol says that the reservation to be deleted is gone (22.05 to 26.05)."""
    words = ("not found", "Invalid reservation name", "Requested reservation is invalid")
    return any(one in said for one in words)


def parse_reservation(text: str) -> Reservation | None:
    """One line of ``scontrol -o show reservation``."""
    told = dict(re.findall(r"(\w+)=(\S*)", text))
    if "ReservationName" not in told:
        return None
    try:
        nodes = tuple(expand(told.get("Nodes", "")))
    except HostlistError:
        nodes = ()
    users = tuple(one for one in told.get("Users", "").split(",") if one and one != "(null)")
    if told.get("Accounts", "(null)") != "(null)" or told.get("Groups", "(null)") != "(null)":
        users = (*users, "others")
    flags = frozenset(told.get("Flags", "").split(","))
    return Reservation(told["ReservationName"], nodes, users, told.get("State") == "ACTIVE", flags)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"no reservation of ours: {name!r}")
    return name
