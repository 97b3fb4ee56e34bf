"""One ``scontrol`` in interactive mode: several commands over one pipe.

A process of its own for look and write costs 8 to 18 ms between them; over one pipe it is
about 1 ms. The end of an answer is found by asking behind each command for the names in a host
list, which scontrol answers by itself, without asking slurmctld. The one name in it is made up
anew for each session: whoever has a node's Comment or Extra of several lines in that answer must
not be able to end it early, or what follows would be read as the answer to the next command.
scontrol's readline repeats each command before the answer, and of a long one as much of its end
as its screen is wide (``<...``): neither is an answer, and the words of a reason must not be read
as slurmctld's.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from collectors.command import Runner

# 10,000 nodes as text are about 10 MB.
ANSWER_LIMIT_BYTES = 128 * 1024 * 1024
_PROMPT = re.compile(r"^(?:scontrol: ?)+")
_ECHO = re.compile(r"^(?:update |show )")
# Letters alone: a digit would be a number in a host list.
_LETTERS = str.maketrans("0123456789", "ghijklmnop")
_MARK_LIMIT_BYTES = 200
# So wide that a command is repeated whole; and no key bindings of the user's.
_SCREEN = {"TERM": "dumb", "COLUMNS": "262144", "INPUTRC": "/dev/null"}


class SessionError(Exception):
    """The session ended or did not answer in time. ``sent`` tells whether a command was sent."""

    def __init__(self, text: str, sent: bool) -> None:
        self.sent = sent
        super().__init__(text)


class Talks(Protocol):
    """A way to give scontrol one command after another."""

    def ready(self, deadline_seconds: float) -> None:
        """Waits until commands are taken. Raises SessionError."""
        ...

    def ask(self, command: str, deadline_seconds: float) -> str:
        """What scontrol printed for ``command``. Raises SessionError."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class OneByOne:
    """A process a command, for a scontrol that cannot be talked to over a pipe."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], runner: Runner) -> None:
        self._argv = list(argv)
        self._env = dict(env)
        self._runner = runner

    def ready(self, deadline_seconds: float) -> None:
        """Always."""

    def ask(self, command: str, deadline_seconds: float) -> str:
        """See Talks."""
        result = self._runner.run(
            [*self._argv, *shlex.split(command)],
            deadline_seconds=deadline_seconds,
            kind="slurm-scontrol",
            env=self._env,
            output_bytes=ANSWER_LIMIT_BYTES,
        )
        if result.status != "ended":
            raise SessionError(result.fault, result.status in ("timeout", "stuck"))
        said = result.text() + result.stderr.decode("utf-8", "replace")
        return "\n".join(line for line in said.splitlines() if line.strip())

    def close(self) -> None:
        """Nothing is held open."""


class Session:
    """One scontrol process. Not for use from two threads at once."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._rest = b""
        mark = f"end{secrets.token_hex(8).translate(_LETTERS)}"
        self._end = f"show hostnames {mark}\n".encode()
        self._mark = re.compile(rb"^(?:scontrol: ?)*%b\n" % mark.encode(), re.MULTILINE)
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LC_ALL": "C", **_SCREEN, **env},
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise SessionError(
                f"{argv[0]} could not be started: {error.strerror}", False
            ) from error
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def ready(self, deadline_seconds: float) -> None:
        """Waits until scontrol has started, so that its start is in nobody's window."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(self._end)
        except OSError as error:
            raise SessionError("scontrol has ended", False) from error
        try:
            self._until_mark(self._monotonic() + deadline_seconds, "show hostnames")
        except SessionError as error:
            raise SessionError(str(error), False) from error

    def ask(self, command: str, deadline_seconds: float) -> str:
        """What scontrol printed for ``command``. Raises SessionError."""
        if not (command.isascii() and command.isprintable()):
            raise ValueError("a command is one line of printable ASCII: readline obeys other keys")
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{command}\n".encode() + self._end)
        except OSError as error:
            raise SessionError("scontrol has ended", False) from error
        answer = self._until_mark(self._monotonic() + deadline_seconds, command)
        lines = (_PROMPT.sub("", line) for line in answer.decode("utf-8", "replace").splitlines())
        return "\n".join(line for line in lines if line.strip() and not _echo(line, command))

    def _until_mark(self, end: float, command: str) -> bytes:
        assert self._process.stdout is not None
        buffer = bytearray(self._rest)
        self._rest = b""
        seen = 0
        while True:
            mark = self._mark.search(buffer, max(0, seen - _MARK_LIMIT_BYTES))
            if mark:
                self._rest = bytes(buffer[mark.end() :])
                return bytes(buffer[: mark.start()])
            seen = len(buffer)
            left = end - self._monotonic()
            if left <= 0:
                raise SessionError(f"no answer in time to: {command[:60]}", True)
            if not self._selector.select(left):
                continue
            piece = self._process.stdout.read(1 << 20)
            if piece == b"":
                said = buffer.decode("utf-8", "replace").strip()[-300:]
                raise SessionError(f"scontrol ended: {said}", True)
            buffer += piece or b""
            if len(buffer) > ANSWER_LIMIT_BYTES:
                raise SessionError("scontrol printed too much", True)

    def close(self) -> None:
        """Ends scontrol; one that hangs is killed."""
        self._selector.close()
        process = self._process
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)


def _echo(line: str, command: str) -> bool:
    """Whether ``line`` is only what readline repeated of ``command``."""
    return bool(_ECHO.match(line)) or (line.startswith("<") and command.endswith(line[1:].rstrip()))
