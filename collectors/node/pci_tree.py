"""Reads PCI devices from sysfs: what they are, their link, what stands above them.

Source: Documentation/ABI/testing/sysfs-bus-pci and sysfs-bus-pci-devices-aer_stats; class codes of
the PCI SIG. A device that fell off the bus keeps its folder; its registers then read all ones,
which the kernel prints as link width 63 and speed "Unknown".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from collectors.node.pci import address

FILE_LIMIT_BYTES = 16_384
DEVICES_MOST = 4_096

# Class codes (first four hex digits) of what is watched, and what we call it.
KINDS = {
    "0300": "gpu",
    "0302": "gpu",
    "0680": "switch",  # NVSwitch calls itself a bridge of another kind
    "0207": "nic",
    "0200": "nic",
    "0108": "nvme",
}
NVIDIA, MELLANOX = "0x10de", "0x15b3"

_NAME = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_SPEED = re.compile(r"(\d{1,3}(?:\.\d{1,2})?)\s*GT/s")
_COUNT = re.compile(r"(\w{1,40})\s+(\d{1,20})")

ALL_ONES_WIDTH = 63


@dataclass(frozen=True, slots=True)
class Link:
    """One end of a PCIe link. None where it does not say; ``dead`` when it reads all ones.

    Speeds are bits per second and lane on the wire (8 GT/s is 8e9).
    """

    width: int | None = None
    width_max: int | None = None
    speed: float | None = None
    speed_max: float | None = None
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Device:
    """One PCI device: function 0 of its address."""

    folder: Path
    address: str
    kind: str
    vendor: str
    device: str


def devices(root: Path) -> list[Device]:
    """The watched devices under ``root``/sys, one an address, in order of address.

    GPUs and switches of NVIDIA, network cards of Mellanox/NVIDIA, NVMe drives of anybody.
    Virtual functions have no link of their own and are left out.
    """
    found: dict[str, Device] = {}
    for folder in _folders(root):
        kind = KINDS.get(read(folder / "class").removeprefix("0x")[:4], "")
        vendor = read(folder / "vendor")
        wanted = {"gpu": NVIDIA, "switch": NVIDIA, "nic": MELLANOX, "nvme": vendor}.get(kind)
        if wanted is None or wanted != vendor or (folder / "physfn").exists():
            continue
        where = address(folder.name)
        found.setdefault(where, Device(folder, where, kind, vendor, read(folder / "device")))
    return [found[where] for where in sorted(found)]


def link_of(folder: Path) -> Link:
    """The link of a device or port, as its registers say now."""
    width = _number(read(folder / "current_link_width"))
    speed_text = read(folder / "current_link_speed")
    dead = width == ALL_ONES_WIDTH or _config_is_all_ones(folder)
    if dead:
        return Link(dead=True)
    return Link(
        width=width or None,  # 0: the link is down, or the port has none
        width_max=_width(read(folder / "max_link_width")),
        speed=_speed(speed_text),
        speed_max=_speed(read(folder / "max_link_speed")),
    )


def port_above(folder: Path) -> Path | None:
    """The folder of the port that the device hangs at; None at a root complex."""
    try:
        parent = folder.resolve().parent
    except OSError:
        return None
    return parent if _NAME.fullmatch(parent.name) else None


def errors_of(folder: Path) -> dict[str, float]:
    """AER counters: ``correctable``, ``nonfatal``, ``fatal``; empty where the kernel has none."""
    counts: dict[str, float] = {}
    for name, total in (
        ("correctable", "TOTAL_ERR_COR"),
        ("nonfatal", "TOTAL_ERR_NONFATAL"),
        ("fatal", "TOTAL_ERR_FATAL"),
    ):
        parts = dict(_COUNT.findall(read(folder / f"aer_dev_{name}")))
        if total in parts:
            counts[name] = float(parts[total])
        elif parts:
            counts[name] = float(sum(int(value) for value in parts.values()))
    return counts


def read(path: Path) -> str:
    """A sysfs file's text without its end; empty when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(FILE_LIMIT_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _folders(root: Path) -> Iterator[Path]:
    try:
        names = sorted(path.name for path in (root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return
    for name in names[:DEVICES_MOST]:
        if _NAME.fullmatch(name):
            yield root / "sys/bus/pci/devices" / name


def _config_is_all_ones(folder: Path) -> bool:
    """Whether vendor and device in the configuration space read as nobody answering."""
    try:
        with open(folder / "config", "rb") as file:
            return file.read(4) == b"\xff\xff\xff\xff"
    except OSError:
        return False


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _width(text: str) -> int | None:
    number = _number(text)
    return number if number and number < ALL_ONES_WIDTH else None


def _speed(text: str) -> float | None:
    found = _SPEED.match(text)
    return float(found[1]) * 1e9 if found else None
