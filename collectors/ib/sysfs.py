"""Reads the ports of one InfiniBand or RoCE device below /sys/class/infiniband.

Files and units: Documentation/ABI/stable/sysfs-class-infiniband; drivers/infiniband/core/sysfs.c.
A counter file holds a number, or words where the device has none ("N/A (no PMA)"), or cannot be
read at all (EINVAL). The kernel shows the error counters as they are in PortCounters: 4, 8, 16
or 32 bits that stop at their ceiling; data counters have 64 bits where the device offers them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collectors.ib.units import (
    COUNTERS,
    DATA_FIELDS,
    U64_CEILING,
    at_ceiling,
    guid_of,
    physical_state_of,
    rate_fields,
    state_of,
)
from collectors.sample import Metric, Problem

CLASS = Path("sys/class/infiniband")
NET = Path("sys/class/net")
FILE_LIMIT_BYTES = 4096
IS_SM_DISABLED = 1 << 10
PORT_LIMIT = 64  # more than any adapter has; a tree with more is not to be trusted

# Counters of the transport, where a driver has them (mlx5: RoCE and InfiniBand alike): the only
# error counters that tell of lost packets on RoCE. File -> field.
HW_COUNTERS = {
    "out_of_sequence": "out_of_sequence_total",
    "packet_seq_err": "packet_sequence_errors_total",
    "local_ack_timeout_err": "local_ack_timeouts_total",
    "rnr_nak_retry_err": "receiver_not_ready_errors_total",
    "roce_adp_retrans": "adaptive_retransmissions_total",
}
HW_METRICS: tuple[Metric, ...] = tuple(
    Metric("ib_port", name, "counter", text, 0, float(U64_CEILING))
    for name, text in (
        ("out_of_sequence_total", "Packets received out of order."),
        ("packet_sequence_errors_total", "Sequence error NAKs received as requester."),
        ("local_ack_timeouts_total", "Times the other side acknowledged nothing in time."),
        ("receiver_not_ready_errors_total", "Times retries against a busy receiver ran out."),
        ("adaptive_retransmissions_total", "Adaptive retransmissions on RoCE."),
    )
)


@dataclass(frozen=True, slots=True)
class NetDevice:
    """A network interface of a port: IPoIB on InfiniBand, the Ethernet interface on RoCE.

    ``carrier_downs`` counts how often the kernel saw the carrier go (None: not told).
    """

    name: str
    ipoib: bool = False
    up: bool | None = None
    bonded: bool = False
    carrier_downs: int | None = None


@dataclass(frozen=True, slots=True)
class PortReading:
    """What one port says at one moment. A field that could not be read is absent.

    ``saturated`` names the counters that stand at their ceiling: they are lower bounds.
    ``port_guid`` is what the fabric calls this port (InfiniBand only). ``sm_disabled`` is set on
    the port of a link whose subnet management has ports of its own: its ``planes``, one each
    (see :mod:`collectors.ib.planes`).
    """

    device: str
    port: str
    fields: Mapping[str, float]
    link_layer: str = ""
    lid: int | None = None
    sm_lid: int | None = None
    saturated: tuple[str, ...] = ()
    guid: str = ""
    port_guid: str = ""
    netdevs: tuple[NetDevice, ...] = ()
    virtual: bool = False
    address: str = ""
    problems: tuple[Problem, ...] = ()
    sm_disabled: bool = False
    planes: tuple[PortReading, ...] = ()

    @property
    def name(self) -> str:
        """``mlx5_0/1``, as events call a port."""
        return f"{self.device}/{self.port}"

    @property
    def ethernet(self) -> bool:
        """Whether this is a RoCE or iWARP port. ibsim says ``IB`` for InfiniBand."""
        return self.link_layer.lower() == "ethernet"


def devices(root: Path) -> list[str]:
    """The names below /sys/class/infiniband, sorted; raises OSError when it is not there."""
    return sorted(entry.name for entry in os.scandir(root / CLASS))


def read_device(root: Path, device: str) -> list[PortReading]:
    """The ports of ``device``; none when it went away while it was read."""
    folder = root / CLASS / device
    guid = guid_of(read_text(folder / "node_guid") or "")
    virtual = (folder / "device" / "physfn").exists()
    address = _pci_address(folder)
    names = _port_names(folder)
    return [_read_port(root, device, port, guid, virtual, address) for port in names]


def read_identity(root: Path, device: str) -> list[PortReading]:
    """The ports of ``device`` without state and counters: files that ask no firmware."""
    folder = root / CLASS / device
    found = []
    for port in _port_names(folder):
        place = folder / "ports" / port
        layer = (read_text(place / "link_layer") or "").strip()
        port_guid = "" if layer == "Ethernet" else _port_guid(place)
        one = PortReading(device, port, {}, layer, port_guid=port_guid, sm_disabled=_no_sm(place))
        found.append(one)
    return found


def _port_names(folder: Path) -> list[str]:
    try:
        names = [e.name for e in os.scandir(folder / "ports") if e.name.isdecimal()]
    except OSError:
        return []
    return sorted(names, key=int)[:PORT_LIMIT]


def _no_sm(folder: Path) -> bool:
    """Whether the port's CapabilityMask has IsSMDisabled (14.2.5.6)."""
    return bool((_number(read_text(folder / "cap_mask")) or 0) & IS_SM_DISABLED)


