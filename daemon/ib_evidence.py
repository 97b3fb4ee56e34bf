"""Gathers what can be known here and now of a node's InfiniBand, for a diagnosis."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collectors.command import Runner
from collectors.ib.fabric import STATE_FILE, SubnetSettings
from collectors.ib.fabric_cabling import load_cabling
from collectors.ib.fabric_subnet import MASTER, PortPoint, Subnet, SubnetOptions, SubnetReading
from collectors.ib.planes import fold, plane_name
from collectors.ib.sysfs import PortReading, devices, read_device
from collectors.ib.units import ACTIVE, COUNTERS, DATA_FIELDS
from collectors.sample import SourceUnavailable, clip
from models.diagnosis import Evidence, LinkEvidence, usual_rate
from models.links import End, LinkView, Part, place

DEADLINE_SECONDS = 60.0
_ERROR_FIELDS = tuple(counter.field for counter in COUNTERS if counter.field not in DATA_FIELDS)
_DRIVER = re.compile(r"mlx[45]_|infiniband|ib_core|ib_umad|ib_ipoib|\bib\d+: |irdma|hfi1")


@dataclass(frozen=True, slots=True)
class Reach:
    """Through what, for how long and where it is looked."""

    seconds: float = 5.0
    subnets: tuple[SubnetSettings, ...] = (SubnetSettings(),)
    description: str = ""
    state_dir: Path = Path("/nonexistent")
    root: Path = Path("/")
    local: bool = False
    fabric: bool = True


@dataclass(slots=True)
class _Seen:
    """One subnet at the begin and the end of the observation."""

    subnet: Subnet
    first: SubnetReading | None = None
    last: SubnetReading | None = None
    fault: str = ""


@dataclass(slots=True)
class _Local:
    """The node's own ports at the begin and the end."""

    first: dict[str, PortReading] = field(default_factory=dict)
    last: dict[str, PortReading] = field(default_factory=dict)
    messages: tuple[str, ...] | None = None
    fault: str = ""


def gather(
    node: str, reach: Reach, sleep: Callable[[float], None], now_ns: Callable[[], int]
) -> Evidence:
    """What is known of ``node``. Raises ValueError for a description that is no pattern."""
    try:
        pattern = re.compile(reach.description) if reach.description else None
    except re.error as error:
        raise ValueError(f"--description is no regular expression: {error}") from error
    runner = Runner()
    here = reach.local or node == socket.gethostname().split(".")[0]
    rails, local = _rails(reach, pattern, runner) if reach.fabric else [], _Local()
    for seen in rails:
        seen.first = _sweep(seen, now_ns())
    if here:
        local.first = _ports(reach.root, local)
    if reach.seconds > 0 and (local.first or any(seen.first for seen in rails)):
        sleep(reach.seconds)
    for seen in rails:
        if seen.first is not None:
            seen.last = _sweep(seen, now_ns())
    if here:
        local.last = _ports(reach.root, local)
        local.messages = _messages(runner)
    for seen in rails:
        seen.subnet.close()
    return _evidence(node, reach, rails, local, here)


def _rails(reach: Reach, pattern: re.Pattern[str] | None, runner: Runner) -> list[_Seen]:
    rails: list[_Seen] = []
    for one in reach.subnets:
        options = SubnetOptions(
            one.name, one.adapter, one.port, description=pattern, rediscover_seconds=0.0
        )
        cabling = load_cabling(reach.state_dir / STATE_FILE, one.name)
        rails.append(_Seen(Subnet(options, runner, cabling)))
    return rails


def _sweep(seen: _Seen, now_ns: int) -> SubnetReading | None:
    try:
        return seen.subnet.read(now_ns, DEADLINE_SECONDS)
    except SourceUnavailable as error:
        seen.fault = str(error)
        return None


def _ports(root: Path, local: _Local) -> dict[str, PortReading]:
    try:
        names = devices(root)
    except OSError as error:
        local.fault = f"/sys/class/infiniband: {error.strerror}"
        return {}
    read = [port for name in names for port in read_device(root, name) if not port.virtual]
    links = fold(port for port in read if not port.ethernet)
    found = {link.name: link for link in links if not link.planes}
    # Of a link with planes each plane is looked at: that is where a cable hangs.
    return found | {plane_name(link, one): one for link in links for one in link.planes}


def _messages(runner: Runner) -> tuple[str, ...] | None:
    result = runner.run(["dmesg"], deadline_seconds=5.0)
    if not result.ok:
        return None
    lines = [line for line in result.text().splitlines() if _DRIVER.search(line)]
    return tuple(clip(line, 200) for line in lines[-20:])


