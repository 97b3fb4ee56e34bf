"""What is remembered of a fabric: who hangs on which switch port, and who did not answer.

A switch port whose link is down no longer says what it was connected to. The cabling is therefore
remembered, also across restarts, so that a dead link still has its node's name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.ib.topology import FabricNode, Topology, port_tags

LIMIT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Cable:
    """The host's end of a cable: node and device names, GUID and number of the adapter's port."""

    node: str
    device: str
    guid: str
    port: int


@dataclass(slots=True)
class Cabling:
    """Switch port (GUID, number) -> the host's end. ``names`` are the switches' descriptions."""

    cables: dict[tuple[str, int], Cable] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    planar: set[str] = field(default_factory=set)  # GUIDs whose link has several planes

    def learn(self, topology: Topology) -> list[tuple[str, int]]:
        """Takes in what is connected now, and answers which cables are new or have moved."""
        changed: list[tuple[str, int]] = []
        self.names.update((switch.guid, switch.description) for switch in topology.switches())
        # A cable that was moved has left its old place.
        old_places = {(cable.guid, cable.port): place for place, cable in self.cables.items()}
        for adapter in topology.adapters():
            guids = [link.port_guid for link in adapter.links.values() if link.port_guid]
            # One GUID on several ports: planes of one link (see collectors.ib.planes).
            self.planar.update(guid for guid in guids if guids.count(guid) > 1)
            if not adapter.host:
                continue
            for port, link in adapter.links.items():
                guid = link.port_guid or adapter.guid
                cable = Cable(adapter.host, adapter.device, guid, port)
                place = (link.peer_guid, link.peer_port)
                if self.cables.get(place) == cable:
                    continue
                changed.append(place)
                old = old_places.get((guid, port))
                if old is not None and self.cables.get(old, cable).guid == guid:
                    self.cables.pop(old, None)
                self.cables[place] = cable
        return changed

    def tags(self, topology: Topology, node: FabricNode, port: int) -> dict[str, str]:
        """The tags of a port: as connected now, else as it was connected last."""
        tags = port_tags(topology, node, port)
        if node.kind == "switch" and not tags.get("peer_node") and port not in node.links:
            cable = self.cables.get((node.guid, port))
            tags["peer_node"] = cable.node if cable else ""
        return tags

    def label(self, cable: Cable) -> str:
        """What the host's end is called: ``mlx5_0/1``, and ``mlx5_0/1.3`` the third plane of it."""
        device = cable.device or cable.guid
        return f"{device}/1.{cable.port}" if cable.guid in self.planar else f"{device}/{cable.port}"

    def leaves(self) -> dict[str, tuple[str, ...]]:
        """Node -> the GUIDs of the switches that it hangs on, sorted."""
        found: dict[str, set[str]] = {}
        for (guid, _), cable in self.cables.items():
            found.setdefault(cable.node, set()).add(guid)
        return {node: tuple(sorted(guids)) for node, guids in found.items()}

    def groups(self, names: Mapping[str, str] | None = None) -> dict[str, tuple[str, ...]]:
        """Node -> the switches that it hangs on, as policy names groups: ``leaf leaf-0-0``.

        ``names`` are those of all subnets' switches, where there are several subnets. Switches that
        share a name (out of the box all of one make do) are told apart by their GUID.
        """
        names = self.names if names is None else names
        times = Counter(names.values())

        def name_of(guid: str) -> str:
            name = names.get(guid, "")
            return (name if times[name] == 1 else f"{name} {guid}".strip()) or guid

        return {
            node: tuple(f"leaf {name_of(guid)}" for guid in guids)
            for node, guids in self.leaves().items()
        }

    def dump(self) -> list[list[Any]]:
        """As JSON data."""
        return [
            [guid, port, cable.node, cable.device, cable.guid, cable.port, self.names.get(guid)]
            for (guid, port), cable in self.cables.items()
        ]


def load_cabling(path: Path, subnet: str) -> Cabling:
    """What ``save_cabling`` wrote for ``subnet``; nothing where the file is absent or spoilt."""
    cabling = Cabling()
    try:
        with open(path, "rb") as file:
            rows = json.loads(file.read(LIMIT_BYTES))[subnet]
        for guid, port, node, device, adapter, adapter_port, name in rows:
            cable = Cable(str(node), str(device), str(adapter), int(adapter_port))
            cabling.cables[str(guid), int(port)] = cable
            cabling.names[str(guid)] = str(name or "")
    except (OSError, ValueError, KeyError, TypeError):
        return Cabling()
    ends = Counter(cable.guid for cable in cabling.cables.values())
    cabling.planar = {guid for guid, count in ends.items() if count > 1}
    return cabling


def save_cabling(path: Path, cablings: Mapping[str, Cabling]) -> None:
    """Writes all subnets; a full disk costs only this."""
    part = path.with_suffix(".part")
    try:
        text = json.dumps({subnet: cabling.dump() for subnet, cabling in cablings.items()})
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError:
        return
