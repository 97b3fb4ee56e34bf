"""GPUs by the nvidia-smi program, for nodes where the NVML source cannot be used.

One call reads all GPUs (``-q -x``, or a CSV query). One bad GPU makes most forms print nothing
but a line about it; then ``-L`` tells which GPUs can be read, and these are read one by one until
the deadline. nvidia-smi is started anew each time, which costs far more than NVML.

A list that may lack GPUs because of the program (cut off, ended early, too slow) makes a batch
that is not up: what is missing in it is no fault of the node.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pydantic import Field

from collectors.command import Result, Runner
from collectors.events import EVENT_METRICS, spaced
from collectors.gpu.fabric import FabricWatch
from collectors.gpu.findings import Findings
from collectors.gpu.metrics import GPU_METRICS
from collectors.gpu.smi_csv import read_csv
from collectors.gpu.smi_failures import EXIT_CODES, Failure
from collectors.gpu.smi_lists import failed, listed
from collectors.gpu.smi_text import SmiText
from collectors.gpu.smi_xml import read_xml
from collectors.inventory import Board, Inventory
from collectors.options import Options as SourceOptions
from collectors.sample import Batch, Context, Problem, Sample, SourceUnavailable, clip
from collectors.told import Told

NAME = "nvidia_smi"
METRICS = (*GPU_METRICS, *EVENT_METRICS)

QUERY = (
    "count",
    "index",
    "uuid",
    "pci.bus_id",
    "name",
    "serial",
    "driver_version",
    "vbios_version",
    "temperature.gpu",
    "temperature.memory",
    "power.draw",
    "enforced.power.limit",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "utilization.gpu",
    "utilization.memory",
    "memory.used",
    "memory.total",
    "fan.speed",
    "ecc.errors.corrected.aggregate.total",
    "ecc.errors.uncorrected.aggregate.total",
    "retired_pages.single_bit_ecc.count",
    "retired_pages.double_bit.count",
    "retired_pages.pending",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "mig.mode.current",
    "clocks_event_reasons.active",
    "remapped_rows.correctable",
    "remapped_rows.uncorrectable",
    "remapped_rows.pending",
    "remapped_rows.failure",
    "gpu_recovery_action",
    "fabric.state",
    "fabric.status",
)
# Older versions know these by another name.
OLDER_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
# A call of its own for one GPU is not worth starting with less time than this.
LEAST_SECONDS = 0.5

_BAD_FIELD = re.compile(r'Field "([^"]{1,80})" is not a valid field')


class Options(SourceOptions):
    """Settings of the nvidia-smi source. ``program`` may be a path."""

    period_seconds: float = Field(default=30.0, gt=0, le=86_400)
    deadline_seconds: float = Field(default=20.0, gt=0, le=3_600)
    program: str = "nvidia-smi"
    method: Literal["xml", "csv"] = "xml"
    inventory_period_seconds: float = Field(default=86_400.0, gt=0)


def make(options: Options, context: Context) -> NvidiaSmi:
    """The nvidia-smi source."""
    return NvidiaSmi(options, context, Runner())


class NvidiaSmi:
    """Reads all GPUs of the node by a program. See the module's words."""

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
        self._query = list(QUERY)
        self._told: set[tuple[str, str]] = set()
        self._repairs = Told("no longer reported")
        self._fabric = FabricWatch(context.node)

    def collect(self, now_ns: int) -> Batch:
        """Reads once; without the bad GPU if there is one."""
        end = self._monotonic() + self._runner.within(self._options.deadline_seconds)
        read = self._read((), now_ns, end)
        failures: list[tuple[int, Failure]] = []  # (index or -1, failure) of GPUs
        if read.mixed or any(failure.device for failure in read.failures):
            read, failures = self._one_by_one(read, now_ns, end)
        return self._batch(read, failures, now_ns)

    def close(self) -> None:
        """Nothing is kept open."""

    # ---- inside ----------------------------------------------------------------------------

    def _read(self, extra: tuple[str, ...], now_ns: int, end: float) -> SmiText:
        """One reading of all GPUs, or of those that ``extra`` selects."""
        if self._options.method == "xml":
            result = self._run(("-q", "-x", *extra), end)
            read = read_xml(result.stdout, self._context.node, now_ns, 1 if extra else 0)
        else:
            result, read = self._read_csv(extra, now_ns, end)
        for failure in read.failures:
            if failure.device:
                continue
            words = f"{failure.advice} (nvidia-smi: {failure.text})"
            if not read.boards:
                raise SourceUnavailable(words)
            read.incomplete = read.incomplete and words
        if not result.ok and not read.failures and not read.boards:
            meaning = EXIT_CODES.get(result.returncode or 0)
            raise SourceUnavailable(f"{meaning} ({result.fault})" if meaning else result.fault)
        if read.incomplete and result.fault:
            read.incomplete = f"{result.fault}; {read.incomplete}"
        return read

    def _read_csv(self, extra: tuple[str, ...], now_ns: int, end: float) -> tuple[Result, SmiText]:
        """A CSV query. A field that this version does not know is left out from then on."""
        while True:
            query = ",".join(self._query)
            result = self._run((f"--query-gpu={query}", "--format=csv,noheader", *extra), end)
            unknown = _BAD_FIELD.search(result.text())
            if unknown is None or unknown[1] not in self._query or len(self._query) == 1:
                read = read_csv(result.stdout, self._context.node, now_ns, self._query)
                if "count" not in self._query and not result.ok:
                    read.incomplete = read.incomplete or "it failed"
                return result, read
            older = OLDER_NAMES.get(unknown[1])
            at = self._query.index(unknown[1])
            self._query[at : at + 1] = [older] if older else []

    def _run(self, arguments: tuple[str, ...], end: float) -> Result:
        left = max(end - self._monotonic(), 0.1)
        result = self._runner.run(
            [self._options.program, *arguments], deadline_seconds=left, kind="nvidia-smi"
        )
        if result.status != "ended":
            raise SourceUnavailable(result.fault)
        return result

    def _one_by_one(
        self, first: SmiText, now_ns: int, end: float
    ) -> tuple[SmiText, list[tuple[int, Failure]]]:
        """Reads the GPUs that ``-L`` can name, each by a call of its own."""
        findings = Findings()
        result = self._run(("-L",), end)
        boards, failures = listed(result.stdout, findings)
        if first.mixed and not boards:
            return first, failures
        if first.mixed:
            findings.problem(f"each GPU was asked for by itself: {first.mixed}")
        whole = SmiText(first.node, now_ns, findings)
        for _, failure in failures:
            if not failure.device and not boards:
                raise SourceUnavailable(f"{failure.advice} (nvidia-smi -L: {failure.text})")
            if not failure.device or failure.code == "no_permission":
                whole.incomplete = failure.text
        if not any(failure.device for _, failure in failures):
            # -L did not meet it: what the first call said still holds
            failures = [(-1, failure) for failure in first.failures if failure.device]
        for index in boards:
            fault = self._add_one(whole, index, end)
            if fault:
                findings.problem(fault)
                whole.incomplete = fault
            if "hung" in fault or "deadline" in fault:
                break
        read = {board.bus for board in whole.boards.values()}
        for index, failure in failures:
            if index < 0 and failure.device not in read:
                whole.incomplete = whole.incomplete or failure.text
        return whole, failures

    def _add_one(self, whole: SmiText, index: int, end: float) -> str:
        """Reads one GPU into ``whole``; why not, if it could not be."""
        if end - self._monotonic() < LEAST_SECONDS:
            return f"gpu{index} and those after it: the deadline came first"
        try:
            one = self._read(("-i", str(index)), whole.now_ns, end)
        except SourceUnavailable as error:
            return f"gpu{index}: {error}"
        for sample in one.findings.samples:
            whole.findings.add(_at(sample, index))
        whole.findings.problems += one.findings.problems
        whole.versions.update(one.versions)
        for board in one.boards.values():
            whole.boards[index] = replace(board, index=index)
            if board.index in one.fabric:
                whole.fabric[index] = one.fabric[board.index]
        return "" if one.boards else f"gpu{index}: nvidia-smi -i {index} printed no GPU"

    def _batch(self, read: SmiText, failures: list[tuple[int, Failure]], now_ns: int) -> Batch:
        boards = {index: self._inventory.known(board) for index, board in read.boards.items()}
        for index, failure in failures:
            if index >= 0:
                lost = Board(index, bus=failure.device)
                boards[index] = self._inventory.known(lost)
        repairs = [one for one in read.findings.samples if one.tag("kind") == "repair"]
        others = [one for one in read.findings.samples if one.tag("kind") != "repair"]
        told = self._repairs.changes(repairs, {one.bus for one in read.boards.values()}, now_ns)
        samples = [*others, *told, *self._failed(failures, boards, now_ns)]
        samples += self._fabric.events(read.fabric, boards, now_ns)
        complete = not read.incomplete and all(index >= 0 for index, _ in failures)
        system = {**({"count": len(boards)} if complete else {}), **read.versions}
        samples += self._inventory.events(system, boards, complete, now_ns)
        problems: list[Problem] = read.findings.close()[1]
        if not read.findings.samples and not failures:
            fault = problems[0].problem if problems else "nvidia-smi printed no GPU"
            raise SourceUnavailable(clip(fault))
        fault = clip(f"GPUs may be missing: {read.incomplete}") if read.incomplete else ""
        return Batch(NAME, tuple(spaced(samples)), tuple(problems), not fault, fault)

    def _failed(
        self, failures: list[tuple[int, Failure]], boards: dict[int, Board], now_ns: int
    ) -> list[Sample]:
        """Fields on every cycle, an event only when a failure is new."""
        told = []
        before, self._told = self._told, {(one.device, one.code) for _, one in failures}
        new = [item for item in failures if (item[1].device, item[1].code) not in before]
        fields = [one for one in failed(failures, self._context.node, now_ns) if one.tag("gpu")]
        events = [one for one in failed(new, self._context.node, now_ns) if not one.tag("gpu")]
        for one in (*events, *fields):
            index = one.tag("gpu")
            uuid = boards[int(index)].uuid if index and int(index) in boards else ""
            tags = tuple(sorted((*one.tags, ("uuid", uuid)))) if uuid else one.tags
            told.append(replace(one, tags=tags))
        return told


def _at(sample: Sample, index: int) -> Sample:
    """The reading of a single GPU, with the index that it was asked by."""
    if sample.measurement != "gpu":
        return sample
    tags = {**dict(sample.tags), "gpu": str(index)}
    return replace(sample, tags=tuple(sorted(tags.items())))
