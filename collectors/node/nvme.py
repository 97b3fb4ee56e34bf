"""NVMe drives: SMART by nvme-cli, or by smartctl where that is what is installed.

Drives are found in sysfs; each is asked by a call of its own, so that one that hangs costs itself
only, and no second call to it is started while the first one lives.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Literal

from pydantic import Field

from collectors.command import Runner
from collectors.node.nvme_text import DISK_METRICS, parse_drive
from collectors.options import Options as SourceOptions
from collectors.sample import Batch, Context, Problem, Sample, SourceUnavailable

NAME = "nvme"
METRICS = DISK_METRICS
DRIVES_MOST = 128
_DRIVE = re.compile(r"nvme\d{1,4}")


class Options(SourceOptions):
    """Settings of the NVMe source. ``tool`` ``auto`` takes nvme-cli, and smartctl without it."""

    period_seconds: float = Field(default=300.0, gt=0, le=86_400)
    deadline_seconds: float = Field(default=60.0, gt=0, le=3_600)
    drive_seconds: float = Field(default=10.0, gt=0, le=600)
    tool: Literal["auto", "nvme", "smartctl"] = "auto"
    nvme_program: str = "nvme"
    smartctl_program: str = "smartctl"


def make(options: Options, context: Context) -> Nvme:
    """The NVMe source."""
    return Nvme(options, context, Runner())


class Nvme:
    """Reads SMART of every NVMe drive of the node."""

    name = NAME

    def __init__(
        self,
        options: Options,
        context: Context,
        runner: Runner,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.period_seconds = options.period_seconds
        self.deadline_seconds = options.deadline_seconds
        self._options = options
        self._context = context
        self._runner = runner
        self._monotonic = monotonic
        self._tool = "smartctl" if options.tool == "smartctl" else "nvme"

    def collect(self, now_ns: int) -> Batch:
        """Reads once. A drive that cannot be read is a problem; none at all is unavailable."""
        end = self._monotonic() + self._runner.within(self._options.deadline_seconds)
        samples: list[Sample] = []
        problems: list[Problem] = []
        drives = self._drives()
        if not drives:
            raise SourceUnavailable("no NVMe drive in sysfs (class/nvme)")
        for drive in drives:
            left = end - self._monotonic()
            if left <= 0:
                problems.append(Problem(f"{drive} and those after it: the deadline came first"))
                break
            one, trouble = self._read(drive, min(left, self._options.drive_seconds), now_ns)
            samples += one
            problems += trouble
        if not samples:
            raise SourceUnavailable(problems[0].problem if problems else "no drive answered")
        return Batch(NAME, tuple(samples), tuple(problems))

    def close(self) -> None:
        """Nothing is kept open."""

    # ---- inside ----------------------------------------------------------------------------

    def _drives(self) -> list[str]:
        try:
            names = [path.name for path in (self._context.root / "sys/class/nvme").iterdir()]
        except OSError:
            return []
        found = [name for name in names if _DRIVE.fullmatch(name)]
        return sorted(found, key=lambda name: int(name[4:]))[:DRIVES_MOST]

    def _read(self, drive: str, seconds: float, now_ns: int) -> tuple[list[Sample], list[Problem]]:
        result = self._runner.run(self._argv(drive), deadline_seconds=seconds, kind=drive)
        if result.status == "missing" and self._options.tool == "auto" and self._tool == "nvme":
            self._tool = "smartctl"
            result = self._runner.run(self._argv(drive), deadline_seconds=seconds, kind=drive)
        if result.status != "ended":
            if result.status == "missing":
                self._tool = "smartctl" if self._options.tool == "smartctl" else "nvme"
            return [], [Problem(f"{drive}: {result.fault}")]
        # smartctl's exit code is a mask of what it found; what it printed decides.
        samples, problems = parse_drive(result.stdout, self._context.node, now_ns, drive)
        if not samples and result.fault:
            return [], [Problem(f"{drive}: {result.fault}")]
        return samples, [Problem(f"{drive}: {one.problem}", one.line) for one in problems]

    def _argv(self, drive: str) -> list[str]:
        if self._tool == "nvme":
            return [self._options.nvme_program, "smart-log", f"/dev/{drive}", "-o", "json"]
        return [self._options.smartctl_program, "-j", "-a", f"/dev/{drive}"]
