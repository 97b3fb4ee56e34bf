"""Checks of the site's own: any program that answers as monitoring plug-ins do, and services.

Exit code 0 is well, 1 a warning, 2 critical; anything else, and a program that hangs or is not
there, is a fault of the check and says nothing of the node. The first line of standard output is
what people read; behind a ``|`` stand figures (``temp=41;50;60 used=93%``). So whatever runs under
Nagios, Icinga or Sensu runs here. Each check is run by itself, under a deadline of its own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict, Field, field_validator

from collectors.command import Runner
from collectors.events import EVENT_METRICS, INFO, event
from collectors.options import Options as SourceOptions
from collectors.sample import (
    Batch,
    Context,
    Metric,
    Problem,
    Sample,
    SourceUnavailable,
    clip,
    sample,
)

NAME = "checks"
METRICS = (
    *EVENT_METRICS,
    Metric("check", "state", "state", "0 well, 1 warning, 2 critical, 3 not known.", 0, 3),
    Metric("check", "duration_seconds", "gauge", "How long the check took.", 0, 3600),
    Metric("check_value", "value", "gauge", "A figure of a check, in seconds, bytes or as it is."),
)
CHECKS_MOST = 64
FIGURES_MOST = 20
OUTPUT_BYTES = 64 * 1024
WELL, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,15}")
_UNIT = re.compile(r"[A-Za-z0-9@:._-]{1,100}")
_FIGURE = re.compile(
    r"(?:'([^'=]{1,60})'|([^\s'=]{1,60}))=(-?\d{1,20}(?:\.\d{1,12})?)(us|ms|s|%|[KMGT]?B|c)?(?=[;\s]|$)"
)
_SCALE: Mapping[str, float] = {
    "us": 1e-6, "ms": 1e-3, "%": 0.01, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
}  # fmt: skip


class Check(BaseModel):
    """One check: its program with arguments (no shell), how often, and how long it may take."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: tuple[str, ...] = Field(min_length=1, max_length=64)
    every_seconds: float = Field(default=300.0, gt=0, le=604_800)
    deadline_seconds: float = Field(default=10.0, gt=0, le=600)


class Options(SourceOptions):
    """Settings of the checks source. ``commands`` are programs that answer as monitoring plug-ins
    do; ``services`` are systemd units that must be active. What they find is told to people, and
    never drains.
    """

    period_seconds: float = Field(default=60.0, gt=0, le=86_400)
    deadline_seconds: float = Field(default=50.0, gt=0, le=3_600)
    commands: dict[str, Check] = Field(default_factory=dict, max_length=CHECKS_MOST)
    services: tuple[str, ...] = Field(default=(), max_length=CHECKS_MOST)

    @field_validator("commands")
    @classmethod
    def _names(cls, value: dict[str, Check]) -> dict[str, Check]:
        for name in value:
            if not _NAME.fullmatch(name) or name == "services":
                raise ValueError(
                    f"a check is called by at most 16 of a-z, 0-9, - and _ (not services): {name}"
                )
        return value

    @field_validator("services")
    @classmethod
    def _units(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _UNIT.fullmatch(name) or name.startswith("-"):
                raise ValueError(f"no systemd unit: {name}")
        return value


def make(options: Options, context: Context) -> Checks:
    """The checks source."""
    return Checks(options, context, Runner())


class Checks:
    """Runs what is due, one after the other; what no time is left for comes first the next time."""

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
        self._context = context
        self._runner = runner
        self._monotonic = monotonic
        self._checks = dict(options.commands)
        if options.services:
            command = ("systemctl", "is-active", *options.services)
            self._checks["services"] = Check(command=command, every_seconds=1.0)
        self._services = options.services
        self._due: dict[str, float] = dict.fromkeys(self._checks, float("-inf"))
        self._told: dict[str, int] = {}  # what was last told of each; nothing: not looked yet

    def collect(self, now_ns: int) -> Batch:
        """Runs the checks that are due. A check that cannot be run is a problem."""
        if not self._checks:
            raise SourceUnavailable("no check is configured: agent.sources.checks.commands")
        begin = self._monotonic()
        end = begin + self._runner.within(self.deadline_seconds)
        samples: list[Sample] = []
        problems: list[Problem] = []
        due = [name for name, at in self._due.items() if at <= begin]
        for name in sorted(due, key=self._due.__getitem__):
            left = end - self._monotonic()
            if left <= 0:
                problems.append(Problem(f"{name} and others: no time was left for them"))
                break
            check = self._checks[name]
            self._due[name] = begin + check.every_seconds
            self._run(name, check, min(left, check.deadline_seconds), now_ns, samples, problems)
        return Batch(NAME, tuple(samples), tuple(problems))

    def close(self) -> None:
        """Nothing is kept open."""

    # ---- inside ----------------------------------------------------------------------------

    def _run(
        self, name: str, check: Check, seconds: float, now_ns: int, samples: list[Sample],
        problems: list[Problem],
    ) -> None:  # fmt: skip
        node = self._context.node
        result = self._runner.run(
            check.command, deadline_seconds=seconds, kind=f"check {name}", output_bytes=OUTPUT_BYTES
        )
        text, figures = answer(result.text())
        state = UNKNOWN
        if result.status == "ended" and result.returncode in (WELL, WARNING, CRITICAL):
            state = int(result.returncode)
        if name == "services":
            state, text, figures = self._of_services(result.status, result.text())
        if state == UNKNOWN:
            problems.append(Problem(f"{name}: {result.fault or 'its answer is not known'}", text))
        fields = {"state": float(state), "duration_seconds": result.duration_seconds}
        samples.append(sample("check", now_ns, fields, node=node, check=name))
        samples += [
            sample("check_value", now_ns, {"value": value}, node=node, check=name, label=label)
            for label, value in figures.items()
        ]
        if state != UNKNOWN and self._told.get(name) != state:
            self._told[name] = state
            words = text or ("well" if state == WELL else f"exit code {state}")
            severity = (INFO, WARNING, CRITICAL)[state]
            samples.append(
                event(node, "check", name, now_ns, text=f"{name}: {words}", severity=severity)
            )

    def _of_services(self, status: str, said: str) -> tuple[int, str, dict[str, float]]:
        """One word a unit, in order; a number of words that does not fit says nothing."""
        words = said.split()
        if status != "ended" or len(words) != len(self._services):
            return UNKNOWN, clip(said), {}
        # A unit that starts or reloads is on its way, and not down.
        away = [
            f"{unit} is {word}"
            for unit, word in zip(self._services, words, strict=True)
            if word in ("inactive", "failed", "deactivating", "maintenance")
        ]
        return (CRITICAL if away else WELL), "; ".join(away), {}


def answer(said: str) -> tuple[str, dict[str, float]]:
    """The first line as people read it, and its figures, in seconds, bytes, ratios or as they are.

    >>> answer("DISK OK - 93 % used | used=93% 'wait time'=12ms;50;100 x")
    ('DISK OK - 93 % used', {'used': 0.93, 'wait time': 0.012})
    """
    line = next((one for one in said.splitlines() if one.strip()), "")
    words, _, rest = line.partition("|")
    figures: dict[str, float] = {}
    for match in _FIGURE.finditer(rest[:4096]):
        if len(figures) >= FIGURES_MOST:
            break
        label = re.sub(r"[^ -~]", "?", match[1] or match[2])
        figures[label] = round(float(match[3]) * _SCALE.get(match[4] or "", 1.0), 12)
    printable = re.sub(r"[^ -~]+", " ", words).strip()
    return clip(printable), figures
