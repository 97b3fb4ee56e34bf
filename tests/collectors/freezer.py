"""A process that survives SIGKILL, for real: frozen by the v1 freezer until thawed.

Such a process shows state D, takes no signal while frozen and dies of its pending SIGKILL when
thawed (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

FREEZER = Path("/sys/fs/cgroup/freezer")


class Freezer:
    """One cgroup of the v1 freezer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hold(self, *pids: int) -> None:
        """Freezes the processes; returns when the kernel says that they are frozen."""
        for pid in pids:
            (self.folder / "cgroup.procs").write_text(str(pid))
        (self.folder / "freezer.state").write_text("FROZEN")
        wait_for(lambda: (self.folder / "freezer.state").read_text().strip() == "FROZEN")

    def thaw(self) -> None:
        """Lets everything in it go on."""
        (self.folder / "freezer.state").write_text("THAWED")


def wait_for(condition: object, seconds: float = 60.0) -> None:
    """Polls until the callable ``condition`` is true; fails when it does not come true."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def frozen_group() -> Iterator[Freezer]:
    """A freezer cgroup of the test's own, thawed and removed afterwards."""
    if not FREEZER.is_dir() or os.geteuid() != 0:
        pytest.skip("needs root and the cgroup v1 freezer at /sys/fs/cgroup/freezer")
    folder = FREEZER / f"tocsin-test-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    made = Freezer(folder)
    try:
        yield made
    finally:
        made.thaw()
        for _ in range(400):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.01)
