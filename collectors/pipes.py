"""Talks to a child process: feeds it, takes its output within bounds, sees its end."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
from collections.abc import Callable
from typing import Literal

from collectors.processes import has_ended

CHUNK_BYTES = 65_536
POLL_SECONDS = 0.02  # how soon the end of a child is seen where the kernel has no pidfd

Ending = Literal["ended", "timeout", "flood"]


class Talk:
    """One child's three pipes and its end.

    The end is that of the child itself, not of its pipes: a grandchild that keeps a pipe open
    delays nothing. ``stdout`` and ``stderr`` each grow to ``limit_bytes`` at most; ``flooded``
    tells that there was more.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        stdin: bytes,
        limit_bytes: int,
        monotonic: Callable[[], float],
    ) -> None:
        self.limit_bytes = limit_bytes
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.flooded = False
        self._process = process
        self._monotonic = monotonic
        self._rest = memoryview(stdin)
        self._kept: dict[int, bytearray] = {}
        self._selector = selectors.DefaultSelector()
        for stream, kept in ((process.stdout, self.stdout), (process.stderr, self.stderr)):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                self._kept[stream.fileno()] = kept
                self._selector.register(stream.fileno(), selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            self._selector.register(process.stdin.fileno(), selectors.EVENT_WRITE)
        self._pidfd = _pidfd(process.pid)
        if self._pidfd >= 0:
            self._selector.register(self._pidfd, selectors.EVENT_READ)

    def until(self, end: float, *, drop: bool = False) -> Ending:
        """Talks until the child ends, the monotonic time ``end`` comes, or it prints too much.

        With ``drop`` further output is thrown away, so that a child that wants to write before
        it ends can do so.
        """
        while not has_ended(self._process):
            left = end - self._monotonic()
            if left <= 0:
                return "timeout"
            for key, _ in self._selector.select(
                left if self._pidfd >= 0 else min(left, POLL_SECONDS)
            ):
                if key.fd in self._kept:
                    self._read(key.fd, drop)
                elif key.fd != self._pidfd:
                    self._write(key.fd)
            if self.flooded and not drop:
                return "flood"
        if not drop:
            self._drain()
        return "ended"

    def close(self) -> None:
        """Closes every pipe; a grandchild that still writes gets SIGPIPE."""
        self._selector.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _drain(self) -> None:
        """Takes what already lies in the pipes of an ended child, without waiting for more.

        A grandchild that floods the pipe cannot keep this going: the limit ends it.
        """
        for fd in list(self._kept):
            while self._read(fd, drop=False) and not self.flooded:
                pass

    def _read(self, fd: int, drop: bool) -> bool:
        """Reads one piece. False when there is nothing now, or nothing any more."""
        try:
            piece = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        if not piece:
            self._forget(fd)
            return False
        if not drop:
            kept = self._kept[fd]
            room = self.limit_bytes - len(kept)
            kept += piece[:room]
            self.flooded = self.flooded or len(piece) > room
        return True

    def _write(self, fd: int) -> None:
        try:
            self._rest = self._rest[os.write(fd, self._rest[:CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:  # the child does not want to hear more
            self._rest = memoryview(b"")
        if not self._rest:
            self._forget(fd)
            stdin = self._process.stdin
            if stdin is not None:
                with contextlib.suppress(OSError):
                    stdin.close()

    def _forget(self, fd: int) -> None:
        self._kept.pop(fd, None)
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)


def _pidfd(pid: int) -> int:
    """A file that becomes readable when ``pid`` ends; -1 on kernels before 5.3."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1
