"""A worker for the tests of collectors.worker, run with ``python -m``."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from collectors.worker_serve import CallError, Emit, serve

Arguments = dict[str, Any]


def add(arguments: Arguments, emit: Emit) -> Any:
    return {"sum": arguments["a"] + arguments["b"], "pid": os.getpid()}


def sleep(arguments: Arguments, emit: Emit) -> Any:
    if arguments.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    emit("before")
    time.sleep(arguments["seconds"])


def crash(arguments: Arguments, emit: Emit) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(arguments: Arguments, emit: Emit) -> Any:
    raise SystemExit("the licence ran out")


def bug(arguments: Arguments, emit: Emit) -> Any:
    return {}["missing"]


def refuse(arguments: Arguments, emit: Emit) -> Any:
    raise CallError("lost", "GPU is lost")


def chatter(arguments: Arguments, emit: Emit) -> Any:
    while True:
        emit("on and on")


def noise(arguments: Arguments, emit: Emit) -> Any:
    print("a library prints to its standard output")
    sys.stderr.write("x" * 50_000)
    return "done"


def parts(arguments: Arguments, emit: Emit) -> Any:
    for number in range(arguments["count"]):
        emit({"number": number})
    return "all"


def nonsense(arguments: Arguments, emit: Emit) -> Any:
    for file in range(3, 20):
        try:
            os.write(file, b"\x00\x00\x00\x03abc")
        except OSError:
            continue


if __name__ == "__main__":
    serve({name: value for name, value in globals().items() if callable(value)})
