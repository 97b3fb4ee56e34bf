"""Planes: one link that the kernel lists as several ports.

InfiniBand (XDR): beside the device of the link (``mlx5_0``, one port, IsSMDisabled set) the driver
lists a sub-device of the same adapter for subnet management, whose ports are the planes. All of
them have the port GUID of the link, and that is how they are known (rdma-core, libibumad,
``umad_get_smi_gsi_pairs``; Linux, "RDMA/core: Support IB sub device with type SMI").

RoCE: the planes are Ethernet ports of one device. Nothing tells them from ports that are links of
their own, so such devices are declared.

Either way there is one link. It is up while a plane is; a plane that is lost makes it slower.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from collectors.events import WARNING
from collectors.ib.memory import Learning, PortMemory, remember
from collectors.ib.sysfs import HW_METRICS, PortReading, devices, read_identity
from collectors.ib.units import ACTIVE, COUNTERS
from collectors.sample import Metric, Sample, sample

WHOLE_PORT = "0"  # the port that stands for a RoCE device of several planes
RATE = "rate_bits_per_second"
PLANE_METRICS: tuple[Metric, ...] = (
    Metric("ib_port", "planes", "state", "Planes that the link has in use.", 1, 64),
    Metric("ib_port", "planes_active", "state", "Planes of the link that are active.", 0, 64),
)
_SUMMED = (*(one.field for one in COUNTERS), *(one.name for one in HW_METRICS))
# What a plane does is a matter of its link: these words are told of links alone.
_LINK_ONLY = frozenset({"sm_changed", "ipoib_down", "ipoib_up"})


def fold(readings: Iterable[PortReading], declared: Sequence[str] = ()) -> list[PortReading]:
    """The links of ``readings``, each with its planes; ports that have none are as they were.

    ``declared`` are patterns of RoCE devices whose ports are planes of one link.
    """
    links: list[PortReading] = []
    by_guid: dict[str, list[PortReading]] = {}
    by_device: dict[str, list[PortReading]] = {}
    for one in readings:
        if one.ethernet and any(fnmatch.fnmatchcase(one.device, name) for name in declared):
            by_device.setdefault(one.device, []).append(one)
        elif one.ethernet or one.virtual or not one.port_guid.strip("0x"):
            links.append(one)
        else:
            by_guid.setdefault(one.port_guid, []).append(one)
    for group in by_guid.values():
        links += _infiniband(group)
    links += [_roce(device, ports) for device, ports in by_device.items()]
    return sorted(links, key=lambda one: (one.device, int(one.port)))


def planar(root: Path, device: str = "") -> bool:
    """Whether ``device`` (or any of this machine) is an InfiniBand adapter of several planes."""
    try:
        ports = [one for name in devices(root) for one in read_identity(root, name)]
    except OSError:
        return False
    return any(
        one.planes and (not device or device in {one.device, *(p.device for p in one.planes)})
        for one in fold(ports)
    )


def _infiniband(group: list[PortReading]) -> list[PortReading]:
    """The link of ports that have one GUID. Without it, its planes are nothing to be watched."""
    counts: dict[str, int] = {}
    for one in group:
        counts[one.device] = counts.get(one.device, 0) + 1
    own = [one for one in group if one.sm_disabled]
    if len(group) > 1 and len(own) != 1:
        # Older firmware may not tell: the link is then what is alone on its device.
        several = any(count > 1 for count in counts.values())
        own = [one for one in group if counts[one.device] == 1] if several else []
        if several and len(own) != 1:
            return []
    if len(own) != 1 or len(group) == 1:
        return group
    planes = [one for one in group if one is not own[0]]
    planes.sort(key=lambda one: (one.device, int(one.port)))
    return [replace(own[0], planes=tuple(planes))]


def _roce(device: str, ports: list[PortReading]) -> PortReading:
    """One link made of Ethernet ports; counters are sums, where all ports tell them."""
    ports = sorted(ports, key=lambda one: int(one.port))
    states = [one.fields["state"] for one in ports if "state" in one.fields]
    best = max(ports, key=lambda one: one.fields.get("state", 0.0))
    fields: dict[str, float] = {}
    if states:
        fields["state"] = max(states)
        if "physical_state" in best.fields:
            fields["physical_state"] = best.fields["physical_state"]
    active = [one for one in ports if one.fields.get("state") == ACTIVE]
    if active and len(states) == len(ports) and all(RATE in one.fields for one in active):
        fields[RATE] = sum(one.fields[RATE] for one in active)
    for name in _SUMMED:
        told = [one.fields[name] for one in ports if name in one.fields]
        # A sum without one of them would be too low, and jump when it is read again. And n planes
        # that go down are no n times the link.
        if len(told) == len(ports) and name != "link_downs_total":
            fields[name] = sum(told)
    netdevs = tuple(net for one in ports for net in one.netdevs)
    return replace(
        best,
        device=device,
        port=WHOLE_PORT,
        fields=fields,
        saturated=(),
        netdevs=netdevs,
        problems=tuple(problem for one in ports for problem in one.problems),
        planes=tuple(ports),
    )


def plane_name(link: PortReading, plane: PortReading) -> str:
    """``mlx5_0/1.3``: what events and memory call a plane."""
    return f"{link.name}.{plane.port}"


def tell_planes(
    node: str,
    link: PortReading,
    memory: dict[str, PortMemory],
    learn_seconds: float,
    link_codes: frozenset[str],
    now_ns: int,
) -> tuple[list[Sample], list[Sample]]:
    """Points (``ib_plane``) and events of the planes of ``link``; ``memory`` is brought up to date.

    ``link_codes`` are the events of the whole link in this cycle: what they say is not told again
    for each plane.
    """
    points: list[Sample] = []
    told: list[Sample] = []
    for plane in link.planes:
        if not plane.fields:
            continue
        name = plane_name(link, plane)
        before = memory.get(name)
        renamed = replace(plane, device=link.device, port=f"{link.port}.{plane.port}", netdevs=())
        memory[name], events = remember(
            node, renamed, before, Learning(False, learn_seconds), now_ns
        )
        if memory[name].active_since_ns or memory[name].best_rate_bits_per_second:
            tags = {"node": node, "device": link.device, "port": link.port, "plane": plane.port}
            points.append(sample("ib_plane", now_ns, plane.fields, **tags))
        for one in events:
            code = one.tag("code")
            if code in link_codes | _LINK_ONLY:
                continue
            fields = {**one.fields, "device": link.name}
            fields["severity"] = min(WARNING, one.number("severity") or 0.0)
            tags = {**dict(one.tags), "code": f"plane_{code}"}
            told.append(sample("event", now_ns, fields, **tags))
    return points, told


def with_planes(
    link: PortReading, memory: Mapping[str, PortMemory], best_rate_bits_per_second: float
) -> PortReading:
    """``link`` with the number of its planes, and with the rate that those left make up.

    A plane counts once it was active. Where the device itself tells less than it could, that
    stands; else its rate is lowered by what planes are missing.
    """
    if not link.planes:
        return link
    active = whole = now = 0.0
    planes = 0
    for plane in link.planes:
        held = memory.get(plane_name(link, plane), PortMemory())
        rate = plane.fields.get(RATE, 0.0)
        is_active = plane.fields.get("state") == ACTIVE
        best = max(held.best_rate_bits_per_second, rate if is_active else 0.0)
        if best:
            planes += 1
            whole += best
            now += rate if is_active else 0.0
            active += is_active
    fields = dict(link.fields)
    if planes:
        fields |= {"planes": float(planes), "planes_active": active}
    told = fields.get(RATE)
    is_up = fields.get("state") == ACTIVE and link.port != WHOLE_PORT
    if told is not None and is_up and 0.0 < now < whole and told >= best_rate_bits_per_second:
        fields[RATE] = told * now / whole
    return replace(link, fields=fields)
