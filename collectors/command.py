"""Runs outside programs that may be slow, flood us, or never end.

Every program runs without a shell, in a session of its own, under a deadline and with bounded
output. At the deadline its whole process group gets SIGTERM, then SIGKILL. A child that outlives
SIGKILL (state D: it waits in the kernel, often in a driver) is given up, counted and named, and
no second program of the same kind is started while it lives: a hung driver must not collect
processes. Whatever happens is answered as data (:class:`Result`), never as an exception.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from collectors.pipes import Talk
from collectors.processes import (
    PROC,
    Stuck,
    living_member,
    look,
    reap,
    signal_group,
    started_ticks,
)
from collectors.sample import SourceUnavailable, clip

Status = Literal["ended", "timeout", "flood", "missing", "refused", "stuck"]

# Between fork and exec the kernel suspends the caller, and a program that lies on a hung network
# file system does not get past exec. So the program is looked up and executed by env(1), which is
# local: what hangs then is the child, which a deadline can end, not this process.
LAUNCHER = ("/usr/bin/env",)
ENV_SPEAKS = (b"/usr/bin/env:", b"env:")  # how it begins what it says of itself
NOT_FOUND_CODE = 127  # env's exit code when there is no such program
NOT_RUNNABLE_CODE = 126

LEFT_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class _Held:
    """A child given up: the process that leads its group, and the member that would not end."""

    process: subprocess.Popen[bytes]
    pid: int
    started_ticks: int
    begin: float

    def lives(self, proc: Path) -> bool:
        """Whether it is still there. Reaps the leader when that has ended."""
        if not reap(self.process) and self.process.returncode is None:
            return True
        return self.started_ticks > 0 and started_ticks(self.pid, proc) == self.started_ticks


@dataclass(frozen=True, slots=True)
class Result:
    """How one run went.

    ``status`` is ``ended`` (it ended by itself: see ``returncode``, negative for a signal),
    ``timeout`` (ended by us at the deadline), ``flood`` (more output than allowed; what came
    before is kept), ``missing`` or ``refused`` (could not be started) or ``stuck`` (it did not
    end even on SIGKILL, or an earlier one of its kind still lives and nothing was started).
    ``fault`` says so in words, empty when it ended with exit code 0.
    """

    argv: tuple[str, ...]
    status: Status
    returncode: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    duration_seconds: float = 0.0
    fault: str = ""
    stuck: Stuck | None = None

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.status == "ended" and self.returncode == 0

    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 become replacement characters."""
        return self.stdout.decode("utf-8", "replace")

    def need(self) -> str:
        """Standard output of a run that went well; else raises SourceUnavailable with why."""
        if not self.ok:
            raise SourceUnavailable(self.fault)
        return self.text()


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how much. ``term_seconds`` is the time between SIGTERM and SIGKILL,
    ``kill_seconds`` how long a killed child is waited for before it is given up; a run takes at
    most the deadline and these two. ``output_bytes`` bounds each of stdout and stderr.
    """

    term_seconds: float = 1.0
    kill_seconds: float = 1.0
    output_bytes: int = 16 * 1024 * 1024


class Runner:
    """Runs programs and remembers those that would not end. Safe for use from many threads."""

    def __init__(
        self,
        limits: Limits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        proc: Path = PROC,
    ) -> None:
        self._limits = limits or Limits()
        self._monotonic = monotonic
        self._proc = proc
        self._lock = threading.Lock()
        self._stuck: dict[str, list[_Held]] = {}
        self._given_up_total = 0

    def within(self, seconds: float) -> float:
        """The deadline with which a run, its end by force included, takes ``seconds`` at most."""
        spare = self._limits.term_seconds + self._limits.kill_seconds
        return max(seconds - spare, seconds / 2)

    @property
    def given_up_total(self) -> int:
        """How many children were given up since the start."""
        return self._given_up_total

    def stuck(self) -> tuple[Stuck, ...]:
        """The children that still live although they were killed, oldest first."""
        with self._lock:
            self._sweep()
            held = [
                (one.begin, kind, one.pid) for kind, all_ in self._stuck.items() for one in all_
            ]
        now = self._monotonic()
        return tuple(look(kind, pid, now - begin, self._proc) for begin, kind, pid in sorted(held))

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline_seconds: float,
        kind: str = "",
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        output_bytes: int | None = None,
    ) -> Result:
        """Runs ``argv`` and waits for it, never longer than deadline + term + kill seconds.

        ``kind`` (default: the program's name) is what at most one stuck child may exist of.
        ``env`` is added to this process's environment, in which LC_ALL=C is set, so that texts
        and numbers come in the one form that parsers know. A secret belongs in ``env`` or
        ``stdin``, never in ``argv``, which every user of the machine can read.
        """
        name = kind or argv[0].rpartition("/")[2]
        blocked = self._blocked(name)
        if blocked is not None:
            fault = f"{blocked.words()}; no second one is started"
            return Result(tuple(argv), "stuck", fault=fault, stuck=blocked)
        begin = self._monotonic()
        try:
            process = subprocess.Popen(
                [*LAUNCHER, *argv],
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, "LC_ALL": "C", **(env or {})},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return self._not_started(argv, name, error)
        limit = self._limits.output_bytes if output_bytes is None else output_bytes
        talk = Talk(process, stdin, limit, self._monotonic)
        try:
            return self._finish(tuple(argv), name, process, talk, begin, deadline_seconds)
        finally:
            talk.close()

    # ---- inside ----------------------------------------------------------------------------

    def _finish(
        self,
        argv: tuple[str, ...],
        name: str,
        process: subprocess.Popen[bytes],
        talk: Talk,
        begin: float,
        deadline_seconds: float,
    ) -> Result:
        why = talk.until(begin + deadline_seconds)
        gone = why == "ended"
        if not gone:
            signal_group(process, signal.SIGTERM)
            gone = talk.until(self._monotonic() + self._limits.term_seconds, drop=True) == "ended"
        end = self._monotonic() + self._limits.kill_seconds
        if not gone:
            signal_group(process, signal.SIGKILL)
            gone = talk.until(end, drop=True) == "ended"
        left = self._left_alive(process, end) if gone else process.pid
        stuck = self._give_up(name, process, left, begin) if left else None
        duration = self._monotonic() - begin
        status: Status = "ended"
        if stuck is not None:
            status = "stuck"
            fault = f"{stuck.words()}, does not end on SIGKILL and is given up"
        elif why == "flood" or talk.flooded:
            status = "flood"
            fault = f"{name} printed more than {talk.limit_bytes} bytes and was ended"
        elif why == "timeout":
            status = "timeout"
            fault = f"{name} did not end within {deadline_seconds:g} s and was ended"
        elif talk.stderr.startswith(ENV_SPEAKS) and process.returncode == NOT_FOUND_CODE:
            status = "missing"
            fault = f"{name} was not found: is it installed, and in PATH?"
        elif talk.stderr.startswith(ENV_SPEAKS) and process.returncode == NOT_RUNNABLE_CODE:
            status = "refused"
            said = talk.stderr.decode("utf-8", "replace").rpartition(": ")[2]
            fault = f"{name} could not be started: {clip(said, 200)}"
        else:
            fault = _exit_words(name, process.returncode, talk.stdout, talk.stderr)
        return Result(
            argv,
            status,
            process.returncode,
            bytes(talk.stdout),
            bytes(talk.stderr),
            duration,
            fault,
            stuck,
        )

    def _blocked(self, kind: str) -> Stuck | None:
        with self._lock:
            self._sweep()
            held = self._stuck.get(kind)
            if not held:
                return None
            first = held[0]
        return look(kind, first.pid, self._monotonic() - first.begin, self._proc)

    def _left_alive(self, process: subprocess.Popen[bytes], end: float) -> int:
        """Ends what an ended child left behind; the pid of what will not end, or 0."""
        while not reap(process):
            left = living_member(process.pid, self._proc)
            if not left or self._monotonic() >= end:
                return left
            time.sleep(LEFT_POLL_SECONDS)
        return 0

    def _give_up(
        self, kind: str, process: subprocess.Popen[bytes], pid: int, begin: float
    ) -> Stuck:
        held = _Held(process, pid, started_ticks(pid, self._proc), begin)
        with self._lock:
            self._given_up_total += 1
            self._stuck.setdefault(kind, []).append(held)
        return look(kind, pid, self._monotonic() - begin, self._proc)

    def _sweep(self) -> None:
        """Forgets the given-up children that have ended at last. Called with the lock held."""
        for kind, held in list(self._stuck.items()):
            left = [one for one in held if one.lives(self._proc)]
            if left:
                self._stuck[kind] = left
            else:
                del self._stuck[kind]

    def _not_started(self, argv: Sequence[str], name: str, error: Exception) -> Result:
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Result(tuple(argv), "refused", fault=f"{name} could not be started: {words}")


def _exit_words(name: str, returncode: int | None, stdout: bytearray, stderr: bytearray) -> str:
    if returncode == 0:
        return ""
    said = clip(bytes(stderr or stdout)[:4000].decode("utf-8", "replace"), 300)
    if returncode is None or returncode < 0:
        try:
            how = f"was ended by {signal.Signals(-(returncode or 0)).name}"
        except ValueError:
            how = f"was ended by signal {-(returncode or 0)}"
    else:
        how = f"ended with exit code {returncode}"
    return f"{name} {how}" + (f": {said}" if said else "")
