"""A process of its own for calls that may hang: the outside of it.

A driver's library is called in a fresh interpreter, spoken to in framed JSON over pipes. Every
call has a deadline. A worker that misses it gets SIGTERM, then SIGKILL; one that outlives both
(state D) is given up and named, and no second one is started while it lives. A worker that ended
is started again with back-off, so that no fault makes a storm of processes. The worker ends with
this process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectors.command import LAUNCHER
from collectors.processes import PROC, Stuck, has_ended, look, reap, signal_group
from collectors.sample import SourceUnavailable, clip
from collectors.worker_line import Line
from collectors.worker_serve import frame

POLL_SECONDS = 0.01

# PR_SET_PDEATHSIG follows the thread that forked. All workers are started by this one thread,
# which lives as long as the process.
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="worker-start")


class WorkerHung(SourceUnavailable):
    """The call did not end by its deadline; ``stuck`` is set when the worker did not end either."""

    def __init__(self, text: str, stuck: Stuck | None = None) -> None:
        super().__init__(text)
        self.stuck = stuck


class WorkerSlow(SourceUnavailable):
    """The call goes on beyond its deadline, as it was allowed to; the next call waits for it."""


class WorkerEnded(SourceUnavailable):
    """The worker ended in the middle of the call, or could not be started."""


class WorkerError(SourceUnavailable):
    """The worker is well and answered with an error; ``kind`` is its word for it."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """``term_seconds``: from SIGTERM to SIGKILL; ``kill_seconds``: from there to giving up.

    A call takes at most its deadline and these two. After the n-th failure in a row the next
    start waits ``backoff_seconds`` * 2^(n-1), at most ``backoff_most_seconds``.
    """

    term_seconds: float = 0.5
    kill_seconds: float = 0.5
    backoff_seconds: float = 1.0
    backoff_most_seconds: float = 60.0


class Worker:
    """One worker process of one source. Safe for use from many threads, one call at a time."""

    def __init__(
        self,
        source: str,
        module: str,
        limits: WorkerLimits | None = None,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        monotonic: Callable[[], float] = time.monotonic,
        proc: Path = PROC,
    ) -> None:
        self.source = source
        self.starts_total = 0
        self.given_up_total = 0
        self._module = module
        self._limits = limits or WorkerLimits()
        self._env = dict(env or {})
        self._cwd = cwd
        self._monotonic = monotonic
        self._proc = proc
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._given_up: tuple[subprocess.Popen[bytes], float] | None = None
        self._failures = 0
        self._next_start = float("-inf")
        self._last_fault = ""
        self._number = 0
        self._pending: tuple[float, float] | None = None  # when it began, how long it may take
        self._closed = False

    @property
    def pid(self) -> int:
        """The pid of the running worker, or 0."""
        line = self._line
        return line.process.pid if line is not None else 0

    def stuck(self) -> Stuck | None:
        """The worker that does not end, if there is one now."""
        given_up = self._given_up
        if given_up is None or given_up[0].returncode is not None:
            return None
        process, since = given_up
        return look(f"{self.source} worker", process.pid, self._monotonic() - since, self._proc)

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        deadline_seconds: float,
        on_part: Callable[[Any], None] | None = None,
        grace_seconds: float = 0.0,
    ) -> Any:
        """Calls ``name`` in the worker, starting it if there is none.

        ``on_part`` gets what the call gives bit by bit: after a hang it has had everything that
        came before. A call that is known to be slow at times is not ended at its deadline but
        ``grace_seconds`` after it began: until then calls raise WorkerSlow, and what it answers
        in the end is dropped. Raises WorkerHung, WorkerSlow, WorkerEnded or WorkerError.
        """
        begin = self._monotonic()
        if not self._lock.acquire(timeout=deadline_seconds):
            raise WorkerHung(f"{self.source} worker: the call before this one still runs")
        try:
            line = self._ready(begin)
            self._await_pending(line, begin + deadline_seconds)
            self._number += 1
            message = {"id": self._number, "call": name, "arguments": dict(arguments or {})}
            end = begin + deadline_seconds
            try:
                line.send(frame(message), end)
                answer = self._answer(line, end, on_part)
            except TimeoutError:
                self._pending = (begin, grace_seconds)
                raise self._late(line, begin, deadline_seconds) from None
            except (OSError, EOFError, ValueError) as error:
                raise self._ended(line, error) from None
            self._failures = 0
            if "error" in answer:
                raise WorkerError(str(answer["error"]["kind"]), clip(answer["error"]["text"]))
            return answer.get("done")
        finally:
            self._lock.release()

    def retire(self, fault: str) -> None:
        """Ends a worker that is of no use any more; the next one is started after the back-off."""
        with self._lock:
            line = self._line
            if line is not None:
                self._drop(line)
                self._failed(fault)
                if not self._end(line.process):
                    self._give_up(line.process, self._monotonic())

    def close(self) -> None:
        """Ends the worker. May be called twice."""
        with self._lock:
            self._closed = True
            line, self._line = self._line, None
            if line is not None:
                line.close()  # it ends by itself when its pipe closes
                if not self._wait(line.process, self._limits.term_seconds):
                    self._end(line.process)

    # ---- inside ----------------------------------------------------------------------------

    def _answer(
        self, line: Line, end: float, on_part: Callable[[Any], None] | None
    ) -> dict[str, Any]:
        while True:
            message = line.receive(end)
            if "part" in message and message.get("id") == self._number:
                if on_part is not None:
                    on_part(message["part"])
            elif message.get("id") == self._number:
                return message
            if self._monotonic() >= end:  # it talks and talks
                raise TimeoutError

    def _await_pending(self, line: Line, end: float) -> None:
        """Waits for a slow call of before; its answer is of no use any more."""
        if self._pending is None:
            return
        begin, _ = self._pending
        try:
            self._answer(line, end, None)
        except TimeoutError:
            raise self._late(line, begin, self._monotonic() - begin) from None
        except (OSError, EOFError, ValueError) as error:
            raise self._ended(line, error) from None
        self._pending = None

    def _late(self, line: Line, begin: float, waited_seconds: float) -> SourceUnavailable:
        """A call is not over: within its grace that is told, beyond it the worker is ended."""
        assert self._pending is not None
        now = self._monotonic()
        if now - begin < self._pending[1]:
            found = look(f"{self.source} worker", line.process.pid, now - begin, self._proc)
            where = f" at {found.wait_channel}" if found.wait_channel else ""
            return WorkerSlow(
                f"{self.source} worker (pid {found.pid}) is still at work after "
                f"{found.age_seconds:.0f} s, in state {found.state or '?'}{where}"
            )
        return self._hung(line, waited_seconds, begin)

    def _ready(self, now: float) -> Line:
        if self._closed:
            raise WorkerEnded(f"{self.source} worker: closed")
        if self._given_up is not None:
            if not reap(self._given_up[0]):
                found = self.stuck()
                words = found.words() if found else f"{self.source} worker does not end"
                raise WorkerHung(f"{words}; no second one is started", found)
            self._given_up = None
        if self._line is not None and not has_ended(self._line.process):
            return self._line
        if self._line is not None:  # it ended between two calls
            raise self._ended(self._line, EOFError())
        if now < self._next_start:
            raise WorkerEnded(
                f"{self._last_fault}; {self._failures} in a row, "
                f"next start in {self._next_start - now:.0f} s"
            )
        return self._start()

    def _start(self) -> Line:
        folder = Path(__file__).resolve().parents[1]
        env = {**os.environ, **self._env}
        if folder.name not in {"site-packages", "dist-packages"}:  # run from a checkout
            env["PYTHONPATH"] = os.pathsep.join(
                part for part in (str(folder), env.get("PYTHONPATH", "")) if part
            )
        argv = [*LAUNCHER, sys.executable, "-P", "-m", self._module, str(os.getpid())]
        try:
            process = _SPAWNER.submit(_spawn, argv, env, self._cwd).result()
        except (OSError, RuntimeError) as error:
            self._failed(f"{self.source} worker could not be started: {error}")
            raise WorkerEnded(self._last_fault) from None
        self.starts_total += 1
        self._line = Line(process, self._monotonic)
        return self._line

    def _hung(self, line: Line, deadline_seconds: float, begin: float) -> WorkerHung:
        """Ends a worker that missed its deadline and says what came of it."""
        process = line.process
        before = look(f"{self.source} worker", process.pid, self._monotonic() - begin, self._proc)
        where = f" at {before.wait_channel}" if before.wait_channel else ""
        state = f" in state {before.state}" if before.state else ""
        self._drop(line)
        if self._end(process):
            self._failed(
                f"{self.source} worker (pid {process.pid}) did not answer within "
                f"{deadline_seconds:.3g} s{state}{where} and was ended"
            )
            return WorkerHung(self._last_fault)
        self._give_up(process, begin)
        found = look(f"{self.source} worker", process.pid, self._monotonic() - begin, self._proc)
        self._failed(f"{found.words()} and does not end on SIGKILL")
        return WorkerHung(f"{self._last_fault}; no second one is started", found)

    def _ended(self, line: Line, error: Exception) -> WorkerEnded:
        """Clears up after a worker that ended by itself or spoke nonsense."""
        tail = line.errors()
        self._drop(line)
        process = line.process
        how = f"spoke nonsense ({error})" if isinstance(error, ValueError) else "ended"
        if not self._wait(process, self._limits.term_seconds) and not self._end(process):
            self._give_up(process, self._monotonic())
        if process.returncode is not None and process.returncode < 0:
            with contextlib.suppress(ValueError):
                how += f" by {signal.Signals(-process.returncode).name}"
        elif process.returncode:
            how += f" with exit code {process.returncode}"
        said = clip(tail.strip().rpartition("\n")[2], 300)
        self._failed(f"{self.source} worker {how}" + (f": {said}" if said else ""))
        return WorkerEnded(self._last_fault)

    def _drop(self, line: Line) -> None:
        line.close()
        self._line = None
        self._pending = None

    def _give_up(self, process: subprocess.Popen[bytes], since: float) -> None:
        self._given_up = (process, since)
        self.given_up_total += 1

    def _failed(self, fault: str) -> None:
        self._last_fault = fault
        self._failures += 1
        wait = self._limits.backoff_seconds * 2.0 ** min(self._failures - 1, 30)
        self._next_start = self._monotonic() + min(wait, self._limits.backoff_most_seconds)

    def _end(self, process: subprocess.Popen[bytes]) -> bool:
        """SIGTERM, then SIGKILL to the whole group. False when it lives on all the same."""
        signal_group(process, signal.SIGTERM)
        if self._wait(process, self._limits.term_seconds):
            return True
        signal_group(process, signal.SIGKILL)
        return self._wait(process, self._limits.kill_seconds)

    def _wait(self, process: subprocess.Popen[bytes], seconds: float) -> bool:
        end = self._monotonic() + seconds
        while not has_ended(process):
            if self._monotonic() >= end:
                return False
            time.sleep(POLL_SECONDS)
        reap(process)
        return True


def _spawn(argv: list[str], env: dict[str, str], cwd: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=env,
        cwd=cwd,
        start_new_session=True,
    )
