"""The night's training as a process of its own: ``tocsin train --store``, behind the head.

It gives itself bounds before it reads anything: nice, a memory limit, the first to be killed
where memory runs out, and an end when its parent is gone. Its last line is what came of it, as
JSON; the head decides what to do with that.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PARENT_LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the training may take. ``memory_bytes`` counts private memory (RLIMIT_DATA)."""

    nice: int = 0
    memory_bytes: int = 0
    with_parent: bool = False


def bind(bounds: Bounds) -> None:
    """Puts this process into its bounds."""
    if bounds.nice:
        os.nice(bounds.nice)
    if bounds.memory_bytes:
        # Not RLIMIT_AS: mapped Parquet and reserved arenas are address space and no memory.
        limit = bounds.memory_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
        # Where the service's memory ends, this one goes and not the head.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    if bounds.with_parent:
        end_with_parent(os.getppid())


def end_with_parent(
    parent: int, now_parent: Callable[[], int] = os.getppid, period: float = PARENT_LOOK_SECONDS
) -> threading.Thread:
    """Ends this process soon after ``parent`` has: nobody waits for its answer any more."""

    def watch() -> None:
        while now_parent() == parent:
            time.sleep(period)
        os._exit(75)

    thread = threading.Thread(target=watch, name="parent", daemon=True)
    thread.start()
    return thread
