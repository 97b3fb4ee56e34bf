"""The pipes to one worker process: framed JSON messages each way, all in bounded time."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable
from typing import Any

from collectors.pipes import CHUNK_BYTES
from collectors.worker_serve import FRAME_LIMIT_BYTES, HEADER

STDERR_TAIL_BYTES = 4_000
POLL_SECONDS = 0.01


class Line:
    """The pipes to one worker."""

    def __init__(self, process: subprocess.Popen[bytes], monotonic: Callable[[], float]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self._monotonic = monotonic
        self._in = process.stdin.fileno()
        self._out = process.stdout.fileno()
        self._err = process.stderr.fileno()
        self._buffer = bytearray()
        self._tail = b""
        self._selector = selectors.DefaultSelector()
        for fd in (self._in, self._out, self._err):
            os.set_blocking(fd, False)
        self._selector.register(self._out, selectors.EVENT_READ)
        self._selector.register(self._err, selectors.EVENT_READ)

    def send(self, data: bytes, end: float) -> None:
        """Writes all of ``data`` before the monotonic time ``end``, or raises TimeoutError."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._in, view) :]
            except BlockingIOError:
                if self._monotonic() >= end:
                    raise TimeoutError from None
                time.sleep(POLL_SECONDS)

    def receive(self, end: float) -> dict[str, Any]:
        """The next message. Raises TimeoutError, EOFError or ValueError (nonsense)."""
        while True:
            message = self._next()
            if message is not None:
                return message
            left = end - self._monotonic()
            if left <= 0:
                raise TimeoutError
            for key, _ in self._selector.select(left):
                piece = os.read(key.fd, CHUNK_BYTES)
                if key.fd == self._err:
                    self._tail = (self._tail + piece)[-STDERR_TAIL_BYTES:]
                    if not piece:
                        self._selector.unregister(self._err)
                elif not piece:
                    raise EOFError
                else:
                    self._buffer += piece

    def errors(self) -> str:
        """The end of what the worker printed."""
        with contextlib.suppress(OSError):
            self._tail = (self._tail + os.read(self._err, CHUNK_BYTES))[-STDERR_TAIL_BYTES:]
        return self._tail.decode("utf-8", "replace")

    def close(self) -> None:
        """Closes the pipes; a worker that can still read ends."""
        self._selector.close()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _next(self) -> dict[str, Any] | None:
        if len(self._buffer) < HEADER.size:
            return None
        (size,) = HEADER.unpack_from(self._buffer)
        if size > FRAME_LIMIT_BYTES:
            raise ValueError(f"a message of {size} bytes")
        if len(self._buffer) < HEADER.size + size:
            return None
        body = bytes(self._buffer[HEADER.size : HEADER.size + size])
        del self._buffer[: HEADER.size + size]
        message = json.loads(body)
        if not isinstance(message, dict):
            raise ValueError("a message that is no object")
        return message
