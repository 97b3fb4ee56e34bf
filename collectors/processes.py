"""What the kernel says of one process, and the record of a child that would not end.

A process in state D waits in the kernel and takes no signal, SIGKILL included, until that wait
is over (proc(5); wait channel: Documentation/filesystems/proc.rst, ``/proc/PID/wchan``). Such a
child can only be left alone, named and counted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Stuck:
    """A child that outlived SIGKILL: who it is, since when, and what it waits for.

    ``state`` is the letter of proc(5) (D: uninterruptible wait), ``wait_channel`` the kernel
    function that it sleeps in, empty where the kernel does not tell.
    """

    kind: str
    pid: int
    age_seconds: float
    state: str = ""
    wait_channel: str = ""

    def words(self) -> str:
        """One line for people: what is stuck, for how long, and where.

        >>> Stuck("nvidia-smi", 12, 65.2, "D", "os_acquire_mutex").words()
        'nvidia-smi (pid 12) is hung for 65 s in state D at os_acquire_mutex'
        """
        where = f" at {self.wait_channel}" if self.wait_channel else ""
        state = f" in state {self.state}" if self.state else ""
        return f"{self.kind} (pid {self.pid}) is hung for {self.age_seconds:.0f} s{state}{where}"


def state_of(pid: int, proc: Path = PROC) -> str:
    """The state letter of ``pid`` (R, S, D, Z, T ...), or '' when there is no such process.

    With several threads, D if any of them is in D: one is enough to keep a process alive.
    """
    main = _state(proc / str(pid) / "stat")
    if main in ("", "D", "Z", "X"):
        return main
    try:
        threads = sorted((proc / str(pid) / "task").iterdir())
    except OSError:
        return main
    return "D" if any(_state(one / "stat") == "D" for one in threads[:256]) else main


def wait_channel_of(pid: int, proc: Path = PROC) -> str:
    """The kernel function in which ``pid``, or the first of its threads in D, sleeps."""
    folder = proc / str(pid)
    if _state(folder / "stat") != "D":
        with contextlib.suppress(OSError):
            for one in sorted((folder / "task").iterdir())[:256]:
                if _state(one / "stat") == "D":
                    folder = one
                    break
    try:
        word = (folder / "wchan").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
    return "" if word == "0" else word[:80]


def look(kind: str, pid: int, age_seconds: float, proc: Path = PROC) -> Stuck:
    """The Stuck record of a child that is alive now."""
    return Stuck(kind, pid, age_seconds, state_of(pid, proc), wait_channel_of(pid, proc))


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signals the whole process group that ``process`` leads.

    Only for a child started in a session of its own and not yet reaped: until then the kernel
    cannot give its number to another group.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the child has ended, without reaping it (so that its group stays its own)."""
    if process.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:  # reaped elsewhere, or SIGCHLD is ignored
        return True


def reap(process: subprocess.Popen[bytes]) -> bool:
    """Kills what is left of the group of an ended child and reaps the child.

    False when the child lives, or something of its group lives on although killed.
    """
    if not has_ended(process):
        return False
    signal_group(process, signal.SIGKILL)
    process.poll()
    return not group_exists(process.pid)


def group_exists(group: int) -> bool:
    """Whether any process, a zombie too, belongs to the process group."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def living_member(group: int, proc: Path = PROC) -> int:
    """The pid of a process of the group that is no zombie, or 0. Reads all of /proc."""
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        fields = _fields(folder / "stat")
        if len(fields) > 2 and fields[2] == b"%d" % group and fields[0] not in (b"Z", b"X"):
            return int(folder.name)
    return 0


def started_ticks(pid: int, proc: Path = PROC) -> int:
    """When ``pid`` was started, in clock ticks after boot; 0 when it is gone or a zombie.

    A pid alone can be another process by now; a pid with its start time cannot.
    """
    fields = _fields(proc / str(pid) / "stat")
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return 0
    return int(fields[19])


def _state(stat: Path) -> str:
    fields = _fields(stat)
    return fields[0].decode("ascii", "replace") if fields else ""


def _fields(stat: Path) -> list[bytes]:
    """The fields of proc(5) ``stat`` from the state on: [0] state, [2] group, [19] start."""
    try:
        text = stat.read_bytes()
    except OSError:
        return []
    # The command name stands in parentheses and may itself hold blanks and parentheses.
    return text.rpartition(b")")[2].split()
