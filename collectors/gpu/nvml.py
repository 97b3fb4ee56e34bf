"""GPUs by NVML, NVIDIA's management library, called in a worker process under a deadline.

One reading a GPU and cycle; fields that move slowly once a minute (NVLink counters are many calls
into the driver). GPUs are told apart by UUID: an index may be another board after a restart. A
GPU on which the driver hangs is left out for a while, so that it costs the others nothing.

Nothing here asks for profiling counters (they lock out other tools), resets or clears anything.
MIG: the board is read, its instances are not. The worker keeps the driver in use, so the agent
must be stopped before the driver can be unloaded.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field

from collectors.events import EVENT_METRICS, event, spaced
from collectors.gpu.fabric import FabricWatch
from collectors.gpu.mesh import MeshWatch
from collectors.gpu.metrics import GPU_FIELDS, GPU_METRICS, PROFILED, restless_first
from collectors.inventory import Board, Inventory
from collectors.kernel.nvidia import xid_severity
from collectors.options import Options as SourceOptions
from collectors.sample import (
    Batch,
    Context,
    Problem,
    Sample,
    SourceUnavailable,
    Value,
    bounded,
    clip,
    sample,
)
from collectors.worker import Worker, WorkerError, WorkerHung, WorkerLimits

NAME = "nvml"
METRICS = (*(one for one in GPU_METRICS if one.name not in PROFILED), *EVENT_METRICS)

GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
NO_PERMISSION = "Insufficient Permissions"  # nvml.h's words for code 4

# NVML return codes with which nothing can be read, and what to do about each.
ADVICE: dict[str, str] = {
    "4": "no permission to use the NVIDIA driver: run the agent as root or in group video",
    "9": "the NVIDIA driver is not loaded: look for its module and for NVRM lines in dmesg",
    "12": "libnvidia-ml.so.1 was not found: is the NVIDIA driver installed?",
    "13": "libnvidia-ml.so.1 is too old or not NVIDIA's: a function is missing in it",
    "17": "the operating system blocks access to the GPUs: look at device cgroups and containers",
    "18": "driver and library versions differ: the driver was upgraded on disk while the old "
    "module stays loaded; reload the module or restart the node",
    "28": "the driver is loaded and finds no GPU",
    "999": "NVML cannot start (unknown error): often a GPU that fell off the bus, or a container "
    "that lost its devices; see NVRM lines in dmesg",
}


class Options(SourceOptions):
    """Settings of the NVML source.

    ``full_period_seconds``: how often slow-moving fields are read. ``skip_seconds``: how long a
    GPU on which the driver hung is left out, doubled each time up to ``skip_most_seconds``.
    ``start_seconds``: how long the library may take to start, which without persistence mode
    means to start every GPU. ``library_folder``: where libnvidia-ml.so.1 lies, if the linker does
    not know. ``xids``: tells Xids too, for nodes whose kernel log cannot be read; beside it they
    would be told twice.
    """

    full_period_seconds: float = Field(default=60.0, gt=0)
    inventory_period_seconds: float = Field(default=86_400.0, gt=0)
    skip_seconds: float = Field(default=60.0, gt=0)
    skip_most_seconds: float = Field(default=900.0, gt=0)
    start_seconds: float = Field(default=90.0, gt=0, le=3_600)
    library_folder: str = ""
    xids: bool = False


def make(options: Options, context: Context) -> Nvml:
    """The NVML source."""
    return Nvml(options, context)


class Nvml:
    """Reads all GPUs of the node. See the module's words."""

    name = NAME

    def __init__(
        self,
        options: Options,
        context: Context,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.period_seconds = options.period_seconds
        self.deadline_seconds = options.deadline_seconds
        self._options = options
        self._context = context
        self._monotonic = monotonic
        limits = WorkerLimits()
        # Ending a hung worker takes time too; all of it must fit into the deadline.
        spare = limits.term_seconds + limits.kill_seconds
        self._call_seconds = max(options.deadline_seconds - spare, options.deadline_seconds / 2)
        env = {"LD_LIBRARY_PATH": options.library_folder} if options.library_folder else {}
        self._worker = Worker(NAME, "collectors.gpu.nvml_worker", limits, env=env)
        self._inventory = Inventory(context.node, options.inventory_period_seconds)
        self._fabric = FabricWatch(context.node)
        self._mesh = MeshWatch(context.node)
        self._skips = Skips(options.skip_seconds, options.skip_most_seconds)
        self._full_at_ns: int | None = None
        self._cut: set[int] = set()  # GPUs with MIG on, of which it was said
        self._ready_starts = 0  # which start of the worker has started the library

    def collect(self, now_ns: int) -> Batch:
        """Reads once. On a hang the batch is not up and holds what was read before it."""
        full = self._is_full(now_ns)
        skipped = self._skips.now(now_ns)
        reading = _Reading()
        fault = ""
        module = str(self._context.root / "sys/module/nvidia")
        try:
            seconds = self._started(module)
            self._worker.call(
                "read",
                {
                    "full": full,
                    "skip": sorted(skipped),
                    "last": self._skips.suspects(),
                    "xids": self._options.xids,
                    "module": module,
                },
                deadline_seconds=seconds,
                on_part=reading.take,
            )
        except WorkerHung as error:
            at = reading.pending()
            fault = str(error) if at is None else f"{error} (while reading gpu{at})"
            self._skips.hung(at, now_ns)
            if not reading.gpus:
                raise SourceUnavailable(fault) from None
        except WorkerError as error:
            raise SourceUnavailable(self._words(error)) from None
        else:
            self._skips.read(reading.order)
            if full:
                self._full_at_ns = now_ns
        return self._batch(reading, skipped, fault, now_ns)

    def close(self) -> None:
        """Ends the worker."""
        self._worker.close()

    # ---- inside ----------------------------------------------------------------------------

    def _started(self, module: str) -> float:
        """Starts the library in a new worker; what is left of the deadline, in seconds.

        A start may outlast cycles and is not ended for that: each ended start would begin anew.
        """
        if self._worker.pid and self._ready_starts == self._worker.starts_total:
            return self._call_seconds
        begin = self._monotonic()
        self._worker.call(
            "start",
            {"module": module},
            deadline_seconds=self._call_seconds,
            grace_seconds=self._options.start_seconds,
        )
        self._ready_starts = self._worker.starts_total
        left = self._call_seconds - (self._monotonic() - begin)
        return max(left, self._call_seconds / 10)

    def _is_full(self, now_ns: int) -> bool:
        last = self._full_at_ns
        return last is None or not 0 <= now_ns - last < self._options.full_period_seconds * 1e9

    def _words(self, error: WorkerError) -> str:
        if error.kind == str(LIB_RM_VERSION_MISMATCH):
            # The library on disk may be right by now; only a new process will load that one.
            self._worker.retire(f"{NAME} worker: {ADVICE[error.kind]}")
        self._full_at_ns = None
        advice = ADVICE.get(error.kind)
        return f"{advice} (NVML: {error})" if advice else f"NVML: {error}"

    def _batch(
        self, reading: _Reading, skipped: Mapping[int, float], fault: str, now_ns: int
    ) -> Batch:
        hung = bool(fault)
        samples: list[Sample] = []
        problems: list[Problem] = []
        boards: dict[int, Board] = {}
        hidden = ""
        fabric: dict[int, int] = {}
        links: dict[int, float] = {}
        for gpu in reading.gpus:
            index = int(gpu["index"])
            board = Board.of(index, gpu)
            boards[index] = board = self._inventory.known(board)
            values, found = _values(gpu)
            if "fabric_state" in gpu["values"]:
                fabric[index] = int(gpu["values"]["fabric_state"])
            if gpu.get("faults", {}).get("handle") == NO_PERMISSION:
                # Hidden from us (a device cgroup): not missing in the node.
                hidden = hidden or f"gpu{index}: {ADVICE['4']}"
            problems += [Problem(f"gpu{index}: {one.problem}") for one in found]
            problems += self._mig(index, values.get("mig_enabled"))
            active = values.get("nvlink_links_active")
            if isinstance(active, float):
                links[index] = active
            if values:
                samples.append(
                    sample(
                        "gpu",
                        now_ns,
                        values,
                        node=self._context.node,
                        gpu=str(index),
                        uuid=board.uuid,
                    )
                )
        samples += [self._xid(one, boards, now_ns) for one in reading.xids]
        samples += self._fabric.events(fabric, boards, now_ns)
        samples += self._mesh.events(links, boards, now_ns)
        for index, seconds in sorted(skipped.items()):
            words = f"gpu{index} is not read for {seconds:.0f} s more: the driver hung on it"
            problems.append(Problem(words))
            fault = fault or words
        if reading.system:
            complete = not hung and not skipped
            samples += self._inventory.events(reading.system, boards, complete, now_ns)
        if not samples and not problems:
            raise SourceUnavailable(ADVICE["28"])
        fault = fault or hidden
        up = not hung and not hidden
        return Batch(NAME, tuple(spaced(samples)), tuple(problems), up, clip(fault))

    def _mig(self, index: int, enabled: Value | None) -> list[Problem]:
        """What is said once of a board that is cut into instances."""
        if enabled == 0.0:
            self._cut.discard(index)
        if enabled != 1.0 or index in self._cut:
            return []
        self._cut.add(index)
        return [Problem(f"gpu{index}: MIG is on: the board is scored, its instances are not")]

    def _xid(self, one: Mapping[str, int], boards: Mapping[int, Board], now_ns: int) -> Sample:
        index, code = one["index"], one["xid"]
        board = boards.get(index, Board(index))
        return event(
            self._context.node,
            "xid",
            str(code),
            now_ns,
            text=f"gpu{index}: NVML tells Xid {code}",
            severity=xid_severity(code),
            device=board.bus or f"gpu{index}",
        )


class _Reading:
    """What the worker said of one reading so far."""

    def __init__(self) -> None:
        self.system: dict[str, Any] = {}
        self.order: list[int] = []
        self.gpus: list[dict[str, Any]] = []
        self.xids: list[dict[str, int]] = []

    def take(self, part: dict[str, Any]) -> None:
        """Takes one part."""
        if "system" in part:
            self.system = part["system"]
            self.order = [int(index) for index in part["system"]["order"]]
        elif "gpu" in part:
            self.gpus.append(part["gpu"])
        elif "xids" in part:
            self.xids = part["xids"]

    def pending(self) -> int | None:
        """The GPU that was being read when the worker went silent; None before the first."""
        done = len(self.gpus)
        return self.order[done] if done < len(self.order) else None


class Skips:
    """Which GPUs are left out because the driver hung on them, and until when."""

    def __init__(self, first_seconds: float, most_seconds: float) -> None:
        self._first = first_seconds
        self._most = most_seconds
        self._until: dict[int, tuple[int, float]] = {}

    def now(self, now_ns: int) -> dict[int, float]:
        """Index -> seconds left, of the GPUs to leave out now."""
        return {
            index: (until - now_ns) / 1e9
            for index, (until, _) in self._until.items()
            if until > now_ns
        }

    def suspects(self) -> list[int]:
        """GPUs on which the driver hung before: they are read after all others."""
        return sorted(self._until)

    def hung(self, index: int | None, now_ns: int) -> None:
        """A reading hung at ``index``. Once it hangs at a second GPU it is the driver that
        hangs, not a GPU, and nothing is left out any more.
        """
        if index is None or set(self._until) - {index}:
            self._until.clear()
            return
        _, before = self._until.get(index, (0, 0.0))
        wait = min(before * 2, self._most) if before else self._first
        self._until[index] = (now_ns + int(wait * 1e9), wait)

    def read(self, indices: list[int]) -> None:
        """These GPUs were read and are forgiven."""
        for index in indices:
            self._until.pop(index, None)


def _values(gpu: Mapping[str, Any]) -> tuple[dict[str, Value], list[Problem]]:
    """Fields and problems of one GPU's answer."""
    whole = gpu.get("whole")
    if whole == GPU_IS_LOST:
        return {"lost": 1.0}, [Problem("the driver says: GPU is lost")]
    if whole == RESET_REQUIRED:
        # The same words as recovery action 1: nothing can be done with it before a reset.
        return {"lost": 0.0, "recovery_action": 1.0}, [Problem("the driver wants it reset first")]
    faults: dict[str, str] = gpu["faults"]
    if "handle" in faults:
        return {}, [Problem(f"the driver gives no handle: {clip(faults['handle'], 200)}")]
    read: Mapping[str, Any] = gpu["values"]
    names = sorted((name for name in read if name in GPU_FIELDS), key=restless_first)
    fields, problems = bounded(GPU_FIELDS, ((name, float(read[name])) for name in names))
    fields["lost"] = 0.0
    by_words: dict[str, list[str]] = defaultdict(list)
    for name, words in faults.items():
        by_words[clip(words, 200)].append(name)
    problems += [Problem(f"{', '.join(names)}: {words}") for words, names in by_words.items()]
    return fields, problems
