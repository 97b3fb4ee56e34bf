"""Who hangs where in the PCIe tree of a node, and what is not as it should be.

Pure over what sysfs tells: each GPU and network card with the ports above it, its NUMA node and
its link. Peers of one model should be alike; a node's signature is alike on all nodes of one kind.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collectors.node.pci import address
from collectors.node.pci_tree import Device, Link, devices, link_of, port_above, read

PORTS_MOST = 16


@dataclass(frozen=True, slots=True)
class Placed:
    """One device, its place and its link. ``ports`` from the device up to the root port."""

    device: Device
    ports: tuple[str, ...]
    numa: str
    link: Link
    above: Link

    @property
    def root(self) -> str:
        """The root port that it hangs under, empty at a root complex."""
        return self.ports[-1] if self.ports else ""

    @property
    def model(self) -> str:
        """Vendor and device, as ``10de:2330``."""
        return f"{self.device.vendor.removeprefix('0x')}:{self.device.device.removeprefix('0x')}"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not as with its peers, or as the device itself could."""

    device: str
    code: str
    text: str


def placed(root: Path) -> list[Placed]:
    """Every watched device under ``root``/sys with its place."""
    found = []
    for device in devices(root):
        ports: list[str] = []
        port = port_above(device.folder)
        first = port
        while port is not None and len(ports) < PORTS_MOST:
            ports.append(address(port.name))
            port = port_above(port)
        numa = read(device.folder / "numa_node")
        above = link_of(first) if first is not None else Link()
        found.append(Placed(device, tuple(ports), numa, link_of(device.folder), above))
    return found


def faults(parts: Sequence[Placed]) -> list[Fault]:
    """What an audit finds, by address. Says nothing of link speed: an idle link is slow by itself.

    - lanes: fewer than both ends have (this does not change with load);
    - slot: a slot that gives fewer lanes or less speed than most of its model's slots;
    - gone: the device reads all ones;
    - numa: a GPU whose memory node differs from all network cards under its own root port.
    """
    found: list[Fault] = []
    for part in parts:
        where, kind = part.device.address, part.device.kind
        if part.link.dead:
            found.append(Fault(where, "gone", f"{kind} at {where} does not answer"))
            continue
        most = _least(part.link.width_max, part.above.width_max)
        if part.link.width is not None and most is not None and part.link.width < most:
            words = f"{kind} at {where} runs {part.link.width} of {most} lanes"
            found.append(Fault(where, "lanes", words))
    found += _slots(parts)
    found += _numa(parts)
    return sorted(found, key=lambda one: (one.device, one.code))


def signature(parts: Sequence[Placed]) -> str:
    """A short text that is the same for nodes built alike, whatever their addresses.

    Models with their counts, and a hash over which models share which root port, NUMA node and
    slot. Link width and speed of the moment are no part of it.
    """
    models = Counter((part.device.kind, part.model) for part in parts)
    roots: dict[str, list[str]] = {}
    for part in parts:
        slot = f"{part.above.width_max}x{part.above.speed_max}"
        roots.setdefault(part.root, []).append(f"{part.model}@{part.numa}/{slot}")
    shape = sorted("+".join(sorted(under)) for under in roots.values())
    digest = hashlib.sha256("|".join(shape).encode()).hexdigest()[:12]
    words = [f"{count}x {kind} {model}" for (kind, model), count in sorted(models.items())]
    return f"{', '.join(words)}; tree {digest}"


def _slots(parts: Sequence[Placed]) -> list[Fault]:
    """Slots that are weaker than those of most of the same model."""
    found = []
    for model in {part.model for part in parts}:
        peers = [part for part in parts if part.model == model and not part.link.dead]
        usual, count = Counter(
            (part.above.width_max, part.above.speed_max) for part in peers
        ).most_common(1)[0] if peers else ((None, None), 0)  # fmt: skip
        if count * 2 <= len(peers):
            continue
        for part in peers:
            slot = (part.above.width_max, part.above.speed_max)
            if any(mine is not None and theirs is not None and mine < theirs
                   for mine, theirs in zip(slot, usual, strict=True)):  # fmt: skip
                where = part.device.address
                found.append(
                    Fault(
                        where,
                        "slot",
                        f"{part.device.kind} at {where} sits in a slot of {_slot(slot)} where its "
                        f"peers have {_slot(usual)}",
                    )
                )
    return found


def _numa(parts: Sequence[Placed]) -> list[Fault]:
    found = []
    for part in parts:
        if part.device.kind != "gpu" or not part.root:
            continue
        cards = {
            other.numa
            for other in parts
            if other.device.kind == "nic" and other.root == part.root and other.numa
        }
        if part.numa and cards and part.numa not in cards:
            where = part.device.address
            words = f"GPU at {where} is on NUMA node {part.numa}, its network card on {min(cards)}"
            found.append(Fault(where, "numa", words))
    return found


def _slot(slot: tuple[int | None, float | None]) -> str:
    width, speed = slot
    rate = f"{speed / 1e9:g} GT/s" if speed else "unknown speed"
    return f"{width or 'unknown'} lanes at {rate}"


def _least(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return min(known) if known else None
