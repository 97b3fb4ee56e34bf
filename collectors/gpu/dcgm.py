"""GPUs by DCGM's own tool: one round of ``dcgmi dmon``, and health where its watches are on.

For nodes on which the DCGM host engine runs already, here or remote (``host``). Nothing is
switched on in it: no watches, no profiling fields (they lock out other tools), no diagnostics.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pydantic import Field

from collectors.command import Result, Runner
from collectors.events import EVENT_METRICS, spaced
from collectors.gpu.dcgm_dmon import read_dmon
from collectors.gpu.dcgm_failures import failure_words
from collectors.gpu.dcgm_json import parse_health
from collectors.gpu.fabric import FabricWatch
from collectors.gpu.metrics import GPU_METRICS
from collectors.inventory import Inventory
from collectors.options import Options as SourceOptions
from collectors.sample import Batch, Context, Problem, Sample, SourceUnavailable
from collectors.told import Told

NAME = "dcgm"
METRICS = (*GPU_METRICS, *EVENT_METRICS)

# Known to every DCGM from 2 on; none is a profiling field. Numbers: collectors.gpu.dcgm_fields.
FIELD_NUMBERS = (
    100, 101, 140, 150, 155, 156, 202, 203, 204, 237, 238, 250, 252, 310, 311, 312, 313,
    390, 391, 392, 393, 394, 395, 396, 409, 429, 439,
)  # fmt: skip


class Options(SourceOptions):
    """Settings of the DCGM source. ``host`` is a host engine elsewhere, as ``name:port``.

    ``fields`` are DCGM's numbers. 1001 and 1002 (graphics and SM activity) may be among them, where
    no other tool profiles: DCGM counts for one at a time. ``health_period_seconds`` 0 leaves health
    out.
    """

    period_seconds: float = Field(default=30.0, gt=0, le=86_400)
    deadline_seconds: float = Field(default=15.0, gt=0, le=3_600)
    program: str = "dcgmi"
    host: str = Field(default="", pattern=r"^[A-Za-z0-9_.:\[\]-]{0,200}$")
    fields: tuple[int, ...] = Field(default=FIELD_NUMBERS, min_length=1, max_length=100)
    health_period_seconds: float = Field(default=300.0, ge=0)
    inventory_period_seconds: float = Field(default=86_400.0, gt=0)


def make(options: Options, context: Context) -> Dcgm:
    """The DCGM source."""
    return Dcgm(options, context, Runner())


class Dcgm:
    """Reads all GPUs of one host engine. See the module's words."""

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
        self._inventory = Inventory(context.node, options.inventory_period_seconds)
        self._health_at_ns: int | None = None
        self._xids: dict[str, str] | None = None
        self._fabric = FabricWatch(context.node)
        self._health_told = Told("DCGM calls it well again")

    def collect(self, now_ns: int) -> Batch:
        """Reads once. Health that cannot be read costs health only."""
        end = self._monotonic() + self._runner.within(self._options.deadline_seconds)
        numbers = ",".join(str(number) for number in self._options.fields)
        result = self._run(("dmon", "-e", numbers, "-c", "1"), end)
        findings, boards, fabric = read_dmon(result.stdout, self._context.node, now_ns)
        samples, problems = findings.close()
        if not samples:
            raise SourceUnavailable(_why(result, problems))
        samples = self._without_old_xids(samples)
        present = {int(one.tag("gpu")) for one in samples if one.tag("gpu")}
        # A table that ended early may lack GPUs: no fault of the node, and nothing is gone.
        fault = f"GPUs may be missing: {result.fault}" if result.fault else ""
        system = {} if fault else {"count": len(present)}
        samples += self._inventory.events(system, boards, bool(boards) and not fault, now_ns)
        samples += self._fabric.events(fabric, boards, now_ns)
        health, trouble = self._health({f"gpu{index}" for index in present}, now_ns, end)
        told = tuple(spaced([*samples, *health]))
        return Batch(NAME, told, (*problems, *trouble), not fault, fault)

    def close(self) -> None:
        """Nothing is kept open."""

    # ---- inside ----------------------------------------------------------------------------

    def _run(self, arguments: tuple[str, ...], end: float) -> Result:
        host = ("--host", self._options.host) if self._options.host else ()
        command, *rest = arguments
        result = self._runner.run(
            [self._options.program, command, *host, *rest],
            deadline_seconds=max(end - self._monotonic(), 0.1),
            kind=f"dcgmi {self._options.host}".strip(),
        )
        if result.status != "ended":
            raise SourceUnavailable(result.fault)
        return result

    def _without_old_xids(self, samples: list[Sample]) -> list[Sample]:
        """DCGM goes on naming the last Xid of a GPU: only a change is news, and what it names at
        the first look is of any age."""
        named = {one.text("device"): one for one in samples if one.tag("kind") == "xid"}
        before = self._xids
        self._xids = {**(before or {}), **{gpu: one.tag("code") for gpu, one in named.items()}}
        return [
            one
            for one in samples
            if one.tag("kind") != "xid"
            or (before is not None and before.get(one.text("device")) != one.tag("code"))
        ]

    def _health(
        self, gpus: set[str], now_ns: int, end: float
    ) -> tuple[list[Sample], list[Problem]]:
        """Health events that are new: a watch is told when it becomes bad, and when it is well."""
        period_ns = self._options.health_period_seconds * 1e9
        last = self._health_at_ns
        if not period_ns or (last is not None and 0 <= now_ns - last < period_ns):
            return [], []
        self._health_at_ns = now_ns
        try:
            result = self._run(("health", "-c", "-j"), end)
        except SourceUnavailable as error:
            return [], [Problem(f"health: {error}")]
        samples, problems = parse_health(result.stdout, self._context.node, now_ns)
        new = self._health_told.changes(samples, {"", *gpus}, now_ns) if samples else []
        return new, [Problem(f"health: {one.problem}", one.line) for one in problems]


def _why(result: Result, problems: list[Problem]) -> str:
    for line in result.text().splitlines()[:50]:
        words = failure_words(line)
        if words:
            return f"{words} ({line.strip()[:200]})"
    if result.fault:
        return result.fault
    return problems[0].problem if problems else "dcgmi printed no GPU"
