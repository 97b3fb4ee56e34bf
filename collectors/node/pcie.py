"""PCIe links of GPUs, network cards, NVSwitches and NVMe drives, from sysfs.

Width and speed stand beside the most that both ends can do. An idle GPU runs its link slowly by
itself: only a slow link *under load* is a fault, which whoever compares it with the load must
decide. Error counters are those of both ends together, for either end may have seen the error.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from pydantic import Field

from collectors.events import CRITICAL, EVENT_METRICS, INFO, WARNING, event, spaced
from collectors.node.pci_tree import Device, Link, devices, errors_of, link_of, port_above, read
from collectors.node.topology import faults, placed, signature
from collectors.options import Options as SourceOptions
from collectors.sample import Batch, Context, Metric, Sample, SourceUnavailable, sample
from collectors.told import Told

NAME = "pcie"
STATE_FILE = "pcie.json"


def _metric(name: str, kind: str, help_: str, high: float) -> Metric:
    return Metric("pcie", name, kind, help_, 0, high)  # type: ignore[arg-type]


PCIE_METRICS: tuple[Metric, ...] = (
    _metric("link_width", "gauge", "Lanes in use now.", 32),
    _metric("link_width_max", "gauge", "Most lanes that both ends have.", 32),
    _metric("link_speed_bits_per_second", "gauge", "Bits a second and lane now.", 1e12),
    _metric("link_speed_max_bits_per_second", "gauge", "Most that both ends can do.", 1e12),
    _metric("aer_correctable_total", "counter", "Corrected errors of both ends.", 1e18),
    _metric("aer_nonfatal_total", "counter", "Uncorrected errors that are not fatal.", 1e18),
    _metric("aer_fatal_total", "counter", "Fatal errors of both ends.", 1e18),
    _metric("present", "state", "1: the device answers; 0: it is gone or reads all ones.", 1),
)
METRICS = (*PCIE_METRICS, *EVENT_METRICS)
_BUILD_SECONDS = 86_400.0


class Options(SourceOptions):
    """Settings of the PCIe source: ``kinds`` of devices that are watched, and how often it is
    looked at who hangs where.
    """

    period_seconds: float = Field(default=30.0, gt=0, le=86_400)
    deadline_seconds: float = Field(default=10.0, gt=0, le=3_600)
    kinds: frozenset[str] = frozenset({"gpu", "nic", "switch", "nvme"})
    audit_period_seconds: float = Field(default=3600.0, gt=0)


def make(options: Options, context: Context) -> Pcie:
    """The PCIe source."""
    return Pcie(options, context)


class Pcie:
    """Reads links and remembers, within one run of the kernel, which devices there were."""

    name = NAME

    def __init__(self, options: Options, context: Context) -> None:
        self.period_seconds = options.period_seconds
        self.deadline_seconds = options.deadline_seconds
        self._options = options
        self._context = context
        self._file = context.state_dir / STATE_FILE
        self._known: dict[str, str] = {}  # address -> kind
        self._dead: set[str] = set()
        self._boot = ""
        self._audit_at_ns: int | None = None
        self._faults = Told("is as it should be")
        self._told_build = "", 0

    def collect(self, now_ns: int) -> Batch:
        """Reads once."""
        self._remember()
        found = [one for one in devices(self._context.root) if one.kind in self._options.kinds]
        if not found and not self._known:
            raise SourceUnavailable("no GPU, network card, NVSwitch or NVMe drive in sysfs")
        samples: list[Sample] = []
        dead: dict[str, str] = {}
        for device in found:
            fields = self._fields(device)
            if not fields["present"]:
                dead[device.address] = device.kind
            samples.append(self._sample(device.address, fields, now_ns))
        here = {device.address: device.kind for device in found}
        gone = {where: kind for where, kind in self._known.items() if where not in here}
        samples += [self._sample(where, {"present": 0.0}, now_ns) for where in gone]
        self._tell({**dead, **gone}, set(gone), now_ns, samples)
        self._keep({**self._known, **here})
        samples += self._audit(now_ns)
        return Batch(NAME, tuple(spaced(samples)))

    def close(self) -> None:
        """Nothing is kept open."""

    # ---- inside ----------------------------------------------------------------------------

    def _fields(self, device: Device) -> dict[str, float]:
        link = link_of(device.folder)
        if link.dead:
            return {"present": 0.0}
        port = port_above(device.folder)
        above = link_of(port) if port is not None else Link()
        fields: dict[str, float | None] = {
            "present": 1.0,
            "link_width": link.width,
            "link_width_max": _least(link.width_max, above.width_max),
            "link_speed_bits_per_second": link.speed,
            "link_speed_max_bits_per_second": _least(link.speed_max, above.speed_max),
        }
        errors = errors_of(device.folder)
        for name, count in (errors_of(port) if port is not None else {}).items():
            errors[name] = errors.get(name, 0.0) + count
        fields.update({f"aer_{name}_total": count for name, count in errors.items()})
        return {name: float(value) for name, value in fields.items() if value is not None}

    def _sample(self, where: str, fields: dict[str, float], now_ns: int) -> Sample:
        bounds = {metric.name: metric for metric in PCIE_METRICS}
        kept = {name: value for name, value in fields.items() if bounds[name].accepts(value)}
        return sample("pcie", now_ns, kept, node=self._context.node, address=where)

    def _tell(
        self, dead: dict[str, str], gone: set[str], now_ns: int, samples: list[Sample]
    ) -> None:
        """An event when a device goes silent, and one when it is back."""
        for where in sorted(dead.keys() ^ self._dead):
            lost = where in dead
            how = "is no longer there" if where in gone else "reads all ones and does not answer"
            samples.append(
                event(
                    self._context.node,
                    "pcie",
                    "gone" if lost else "back",
                    now_ns,
                    text=f"{self._known.get(where) or dead.get(where, 'device')} at {where} "
                    + (how if lost else "answers again"),
                    severity=CRITICAL if lost else INFO,
                    device=where,
                )
            )
        self._dead = set(dead)

    def _audit(self, now_ns: int) -> list[Sample]:
        """How the node is built, for comparison with others, and faults that are new."""
        last = self._audit_at_ns
        if last is not None and 0 <= now_ns - last < self._options.audit_period_seconds * 1e9:
            return []
        self._audit_at_ns = now_ns
        parts = placed(self._context.root)
        node = self._context.node
        found = [
            event(
                node,
                "topology",
                fault.code,
                now_ns,
                text=fault.text,
                severity=WARNING,
                device=fault.device,
            )
            for fault in faults(parts)
        ]
        here = {part.device.address for part in parts}
        return [*self._built(signature(parts), now_ns), *self._faults.changes(found, here, now_ns)]

    def _built(self, text: str, now_ns: int) -> list[Sample]:
        """How the node is built: told at the start, when it changes, and once a day."""
        before, at_ns = self._told_build
        if text == before and 0 <= now_ns - at_ns < _BUILD_SECONDS * 1e9:
            return []
        self._told_build = text, now_ns
        node = self._context.node
        return [event(node, "version", "topology", now_ns, text=text, severity=INFO)]

    def _remember(self) -> None:
        """Reads what there was; a restart of the node begins anew, hardware may have changed."""
        boot = read(self._context.root / "proc/sys/kernel/random/boot_id")
        if self._known and boot == self._boot:
            return
        self._known, self._dead, self._boot = {}, set(), boot
        with contextlib.suppress(OSError, ValueError, AttributeError):
            held = json.loads(self._file.read_text(encoding="utf-8"))
            if held.get("boot") == boot and boot:
                self._known = {str(key): str(value) for key, value in held["devices"].items()}

    def _keep(self, known: dict[str, str]) -> None:
        if known == self._known:
            return
        self._known = known
        _write(self._file, {"boot": self._boot, "devices": known})


def _write(file: Path, data: object) -> None:
    """Whole or not at all; a disk that is full costs memory over restarts, no reading."""
    new = file.with_suffix(".new")
    with contextlib.suppress(OSError):
        new.write_text(json.dumps(data), encoding="utf-8")
        new.replace(file)


def _least(one: float | None, other: float | None) -> float | None:
    """The smaller of two limits; one that is not known limits nothing."""
    known = [value for value in (one, other) if value is not None]
    return min(known) if known else None
