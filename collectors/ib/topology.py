"""Reads what ``ibnetdiscover`` prints: which port is connected to which, and to whose node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from collectors.ib.text import Points, Problems, whole_lines
from collectors.ib.units import WIDTHS, guid_of, host_of, lane_fields
from collectors.sample import Problem, Sample

Kind = Literal["switch", "adapter", "router"]


@dataclass(frozen=True, slots=True)
class Link:
    """One end of a link: our port and the port that it is connected to.

    ``port_guid`` is an adapter port's own GUID, '' on switches. ``fields`` holds width, lane
    speed and rate as far as they are known.
    """

    port: int
    peer_guid: str
    peer_port: int
    fields: Mapping[str, float] = field(default_factory=dict)
    port_guid: str = ""
    lid: int = 0


@dataclass(slots=True)
class FabricNode:
    """A switch, adapter or router: its GUID, what it calls itself, and its connected ports.

    ``ports`` is how many it has; ``lid`` is a switch's (an adapter has one per port). ``host``
    and ``device`` are what the description of an adapter names.
    """

    kind: Kind
    guid: str
    description: str
    ports: int
    lid: int = 0
    links: dict[int, Link] = field(default_factory=dict)
    host: str = ""
    device: str = ""


@dataclass(slots=True)
class Topology:
    """A fabric: its nodes by GUID."""

    nodes: dict[str, FabricNode] = field(default_factory=dict)

    def switches(self) -> Iterator[FabricNode]:
        """The switches."""
        return (node for node in self.nodes.values() if node.kind == "switch")

    def adapters(self) -> Iterator[FabricNode]:
        """The channel adapters."""
        return (node for node in self.nodes.values() if node.kind == "adapter")

    def peer(self, guid: str, port: int) -> tuple[FabricNode, Link] | None:
        """The node and link at the other end of ``port`` of ``guid``, if it is known."""
        node = self.nodes.get(guid)
        link = node.links.get(port) if node else None
        if link is None:
            return None
        other = self.nodes.get(link.peer_guid)
        if other is None:
            return None
        back = other.links.get(link.peer_port)
        return (other, back) if back is not None else None

    def of_host(self, host: str) -> list[FabricNode]:
        """The adapters that call themselves a part of ``host``."""
        return [node for node in self.adapters() if node.host == host]

    def leaf_of(self, host: str) -> dict[str, str]:
        """Adapter GUID -> GUID of the switch that it hangs on, for each adapter of ``host``."""
        found: dict[str, str] = {}
        for node in self.of_host(host):
            for link in node.links.values():
                found[node.guid] = link.peer_guid
        return found


_NODE = re.compile(r'(Switch|Ca|Rt)\s+(\d{1,3})\s+"([SHR])-([0-9a-f]{1,16})"\s*#\s*"(.*)"\s*(.*)\Z')
_SWITCH_LID = re.compile(r"\blid (\d{1,5})\b")
_EXTERNAL = r"(?:\[ext \d{1,4}\])?"
_LINK = re.compile(
    rf"\[(\d{{1,3}})\]{_EXTERNAL}(?:\(([0-9a-f]{{1,16}})\))?\s+"
    rf'"[SHR]-([0-9a-f]{{1,16}})"\[(\d{{1,3}})\]{_EXTERNAL}(?:\([0-9a-f]{{1,16}}\))?\s*#\s*(.*)\Z'
)
_OWN_LID = re.compile(r"\Alid (\d{1,5}) ")
_SPEED = re.compile(r"\s(\d{1,2})x([A-Z]{2,4}\d{0,2})?\S*\Z")
_SILENT = re.compile(r"(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid|Chassis)\b|#|DR path\b")
_END = r"(CA|SW|RT)\s+(\d{1,5})\s+(\d{1,3})\s+(0x[0-9a-f]{1,16})\s+"
_PORT_REPORT = re.compile(
    _END + r"(\d{1,2})x\s+([A-Z]{2,4}\d{0,2}|\S+)\s+"
    rf"(?:-\s+{_END}\(\s*'(.*)' - '(.*)'\s*\)|'.*')\Z"
)
_KINDS: dict[str, Kind] = {"Switch": "switch", "Ca": "adapter", "Rt": "router"}


def parse_topology(
    text: str | bytes, description: re.Pattern[str] | None = None
) -> tuple[Topology, list[Problem]]:
    """The fabric in an ``ibnetdiscover`` text (not ``-p``), and what could not be read of it.

    ``description`` is how the site writes node descriptions (see ``ib_units.host_of``).
    """
    problems = Problems()
    topology = Topology()
    node: FabricNode | None = None
    for line in whole_lines(text, problems):
        if match := _NODE.match(line):
            node = _node(match, description)
            if node.guid in topology.nodes:
                problems.add("the same node a second time is left out", line)
                node = None
            else:
                topology.nodes[node.guid] = node
        elif match := _LINK.match(line):
            if node is None:
                problems.add("a link without its node is left out", line)
            else:
                link = _link(match)
                node.links[link.port] = link
                if link.port > node.ports:
                    problems.add("a port beyond the number of ports", line)
        elif not line.strip():
            continue
        elif _SILENT.match(line):
            node = None if "guid=" in line else node
        elif problems.unknown(line, "ibnetdiscover") and not line.startswith("["):
            node = None
    return topology, problems.all()


def _node(match: re.Match[str], description: re.Pattern[str] | None) -> FabricNode:
    kind = _KINDS[match.group(1)]
    lid = _SWITCH_LID.search(match.group(6)) if kind == "switch" else None
    node = FabricNode(
        kind,
        guid_of(match.group(4)),
        match.group(5),
        int(match.group(2)),
        int(lid.group(1)) if lid else 0,
    )
    if kind == "adapter":
        node.host, node.device = host_of(node.description, description)
    return node


def _link(match: re.Match[str]) -> Link:
    port, port_guid, peer_guid, peer_port, rest = match.groups()
    lid = _OWN_LID.match(rest) if port_guid else None
    speed = _SPEED.search(" " + rest)
    fields: dict[str, float] = {}
    if speed and int(speed.group(1)) in WIDTHS:
        fields = lane_fields(int(speed.group(1)), speed.group(2) or "")
    return Link(
        int(port),
        guid_of(peer_guid),
        int(peer_port),
        fields,
        guid_of(port_guid) if port_guid else "",
        int(lid.group(1)) if lid else 0,
    )


def port_tags(topology: Topology, node: FabricNode, port: int) -> dict[str, str]:
    """The ``fabric_port`` tags of a port; ``peer_node`` is the host on its link, '' if none."""
    link = node.links.get(port)
    if node.kind == "adapter":
        guid = link.port_guid if link and link.port_guid else node.guid
        return {"guid": guid, "port": str(port), "peer_node": node.host}
    other = topology.nodes.get(link.peer_guid) if link else None
    return {"guid": node.guid, "port": str(port), "peer_node": other.host if other else ""}


def parse_ibnetdiscover(
    text: str | bytes, node: str, now_ns: int
) -> tuple[list[Sample], list[Problem]]:
    """``ibnetdiscover`` (also ``-p``) as ``fabric_port`` points; ``node`` is not used."""
    del node
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    if any(_PORT_REPORT.match(line) for line in text[:65_536].split("\n")):
        return _parse_ports_report(text, now_ns)
    topology, problems = parse_topology(text)
    found = Problems(list(problems))
    points = Points(found)
    for one in topology.nodes.values():
        for port, link in one.links.items():
            points.put("fabric_port", port_tags(topology, one, port), link.fields)
    return points.samples(now_ns), found.all()


def _parse_ports_report(text: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    problems = Problems()
    points = Points(problems)
    for line in whole_lines(text, problems):
        if not line.strip():
            continue
        match = _PORT_REPORT.match(line)
        if match is None:
            problems.unknown(line, "ibnetdiscover -p")
            continue
        if match.group(7) is None:
            continue  # not connected: width and speed are what the port would start with
        tags = {"guid": guid_of(match.group(4)), "port": match.group(3)}
        if match.group(1) == "CA":
            tags["peer_node"] = host_of(match.group(11))[0]
        elif match.group(7) == "CA":
            tags["peer_node"] = host_of(match.group(12))[0]
        points.put("fabric_port", tags, lane_fields(int(match.group(5)), match.group(6)))
    return points.samples(now_ns), problems.all()
