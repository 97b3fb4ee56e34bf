"""What a measurement says: a name, a number, its unit, and what is to be reached."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a benchmark. ``reach`` is the design's figure where there is one."""

    name: str
    value: float
    unit: str
    reach: str = ""

    def __str__(self) -> str:
        more = f"   (to reach: {self.reach})" if self.reach else ""
        return f"{self.name:<48} {self.value:>14,.4g} {self.unit}{more}"


@dataclass(slots=True)
class Spent:
    """Seconds by the clock and of the processor (all threads of this process)."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0


@contextmanager
def spent() -> Iterator[Spent]:
    """Measures a block."""
    found = Spent()
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        yield found
    finally:
        found.wall_seconds = time.perf_counter() - wall
        found.cpu_seconds = time.process_time() - cpu


def percentile(values: list[float], share: float) -> float:
    """The value that ``share`` of ``values`` do not exceed; 0 without any."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def resident_mebibytes() -> float:
    """This process's resident memory now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return float(line.split()[1]) / 1024
    return 0.0


def peak_mebibytes() -> float:
    """This process's largest resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def process_seconds(process: int) -> float:
    """Processor seconds that a process has used (utime and stime of proc_pid_stat(5))."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
