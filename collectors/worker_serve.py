"""The inside of a worker process: reads framed JSON calls, answers framed JSON, one at a time.

A frame is four bytes of length, most significant first, and so much JSON in UTF-8. A call is
``{"id", "call", "arguments"}``; its answers are any number of ``{"id", "part"}`` and one of
``{"id", "done"}`` or ``{"id", "error": {"kind", "text"}}``. Imports little: a worker must be
small, for there is one beside every agent.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any

FRAME_LIMIT_BYTES = 8 * 1024 * 1024
HEADER = struct.Struct(">I")
PR_SET_PDEATHSIG = 1  # linux/prctl.h

Emit = Callable[[Any], None]
Handler = Callable[[dict[str, Any], Emit], Any]


class CallError(Exception):
    """An expected failure: its kind (a word) and its text go to the caller."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def frame(message: Any) -> bytes:
    """One message as it goes over the pipe."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    return HEADER.pack(len(body)) + body


def die_with_parent(parent: int) -> None:
    """Asks the kernel for SIGKILL when the parent ends (prctl(2)), and ends if it has already.

    The kernel takes the *thread* that started us for the parent, which is why the caller starts
    workers from a thread that lives as long as it does.
    """
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(0)


def serve(handlers: dict[str, Handler], argv: list[str] | None = None) -> None:
    """Answers calls until the pipe is closed. ``argv[1]`` is the pid of the parent."""
    arguments = sys.argv if argv is None else argv
    if len(arguments) > 1:
        die_with_parent(int(arguments[1]))
    # A library that prints must not print into the protocol: 1 becomes 2, answers get a new file.
    answers = os.dup(1)
    os.dup2(2, 1)
    _write(answers, frame({"hello": os.getpid()}))
    while True:
        header = _read(0, HEADER.size)
        if len(header) < HEADER.size:
            return
        (size,) = HEADER.unpack(header)
        if size > FRAME_LIMIT_BYTES:
            raise SystemExit(f"a call of {size} bytes")
        body = _read(0, size)
        if len(body) < size:
            return
        _answer(json.loads(body), handlers, answers)


def _answer(call: dict[str, Any], handlers: dict[str, Handler], answers: int) -> None:
    number = call["id"]

    def emit(part: Any) -> None:
        _write(answers, frame({"id": number, "part": part}))

    handler = handlers.get(call["call"])
    try:
        if handler is None:
            raise CallError("unknown", f"no call {call['call']!r}")
        message = {"id": number, "done": handler(call.get("arguments") or {}, emit)}
    except CallError as error:
        message = {"id": number, "error": {"kind": error.kind, "text": str(error)}}
    except Exception as error:  # told to the caller: a worker does not end on a bug in one call
        text = f"{type(error).__name__}: {error}"
        message = {"id": number, "error": {"kind": "bug", "text": text}}
    _write(answers, frame(message))


def _read(file: int, size: int) -> bytes:
    """``size`` bytes, or fewer at the end of the pipe."""
    pieces = b""
    while len(pieces) < size:
        piece = os.read(file, size - len(pieces))
        if not piece:
            break
        pieces += piece
    return pieces


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