def _read_port(
    root: Path, device: str, port: str, guid: str, virtual: bool, address: str
) -> PortReading:
    folder = root / CLASS / device / "ports" / port
    where = f"{device}/{port}"
    problems: list[Problem] = []
    fields: dict[str, float] = {}
    for name, file, parse in (
        ("state", "state", state_of),
        ("physical_state", "phys_state", physical_state_of),
    ):
        text = read_text(folder / file)
        value = parse(text) if text is not None else None
        if value is None:
            problems.append(Problem(f"{where}: {name} cannot be read", text or ""))
        else:
            fields[name] = value
    rate = read_text(folder / "rate")
    told = rate_fields(rate) if rate is not None else None
    if told is None:
        problems.append(Problem(f"{where}: rate cannot be read", rate or ""))
    else:
        fields |= told
    saturated = _counters(folder, where, fields, problems)
    layer = (read_text(folder / "link_layer") or "").strip()
    return PortReading(
        device,
        port,
        fields,
        layer,
        _number(read_text(folder / "lid")),
        _number(read_text(folder / "sm_lid")),
        tuple(saturated),
        guid,
        "" if layer == "Ethernet" else _port_guid(folder),
        _netdevs(root, device, port),
        virtual,
        address,
        tuple(problems),
        layer != "Ethernet" and _no_sm(folder),
    )


def _counters(
    folder: Path, where: str, fields: dict[str, float], problems: list[Problem]
) -> list[str]:
    """Adds the counters to ``fields``; answers which stand at their ceiling."""
    saturated: list[str] = []
    for counter in COUNTERS:
        text = read_text(folder / "counters" / counter.sysfs)
        if text is None:
            if (folder / "counters" / counter.sysfs).is_symlink() or _listed(folder, counter.sysfs):
                problems.append(Problem(f"{where}: {counter.sysfs} cannot be read"))
            continue
        raw = _number(text, 10)
        if raw is None or raw > U64_CEILING:
            if not text.startswith("N/A"):
                problems.append(Problem(f"{where}: {counter.sysfs} is no number", text[:80]))
            continue
        if raw == U64_CEILING or at_ceiling(counter, raw):
            saturated.append(counter.sysfs)
            if counter.field in DATA_FIELDS or raw == U64_CEILING:
                continue
        fields[counter.field] = float(raw * counter.factor)
    for file, name in HW_COUNTERS.items():
        raw = _number(read_text(folder / "hw_counters" / file), 10)
        if raw is not None and raw < U64_CEILING:
            fields[name] = float(raw)
    return saturated


def _port_guid(folder: Path) -> str:
    """The lower half of the port's first GID (InfiniBand: the prefix, then the GUID)."""
    return guid_of("".join((read_text(folder / "gids" / "0") or "").split(":")[4:8]))


def _listed(folder: Path, name: str) -> bool:
    return (folder / "counters" / name).exists()


def read_text(path: Path) -> str | None:
    """The stripped text of a small file, or None when it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(FILE_LIMIT_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return None


_DECIMAL = re.compile(r"\d{1,20}\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}\Z")


def _number(text: str | None, base: int = 0) -> int | None:
    if text is None:
        return None
    if _DECIMAL.match(text):
        return int(text)
    return int(text, 16) if base == 0 and _HEX.match(text) else None


def _pci_address(folder: Path) -> str:
    """The PCI address of the device (``0000:3b:00.0``), '' where it has none."""
    try:
        name = (folder / "device").resolve().name
    except OSError:
        return ""
    return name if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", name) else ""


def _netdevs(root: Path, device: str, port: str) -> tuple[NetDevice, ...]:
    """The interfaces of a port: those of its PCI function whose dev_port says so."""
    folder = root / CLASS / device
    try:
        names = sorted(entry.name for entry in os.scandir(folder / "device" / "net"))[:PORT_LIMIT]
    except OSError:
        names = []
    if not names:
        name = read_text(folder / "ports" / port / "gid_attrs" / "ndevs" / "0")
        names = [name] if name and re.fullmatch(r"[^\s/]{1,15}", name) else []
    found = []
    for name in names:
        net = root / NET / name
        at = _number(read_text(net / "dev_port"), 10)
        if at is not None and str(at + 1) != port:
            continue
        operstate = read_text(net / "operstate")
        found.append(
            NetDevice(
                name,
                read_text(net / "type") == "32",
                None if operstate in (None, "", "unknown") else operstate == "up",
                (net / "master" / "bonding").exists(),
                _number(read_text(net / "carrier_down_count"), 10),
            )
        )
    return tuple(found)
