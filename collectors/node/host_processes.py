"""Processes that should not be there: zombies, and those of users outside of any job.

A zombie is dead and was not collected by its parent; many of them tell of a sick daemon. A *stray*
process is a user's that runs outside of the cgroups in which slurmd puts jobs: it was left behind
by a job, or came in beside Slurm, and takes what jobs were given. Where slurmd keeps jobs in no
cgroups it is not known which are stray.

Sources: ``proc(5)``; Slurm's cgroup/v1 and cgroup/v2 plugins (``/slurm/uid_N/job_M``,
``slurmstepd.scope/job_M``).
"""

from __future__ import annotations

import re
from pathlib import Path

PROCESSES_MOST = 65_536
_READ_BYTES = 4_096
_OF_JOB = re.compile(rb"/(?:[\w.-]*slurmstepd\.scope/job_\d|slurm[\w.-]*/uid_\d)")
# Where slurmd's cgroups of jobs stand, if it has any: v2, and two of the controllers of v1.
_TREES = (
    "system.slice/*slurmstepd.scope",
    "*slurmstepd.scope",
    "memory/slurm*",
    "freezer/slurm*",
)


def counted(root: Path, uid_least: int) -> tuple[int, int | None] | None:
    """(zombies, stray processes) of the machine at ``root``; None where none can be seen.

    Strays are None where jobs are in no cgroups. Users have uids from ``uid_least`` on, but for
    ``nobody`` (65534).
    """
    folder = root / "proc"
    in_cgroups = any(next((root / "sys/fs/cgroup").glob(one), None) for one in _TREES)
    seen = zombies = stray = 0
    try:
        processes = [one for one in folder.iterdir() if one.name.isdigit()]
    except OSError:
        return None
    for process in processes[:PROCESSES_MOST]:
        state = _read(process / "stat").rpartition(b")")[2].split()[:1]
        seen += bool(state)
        if state == [b"Z"]:
            zombies += 1
        elif state and in_cgroups and uid_least <= _owner(process) != 65_534:
            cgroups = _read(process / "cgroup")
            stray += bool(cgroups) and _OF_JOB.search(cgroups) is None
    return (zombies, stray if in_cgroups else None) if seen else None


def _owner(process: Path) -> int:
    try:
        return process.stat().st_uid
    except OSError:
        return -1  # it has ended


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(_READ_BYTES)
    except OSError:
        return b""