def _evidence(
    node: str, reach: Reach, rails: Sequence[_Seen], local: _Local, here: bool
) -> Evidence:
    missing = [
        f"the fabric: {clip(seen.fault, 300)}" for seen in rails if not (seen.last or seen.first)
    ]
    if here and local.fault:
        missing.append(local.fault)
    if not here:
        missing.append(f"{node}'s own end, IPoIB and kernel log: run this on {node}, too")
    # Where several rails were read, one without a manager is what is told.
    managers = [_manager(seen) for seen in rails if seen.last or seen.first]
    up, words = min(managers, default=(None, ""))
    links: dict[str, LinkEvidence] = {}
    for seen in rails:
        links.update(_links(node, seen, local))
    for name, own in local.last.items():
        if name not in links:
            before = local.first.get(name)
            view = LinkView(_end(before.fields if before else {}, own.fields), manager_up=up)
            links[name] = LinkEvidence(name, view, "node", *_service(own))
    told = tuple(links[name] for name in sorted(links))
    return Evidence(node, told, up, words, local.messages, tuple(missing), reach.seconds)


def _manager(seen: _Seen) -> tuple[bool, str]:
    reading = seen.last or seen.first
    assert reading is not None
    manager = reading.manager
    if manager is None or manager.state != MASTER:
        return False, clip(reading.manager_fault, 200)
    return True, f"answers at LID {manager.lid}, {manager.activity} actions so far"


def _links(node: str, seen: _Seen, local: _Local) -> dict[str, LinkEvidence]:
    """The links of ``node`` in one subnet, by port name."""
    if not (seen.last or seen.first):
        return {}
    first = _points(seen.first)
    last = _points(seen.last or seen.first)
    cables, names = seen.subnet.cabling.cables, seen.subnet.cabling.names
    sick = _sick_hosts(seen, last)
    mine = sum(1 for cable in cables.values() if cable.node == node)
    mine_sick = max(1, sum(hosts.count(node) for hosts in sick.values()))
    manager_up, _ = _manager(seen)
    rates: dict[str, list[float]] = {}
    for (guid, _), point in last.items():
        rate = point.fields.get("rate_bits_per_second")
        if (guid, point.port) in cables and point.fields.get("state") == ACTIVE and rate:
            rates.setdefault(guid, []).append(rate)
    everywhere = [rate for listed in rates.values() for rate in listed]
    found: dict[str, LinkEvidence] = {}
    for (guid, number), cable in cables.items():
        if cable.node != node:
            continue
        name = seen.subnet.cabling.label(cable)
        own = local.last.get(name)
        before = local.first.get(name)
        adapter_key = (cable.guid, str(cable.port))
        host = (
            _end(before.fields if before else {}, own.fields)
            if own is not None
            else _end_of(first.get(adapter_key), last.get(adapter_key))
        )
        switch_key = (guid, str(number))
        view = LinkView(
            host,
            _end_of(first.get(switch_key), last.get(switch_key)),
            names.get(guid, guid),
            number,
            len({one.node for (where, _), one in cables.items() if where == guid}),
            len(set(sick.get(guid, []))),
            mine,
            mine_sick,
            manager_up,
            False,
            # Few hosts on one switch are no measure: then what nearly all of the fabric has.
            usual_rate(rates.get(guid, ())) or usual_rate(everywhere, 0.75),
        )
        found[name] = LinkEvidence(name, view, "node" if own else "fabric", *_service(own))
    return found


def _service(
    own: PortReading | None,
) -> tuple[tuple[tuple[str, bool | None], ...], int | None]:
    if own is None:
        return (), None
    return tuple((one.name, one.up) for one in own.netdevs if one.ipoib), own.sm_lid


def _points(reading: SubnetReading | None) -> dict[tuple[str, str], PortPoint]:
    if reading is None:
        return {}
    return {(point.tags["guid"], point.tags["port"]): point for point in reading.points}


def _end_of(first: PortPoint | None, last: PortPoint | None) -> End:
    if last is None:
        return End()
    return _end(first.fields if first is not None else {}, last.fields)


def _end(first: Mapping[str, float], last: Mapping[str, float]) -> End:
    growth = {
        name: last[name] - first[name]
        for name in _ERROR_FIELDS
        if name in first and name in last and last[name] > first[name]
    }
    return End(dict(last), growth, True)


def _sick_hosts(seen: _Seen, points: Mapping[tuple[str, str], PortPoint]) -> dict[str, list[str]]:
    """Switch GUID -> the hosts whose ports there are not well, once per port."""
    found: dict[str, list[str]] = {}
    for (guid, number), cable in seen.subnet.cabling.cables.items():
        point = points.get((guid, str(number)))
        if point is None:
            continue
        alone = LinkView(switch=_end({}, point.fields))
        if place(alone).part is not Part.NONE:
            found.setdefault(guid, []).append(cable.node)
    return found
