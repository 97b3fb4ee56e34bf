"""The process that calls NVML: reads every GPU, one answer a GPU, and never guesses.

Run as ``python -m collectors.gpu.nvml_worker`` by collectors.worker. A call that fails costs its
own field; a GPU that the driver calls lost costs that GPU; "not supported" costs nothing and is
asked again at the next full reading.

Source of names and meanings: NVIDIA's NVML API reference and nvml.h (nvidia-ml-py).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml as nvml

from collectors.gpu.nvml_events import XidEvents
from collectors.gpu.nvml_fields import (
    ABSENT_CODES,
    FIELDS,
    READS,
    SLOW_FIELDS,
    STAND_INS,
    Reading,
    Values,
    fields,
)
from collectors.gpu.nvml_links import Links
from collectors.worker_serve import CallError, Emit, serve

# The driver speaks of the GPU as a whole: GPU_IS_LOST, RESET_REQUIRED.
WHOLE_GPU_CODES = frozenset({15, 16})
# The library must be started again, or cannot work at all: UNINITIALIZED, DRIVER_NOT_LOADED,
# LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH.
SYSTEM_CODES = frozenset({1, 9, 12, 18})

IDENTITY = (
    ("uuid", "nvmlDeviceGetUUID"),
    ("name", "nvmlDeviceGetName"),
    ("serial", "nvmlDeviceGetSerial"),
    ("vbios", "nvmlDeviceGetVbiosVersion"),
)


@dataclass
class Known:
    """What is known of the GPU at one index while the library is up."""

    who: dict[str, str] = field(default_factory=dict)
    absent: set[tuple[str, ...]] = field(default_factory=set)
    links: Links = field(default_factory=Links)


class Reader:
    """NVML, started when needed, and what is known of its GPUs."""

    def __init__(self) -> None:
        self._started = False
        self._loaded = 0
        self._known: dict[int, Known] = {}
        self._handles: dict[int, Any] = {}
        self._events = XidEvents()

    def read(self, arguments: dict[str, Any], emit: Emit) -> Any:
        """Reads all GPUs but those in ``skip``, those in ``last`` after the others; slow-moving
        fields too when ``full``.

        Emits one part with versions, GPU count and the order of work, then one part per GPU.
        ``module`` is the driver's folder in sysfs: another inode there means that the driver was
        reloaded, after which the library's open files speak to nobody and call every GPU lost.
        """
        full = bool(arguments.get("full", True))
        skip = {int(index) for index in arguments.get("skip", ())}
        count = self._begin(arguments)
        last = {int(index) for index in arguments.get("last", ())}
        order = [index for index in range(count) if index not in skip]
        order.sort(key=lambda index: index in last)
        system = {**_versions(), "count": count, "excluded": _excluded(), "order": order}
        emit({"system": system})
        failed = 0
        for index in order:
            answer = self._gpu(index, full)
            failed += "whole" in answer or "handle" in answer["faults"]
            emit({"gpu": answer})
        if arguments.get("xids"):
            with contextlib.suppress(nvml.NVMLError, AttributeError):
                self._events.watch(self._handles)
                emit({"xids": self._events.take()})
        if failed and failed == len(order):
            self._stop()  # perhaps it is not the GPUs: the next reading starts the library anew
        return {"read": len(order)}

    def start(self, arguments: dict[str, Any], emit: Emit) -> Any:
        """Starts the library, which can take long: without persistence mode it starts all GPUs."""
        return {"count": self._begin(arguments)}

    def _begin(self, arguments: dict[str, Any]) -> int:
        loaded = _inode(str(arguments.get("module", "")))
        if loaded != self._loaded:
            self._stop()
            self._loaded = loaded
        return self._start()

    def _start(self) -> int:
        """The number of GPUs. Starts the library if need be, anew if the driver was reloaded."""
        while True:
            fresh = not self._started
            try:
                if fresh:
                    nvml.nvmlInit()
                    self._started = True
                return int(nvml.nvmlDeviceGetCount())
            except nvml.NVMLError as error:
                self._stop()
                if fresh:
                    raise CallError(str(error.value), str(error)) from None

    def _stop(self) -> None:
        """Shuts the library down and forgets what was learnt under the old driver."""
        self._events.close()
        if self._started:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()
        self._started = False
        self._known.clear()
        self._handles.clear()

    def _gpu(self, index: int, full: bool) -> dict[str, Any]:
        """One GPU: who it is, values and faults by field name, or ``whole``: a code for all."""
        begin = time.monotonic()
        known = self._known.setdefault(index, Known())
        values: Values = {}
        faults: dict[str, str] = {}
        found: dict[str, Any] = {"index": index}
        try:
            handle = self._handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
            full = full or not known.who
            if full:
                known = self._identify(index, handle)
            self._read_values(known, handle, full, values, faults)
        except nvml.NVMLError as error:
            if error.value in SYSTEM_CODES:
                self._stop()
                raise CallError(str(error.value), str(error)) from None
            self._handles.pop(index, None)
            if error.value in WHOLE_GPU_CODES:
                # What was read before is not to be trusted: a lost GPU answers all ones.
                values, faults = {}, {}
                found["whole"] = int(error.value)
            else:
                faults["handle"] = str(error)
        for name in [name for name, value in values.items() if not math.isfinite(value)]:
            faults[name] = f"{values.pop(name)} is no number"
        seconds = round(time.monotonic() - begin, 6)
        return {**found, **known.who, "values": values, "faults": faults, "seconds": seconds}

    def _identify(self, index: int, handle: Any) -> Known:
        """Who the GPU is. Another UUID than before makes it another GPU."""
        known = self._known.get(index, Known())
        who: dict[str, str] = {}
        for key, function in IDENTITY:
            value = _maybe(getattr(nvml, function), handle)
            if isinstance(value, str) and value:
                who[key] = value
        bus = getattr(_maybe(nvml.nvmlDeviceGetPciInfo, handle), "busId", "")
        if bus:
            who["bus"] = bus if isinstance(bus, str) else bytes(bus).decode("ascii", "replace")
        if known.who.get("uuid", "") != who.get("uuid", known.who.get("uuid", "")):
            known = Known()
        known.who = {**known.who, **who}
        known.absent = set()
        self._known[index] = known
        return known

    def _read_values(
        self, known: Known, handle: Any, full: bool, values: Values, faults: dict[str, str]
    ) -> None:
        _batch(handle, {**FIELDS, **SLOW_FIELDS} if full else FIELDS, values, faults)
        for reading in READS:
            if (reading.slow and not full) or reading.names in known.absent:
                continue
            wanted = [name for name in reading.names if name not in values]
            if not wanted or any(name in faults for name in wanted):
                continue
            outcome = _first_way(reading, handle)
            if outcome is None:
                known.absent.add(reading.names)
            elif isinstance(outcome, str):
                faults.update(dict.fromkeys(wanted, outcome))
            else:
                values.update({name: float(outcome[name]) for name in wanted})
        if full:
            _links(known.links, handle, values, faults)


def _batch(
    handle: Any, asked: dict[int, tuple[str, float]], values: Values, faults: dict[str, str]
) -> None:
    """The fields that one call answers together, each with an error of its own."""
    try:
        answers = fields(handle, list(asked))
    except nvml.NVMLError as error:
        _raise_if_whole(error.value)
        if error.value not in ABSENT_CODES:
            faults.update({name: str(error) for name, _ in asked.values()})
        return
    for (name, scale), (code, number) in zip(asked.values(), answers, strict=True):
        if code == 0:
            values[name] = number * scale
        elif code not in ABSENT_CODES:
            _raise_if_whole(code)
            faults[name] = str(nvml.NVMLError(code))
    for stand_in, name in STAND_INS.items():
        value = values.pop(stand_in, None)
        faults.pop(stand_in, None)
        if value is not None and name not in values and name not in faults:
            values[name] = value


def _first_way(reading: Reading, handle: Any) -> Values | str | None:
    """What the first way gives that library and board know; words of an error; None: absent."""
    for way in reading.ways:
        try:
            return way(handle)
        except nvml.NVMLError as error:
            _raise_if_whole(error.value)
            if error.value not in ABSENT_CODES:
                return str(error)
        except AttributeError:
            continue  # a binding without this function
        except Exception as error:  # the binding's trouble with what a sick board said
            return f"{type(error).__name__}: {error}"
    return None


def _links(links: Links, handle: Any, values: Values, faults: dict[str, str]) -> None:
    try:
        sums, trouble = links.read(handle)
    except nvml.NVMLError as error:
        _raise_if_whole(error.value)
        if error.value not in ABSENT_CODES:
            faults["nvlink_links_active"] = str(error)
        return
    for name, code in trouble.items():
        _raise_if_whole(code)
        faults[name] = str(nvml.NVMLError(code))
    values.update(sums)


def _maybe(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the call gives, or None; raises what concerns the whole GPU or the library."""
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        _raise_if_whole(error.value)
        return None
    except (AttributeError, UnicodeDecodeError):
        return None


def _raise_if_whole(code: int) -> None:
    if code in WHOLE_GPU_CODES or code in SYSTEM_CODES:
        raise nvml.NVMLError(code)


def _inode(folder: str) -> int:
    try:
        return Path(folder).stat().st_ino if folder else 0
    except OSError:
        return 0


def _excluded() -> int:
    """How many GPUs the driver leaves out by its own setting (NVreg_ExcludedGpus)."""
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        return int(nvml.nvmlGetExcludedDeviceCount())
    return 0


def _versions() -> dict[str, str]:
    """Driver and library version, as far as they answer."""
    found = {}
    for key, function in (
        ("driver", "nvmlSystemGetDriverVersion"),
        ("nvml", "nvmlSystemGetNVMLVersion"),
    ):
        with contextlib.suppress(nvml.NVMLError, AttributeError, UnicodeDecodeError):
            found[key] = str(getattr(nvml, function)())
    return found


if __name__ == "__main__":
    reader = Reader()
    serve({"read": reader.read, "start": reader.start})
