"""How a head or an agent of a test is born: forked from a process that has imported all of it.

Importing the head costs over two seconds of CPU, an agent one, and a test of the whole starts five
of them. What runs is the same ``tocsin`` command with arguments, environment, session and log of
its own; only its modules are there already. Standard library alone is imported here: each
child imports this file first.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["daemon.cli.run", "daemon.cli.agent", "tests.acceptance.born"])


class Born:
    """One process, with the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, arguments: list[str], env: dict[str, str], log: Path) -> None:
        """``arguments`` of the ``tocsin`` command; what it prints is appended to ``log``."""
        self._process = _SERVER.Process(target=_live, args=(arguments, env, str(log)))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """The exit code, -N after signal N; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Waits for its end; ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Sends it to this process, unless that has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def send_group(self, number: signal.Signals) -> None:
        """Sends it to this process and to all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def _live(arguments: list[str], env: dict[str, str], log: str) -> None:
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(out, stream)
    os.close(out)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["tocsin", *arguments]
    from daemon.cli.main import main

    sys.exit(main(arguments))
