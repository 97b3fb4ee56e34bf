"""The host below the GPUs: memory errors, restarts, load, pressure, read-only filesystems, clock.

Everything is read from /proc and /sys, a few small files a cycle. What a kernel does not have (EDAC
without a driver, PSI on an old kernel) is left out, never told as 0. A new boot id gives a
``reboot`` event, new versions of kernel, driver and firmware give ``version`` events.

Sources: Linux ``Documentation/admin-guide/ras.rst`` (EDAC), ``accounting/psi.rst``, ``proc(5)``,
``adjtimex(2)``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from collectors import options as base
from collectors.events import EVENT_METRICS, INFO, event, spaced
from collectors.kernel.cursor import CursorFile
from collectors.node.chassis import identity
from collectors.node.host_clock import filtered, kernel_offset_seconds
from collectors.node.host_mounts import ReadOnly
from collectors.node.host_processes import counted
from collectors.sample import (
    Batch,
    Context,
    Metric,
    Problem,
    Sample,
    SourceUnavailable,
    bounded,
    sample,
)

SECOND_NS = 1_000_000_000
_COUNT_HIGH = 2.0**53

HOST_METRICS: tuple[Metric, ...] = (
    Metric("host", "edac_corrected_total", "counter", "Corrected memory errors (EDAC).", 0, 2**32),
    Metric("host", "edac_uncorrected_total", "counter", "Uncorrected memory errors.", 0, 2**32),
    Metric("host", "mce_total", "counter", "Machine check exceptions since boot.", 0, _COUNT_HIGH),
    Metric("host", "boot_time_seconds", "gauge", "When this boot began (epoch).", 1e9, 1e10),
    Metric("host", "load_1m", "gauge", "Load average of the last minute.", 0, 1e7),
    Metric("host", "blocked_processes", "gauge", "Processes that wait for I/O.", 0, 1e7),
    Metric("host", "zombie_processes", "gauge", "Processes that ended uncollected.", 0, 1e7),
    Metric("host", "stray_processes", "gauge", "Processes of users outside of jobs.", 0, 1e7),
    Metric("host", "oom_kills_total", "counter", "Processes killed for memory.", 0, _COUNT_HIGH),
    Metric("host", "filesystem_readonly", "gauge", "Local filesystems turned read-only.", 0, 1e5),
    Metric("host", "pressure_cpu_ratio", "gauge", "Time with tasks short of CPU (10 s).", 0, 1),
    Metric("host", "pressure_memory_ratio", "gauge", "The same for memory.", 0, 1),
    Metric("host", "pressure_io_ratio", "gauge", "The same for I/O.", 0, 1),
    Metric("host", "clock_offset_seconds", "gauge", "Clock minus time servers.", -1e9, 1e9),
)
METRICS: tuple[Metric, ...] = (*HOST_METRICS, *EVENT_METRICS)
_BY_NAME = {metric.name: metric for metric in HOST_METRICS}

_FILE_LIMIT_BYTES = 4 * 1024 * 1024
_PIECE_BYTES = 64 * 1024
# /proc/interrupts is large on large machines, and machine checks are rare.
_INTERRUPTS_SECONDS = 60.0
# To look at every process costs a few milliseconds for each hundred.
_PROCESSES_SECONDS = 300.0
# Versions are told when they change, and once a day for those who came later.
_VERSIONS_SECONDS = 86_400.0
# A restart is told in this many cycles: the same point each time, so that one that is lost
# on the way costs nothing.
_REBOOT_TOLD_CYCLES = 3


class Options(base.Options):
    """Settings of the ``host`` source."""

    period_seconds: float = Field(default=10.0, gt=0, le=86_400)
    deadline_seconds: float = Field(default=5.0, gt=0, le=3_600)
    # The kernel's clock offset, by adjtimex(2). A system call filter that does not know this
    # call ends the process, so ``auto`` asks only where no filter is at work; with ``on``, the
    # filter must allow it (SystemCallFilter=adjtimex).
    clock_offset: Literal["auto", "on", "off"] = "auto"
    # Processes of users from this uid on that run outside of Slurm's jobs are counted as stray.
    user_uid_least: int = Field(default=1_000, ge=1, le=2**32 - 1)


class Host:
    """The source."""

    name = "host"

    def __init__(
        self,
        options: Options,
        context: Context,
        clock_offset: Callable[[], float | None] | None = None,
    ) -> None:
        self.period_seconds = options.period_seconds
        self.deadline_seconds = options.deadline_seconds
        self._context = context
        self._root = context.root
        self._clock_offset = clock_offset or self._kernel_offset(options)
        self._state = CursorFile(context.state_dir / "host.json")
        self._readonly = ReadOnly(context.root)
        self._boot_id: str | None = None
        self._reboot: Sample | None = None
        self._reboot_left = 0
        self._versions: dict[tuple[str, str], str] = {}
        self._versions_told_ns: int | None = None
        self._interrupts_ns: int | None = None
        self._processes_ns: int | None = None
        self._uid_least = options.user_uid_least
        self._problems: list[Problem] = []

    def collect(self, now_ns: int) -> Batch:
        """Reads once. Raises SourceUnavailable without /proc."""
        self._problems = []
        stat = self._text("proc/stat")
        if stat is None:
            raise SourceUnavailable(f"{self._root / 'proc/stat'} can't be read: is /proc there?")
        readings = list(self._readings(stat, now_ns))
        fields, refused = bounded(_BY_NAME, readings)
        samples: list[Sample] = []
        if fields:
            samples.append(sample("host", now_ns, fields, node=self._context.node))
        boot_seconds = dict(readings).get("boot_time_seconds")
        samples.extend(self._restart(boot_seconds, now_ns))
        samples.extend(self._changed_versions(now_ns))
        return Batch(self.name, tuple(spaced(samples)), (*self._problems, *refused))

    def close(self) -> None:
        """Nothing is held between cycles."""

    def _kernel_offset(self, options: Options) -> Callable[[], float | None]:
        asked = options.clock_offset == "on" or (
            options.clock_offset == "auto" and not filtered(self._text("proc/self/status") or "")
        )
        return kernel_offset_seconds if asked else lambda: None

    # ---- readings -----------------------------------------------------------------------------

    def _readings(self, stat: str, now_ns: int) -> Iterator[tuple[str, float]]:
        for line in stat.splitlines():
            name, _, value = line.partition(" ")
            if name == "btime":
                yield from self._number("boot_time_seconds", value)
            elif name == "procs_blocked":
                yield from self._number("blocked_processes", value)
        yield from self._number("load_1m", (self._text("proc/loadavg") or "").partition(" ")[0])
        for line in (self._text("proc/vmstat") or "").splitlines():
            if line.startswith("oom_kill "):
                yield from self._number("oom_kills_total", line.partition(" ")[2])
        for name in ("cpu", "memory", "io"):
            yield from self._pressure(name)
        yield from self._edac()
        yield from self._machine_checks(now_ns)
        yield from self._processes(now_ns)
        turned = self._readonly.count()
        if turned is not None:
            yield "filesystem_readonly", float(turned)
        offset_seconds = self._clock_offset()
        if offset_seconds is not None:
            yield "clock_offset_seconds", offset_seconds

    def _pressure(self, name: str) -> Iterator[tuple[str, float]]:
        """``some avg10=2.65 avg60=...``: the share of time in which some task waited, in %."""
        for line in (self._text(f"proc/pressure/{name}") or "").splitlines():
            words = line.split()
            if words[:1] != ["some"]:
                continue
            for word in words[1:]:
                if word.startswith("avg10="):
                    for field, value in self._number(f"pressure_{name}_ratio", word[6:]):
                        yield field, value / 100.0

    def _edac(self) -> Iterator[tuple[str, float]]:
        """Sums over all memory controllers; the count of a controller holds all its DIMMs'."""
        folder = self._root / "sys/devices/system/edac/mc"
        try:
            controllers = sorted(path for path in folder.iterdir() if path.name.startswith("mc"))
        except OSError:
            return
        for file, field in (
            ("ce_count", "edac_corrected_total"),
            ("ue_count", "edac_uncorrected_total"),
        ):
            total, found = 0.0, False
            for controller in controllers:
                text = self._text(str((controller / file).relative_to(self._root)))
                if text is None:
                    continue
                for _, value in self._number(field, text):
                    total, found = total + value, True
            if found:
                yield field, total

    def _machine_checks(self, now_ns: int) -> Iterator[tuple[str, float]]:
        last_ns = self._interrupts_ns
        if last_ns is not None and 0 <= now_ns - last_ns < _INTERRUPTS_SECONDS * SECOND_NS:
            return
        self._interrupts_ns = now_ns
        for line in (self._text("proc/interrupts") or "").splitlines():
            if line.lstrip().startswith("MCE:"):
                counts = [word for word in line.split()[1:] if word.isdecimal()]
                yield "mce_total", float(sum(map(int, counts)))

    def _processes(self, now_ns: int) -> Iterator[tuple[str, float]]:
        last_ns = self._processes_ns
        if last_ns is not None and 0 <= now_ns - last_ns < _PROCESSES_SECONDS * SECOND_NS:
            return
        self._processes_ns = now_ns
        found = counted(self._root, self._uid_least)
        if found is not None:
            zombies, stray = found
            yield "zombie_processes", float(zombies)
            if stray is not None:
                yield "stray_processes", float(stray)

    def _number(self, field: str, text: str) -> Iterator[tuple[str, float]]:
        """The number in ``text``, none if there is none; other words are a problem."""
        text = text.strip()
        if not text:
            return
        try:
            yield field, float(text)
        except ValueError:
            self._problems.append(Problem(f"{field} is no number", text[:100]))

    # ---- what happened ------------------------------------------------------------------------

    def _restart(self, boot_seconds: float | None, now_ns: int) -> Iterator[Sample]:
        if self._boot_id is None:
            self._boot_id = (self._text("proc/sys/kernel/random/boot_id") or "").strip()[:64]
            before = self._remembered()
            if self._boot_id and before and before != self._boot_id:
                time_ns = int((boot_seconds or 0.0) * SECOND_NS) or now_ns
                words = f"the node restarted: boot id {self._boot_id}, before {before}"
                node = self._context.node
                self._reboot = event(node, "reboot", "boot", time_ns, text=words, severity=INFO)
                self._reboot_left = _REBOOT_TOLD_CYCLES
            elif self._boot_id and not before:
                self._remember()
        if self._reboot is not None and self._reboot_left > 0:
            yield self._reboot
            self._reboot_left -= 1
            if not self._reboot_left:
                self._remember()

    def _remembered(self) -> str:
        state = self._state.load() or {}
        if self._state.problem:
            self._problems.append(Problem(self._state.problem))
        boot_id = state.get("boot_id")
        return boot_id if isinstance(boot_id, str) else ""

    def _remember(self) -> None:
        try:
            self._state.save({"boot_id": self._boot_id}, durable=True)
        except OSError as error:
            words = f"{self._state.path} can't be written: {error.strerror}"
            self._problems.append(Problem(words))

    def _changed_versions(self, now_ns: int) -> Iterator[Sample]:
        told_ns = self._versions_told_ns
        all_of_them = told_ns is None or not 0 <= now_ns - told_ns < _VERSIONS_SECONDS * SECOND_NS
        if all_of_them:
            self._versions_told_ns = now_ns
        for (code, device), text in self._read_versions():
            if all_of_them or self._versions.get((code, device)) != text:
                self._versions[code, device] = text
                node = self._context.node
                yield event(node, "version", code, now_ns, text=text, severity=INFO, device=device)
        chassis = identity(self._root) if all_of_them else ""
        if chassis:
            node = self._context.node
            yield event(node, "inventory", "chassis", now_ns, text=chassis, severity=INFO)

    def _read_versions(self) -> Iterator[tuple[tuple[str, str], str]]:
        for code, path in (
            ("kernel", "proc/sys/kernel/osrelease"),
            ("bios", "sys/class/dmi/id/bios_version"),
            ("product", "sys/class/dmi/id/product_name"),
            ("driver", "sys/module/nvidia/version"),
        ):
            text = (self._text(path) or "").strip()
            if text:
                yield (code, ""), text
        folder = self._root / "sys/class/infiniband"
        with contextlib.suppress(OSError):
            for device in sorted(path.name for path in folder.iterdir())[:64]:
                text = (self._text(f"sys/class/infiniband/{device}/fw_ver") or "").strip()
                if text:
                    yield ("nic_firmware", device), text
                # Firmware is compared among cards of one board.
                board = (self._text(f"sys/class/infiniband/{device}/board_id") or "").strip()
                if board:
                    yield ("nic_board", device), board

    def _text(self, path: str) -> str | None:
        """A small file below the root; None where it can't be read (absent, not permitted)."""
        return read_text(self._root / path)


def read_text(path: Path) -> str | None:
    """At most 4 MiB of ``path``, None if it can't be read. Bytes that are no text are replaced.

    Read piece by piece: a file of /proc/sys refuses one read of 4 MiB (ENOMEM).
    """
    pieces: list[bytes] = []
    left = _FILE_LIMIT_BYTES
    try:
        with open(path, "rb", buffering=0) as file:
            while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
                pieces.append(piece)
                left -= len(piece)
    except OSError:
        return None
    return b"".join(pieces).decode("utf-8", "replace")


def make(options: Options, context: Context) -> Host:
    """The source as the agent makes it."""
    return Host(options, context)
