"""The ``fabric`` source, on the head: every port of the InfiniBand fabric, from outside.

``fabric_port`` [guid, port, peer_node]: one end of a link; ``peer_node`` is the host on the link,
also while it is down, and absent between switches. A switch's port has the switch's GUID, an
adapter's port its own. ``fabric`` [subnet]: the sweep itself. ``event`` of kind ``fabric``:
``unreachable``, ``reachable``, ``gone``, ``sm_lost``, ``sm_back``, ``saturated``; of kind
``inventory`` and code ``link``, once per cable and when it changes: which port of which host
hangs on which port of which switch.

Several subnets (rails) are read side by side; one that fails costs only itself. Counters are
read, never reset.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from collectors.command import Runner
from collectors.events import ERROR, EVENT_METRICS, INFO, WARNING, event, spaced
from collectors.ib.fabric_cabling import load_cabling, save_cabling
from collectors.ib.fabric_subnet import MASTER, Subnet, SubnetOptions, SubnetReading
from collectors.ib.planes import planar
from collectors.ib.units import port_metrics
from collectors.options import Options as BaseOptions
from collectors.sample import (
    Batch,
    Context,
    Metric,
    Problem,
    Sample,
    Source,
    SourceUnavailable,
    Tags,
    sample,
)

_FABRIC: tuple[Metric, ...] = (
    Metric("fabric", "switches", "gauge", "Switches of the subnet.", 0, 1e6),
    Metric("fabric", "adapters", "gauge", "Adapters of the subnet.", 0, 1e6),
    Metric("fabric", "ports", "gauge", "Ports that were read in this sweep.", 0, 1e7),
    Metric("fabric", "unread_ports", "gauge", "Ports some answers of which were missing.", 0, 1e7),
    Metric("fabric", "unreachable_nodes", "gauge", "Nodes that did not answer.", 0, 1e6),
    Metric("fabric", "requests", "gauge", "Requests of this sweep.", 0, 1e9),
    Metric("fabric", "timeouts", "gauge", "Requests of this sweep without an answer.", 0, 1e9),
    Metric("fabric", "sweep_seconds", "gauge", "How long the sweep took.", 0, 1e5),
    Metric("fabric", "whole", "state", "1 when the sweep came to its end in time.", 0, 1),
    Metric("fabric", "fallback", "state", "1 when it was read by the tools instead.", 0, 1),
    Metric("fabric", "topology_age_seconds", "gauge", "Since the last discovery.", 0, 1e9),
    Metric("fabric", "manager_up", "state", "1 when a subnet manager answers as master.", 0, 1),
    Metric("fabric", "manager_lid", "state", "LID of the subnet manager.", 0, 0xFFFF),
    Metric("fabric", "manager_activity_total", "counter", "Its count of actions.", 0, 2**32),
)
METRICS: tuple[Metric, ...] = (*port_metrics("fabric_port"), *_FABRIC, *EVENT_METRICS)

STATE_FILE = "cabling.json"
EVENT_LIMIT = 200  # of one kind in one cycle: a whole fabric that is gone is one fault


class SubnetSettings(BaseModel):
    """One subnet: through which adapter and port of the head it is reached."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(default="ib", pattern=r"^[A-Za-z0-9_-]{1,32}$")
    adapter: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,64}$")
    port: int = Field(default=0, ge=0, le=254)


class Options(BaseOptions):
    """Which subnets are swept and how hard.

    ``node_description`` is a pattern with the groups ``node`` and, if it names one, ``device``,
    for sites whose node descriptions are not ``HOST DEVICE``. ``method`` ``tools`` reads by
    ibqueryerrors and iblinkinfo; ``auto`` does so only where libibumad cannot be used, and where
    the head's own adapter has planes (XDR): subnet packets by LID do not pass in such a fabric.
    """

    period_seconds: float = Field(default=60.0, gt=0, le=86_400)
    deadline_seconds: float = Field(default=50.0, gt=0, le=3_600)
    subnets: tuple[SubnetSettings, ...] = (SubnetSettings(),)
    method: Literal["auto", "tools"] = "auto"
    window: int = Field(default=64, ge=1, le=512)
    timeout_ms: int = Field(default=300, ge=10, le=60_000)
    retries: int = Field(default=2, ge=0, le=10)
    topology_seconds: float = Field(default=600.0, ge=10)
    rediscover_seconds: float = Field(default=30.0, ge=0)
    node_description: str = ""

    @field_validator("node_description")
    @classmethod
    def _pattern(cls, value: str) -> str:
        try:
            groups = re.compile(value).groupindex
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from error
        if value and "node" not in groups:
            raise ValueError("the pattern needs a group (?P<node>...)")
        return value

    @field_validator("subnets")
    @classmethod
    def _names(cls, value: tuple[SubnetSettings, ...]) -> tuple[SubnetSettings, ...]:
        names = [one.name for one in value]
        if not names or len(names) != len(set(names)):
            raise ValueError("at least one subnet, and each with a name of its own")
        return value


def make(options: Options, context: Context) -> Source:
    """The source of the head."""
    return FabricSource(options, context, Runner())


class FabricSource:
    """Sweeps all subnets at once and tells what changed."""

    name = "fabric"

    def __init__(self, options: Options, context: Context, runner: Runner) -> None:
        self.period_seconds = options.period_seconds
        self.deadline_seconds = options.deadline_seconds
        self._context = context
        pattern = re.compile(options.node_description) if options.node_description else None
        self._path = context.state_dir / STATE_FILE
        self.subnets: dict[str, Subnet] = {
            one.name: Subnet(
                SubnetOptions(
                    one.name,
                    one.adapter,
                    one.port,
                    options.window,
                    options.timeout_ms,
                    options.retries,
                    options.topology_seconds,
                    options.rediscover_seconds,
                    pattern,
                    options.method,
                ),
                runner,
                load_cabling(self._path, one.name),
                functools.partial(planar, context.root, one.adapter),
            )
            for one in options.subnets
        }
        self._unreachable: dict[str, set[str]] = {}
        self._manager_up: dict[str, bool] = {}
        self._saturated: set[tuple[str, str]] = set()

    def collect(self, now_ns: int) -> Batch:
        """One sweep of every subnet. Raises SourceUnavailable when none could be read."""
        readings: dict[str, SubnetReading] = {}
        faults: list[str] = []
        with ThreadPoolExecutor(max_workers=min(16, len(self.subnets))) as pool:
            started = {
                name: pool.submit(subnet.read, now_ns, self.deadline_seconds)
                for name, subnet in self.subnets.items()
            }
            for name, future in started.items():
                try:
                    readings[name] = future.result()
                except SourceUnavailable as error:
                    faults.append(str(error))
        if not readings:
            raise SourceUnavailable("; ".join(faults))
        ports: list[Sample] = []  # each port once: no two of them need to be told apart
        samples: list[Sample] = []
        problems: list[Problem] = [Problem(fault) for fault in faults]
        taken: set[tuple[str, str]] = set()
        for name, reading in readings.items():
            samples += self._tell(name, reading, taken, ports, now_ns)
            problems += reading.problems
            problems += [Problem(f"{name}: {fault}") for fault in reading.faults]
        if any(subnet.cabling_changed for subnet in self.subnets.values()):
            save_cabling(self._path, {n: s.cabling for n, s in self.subnets.items()})
            for subnet in self.subnets.values():
                subnet.cabling_changed = False
        told = (*ports, *spaced(samples))
        return Batch(self.name, told, tuple(problems), fault="; ".join(faults))

    def close(self) -> None:
        """Ends the processes that sweep; other programs end with their cycle."""
        for subnet in self.subnets.values():
            subnet.close()

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Node -> its leaf switches, as groups for common causes and caps: as last known."""
        found: dict[str, set[str]] = {}
        every: dict[str, str] = {}
        for subnet in self.subnets.values():
            every.update(subnet.cabling.names)
        for subnet in self.subnets.values():
            for node, names in subnet.cabling.groups(every).items():
                found.setdefault(node, set()).update(names)
        return {node: tuple(sorted(names)) for node, names in found.items()}

    # ---- inside ----------------------------------------------------------------------------

    def _tell(
        self,
        subnet: str,
        reading: SubnetReading,
        taken: set[tuple[str, str]],
        ports: list[Sample],
        now_ns: int,
    ) -> list[Sample]:
        """Puts the ports into ``ports``; answers what else there is to tell."""
        samples: list[Sample] = []
        for point in reading.points:
            key = (point.tags["guid"], point.tags["port"])
            if key not in taken:  # a switch that two subnets reach is told once
                taken.add(key)
                tags = _port_tags(*key, point.tags.get("peer_node", ""))
                ports.append(Sample("fabric_port", tags, point.fields, now_ns))
        manager = reading.manager
        up = manager is not None and manager.state == MASTER
        fields = {
            "switches": float(reading.switches),
            "adapters": float(reading.adapters),
            "ports": float(len(reading.points)),
            "unread_ports": float(reading.unread_ports),
            "unreachable_nodes": float(len(reading.unreachable)),
            "requests": float(reading.requests),
            "timeouts": float(reading.timeouts),
            "sweep_seconds": reading.sweep_seconds,
            "whole": float(reading.whole),
            "fallback": float(reading.fallback),
            "topology_age_seconds": max(0.0, reading.topology_age_seconds),
            "manager_up": float(up),
        }
        if manager is not None:
            fields["manager_lid"] = float(manager.lid)
            fields["manager_activity_total"] = float(manager.activity)
        samples.append(sample("fabric", now_ns, fields, subnet=subnet))
        samples += self._inventory(subnet, now_ns)
        return samples + self._events(subnet, reading, up, now_ns)

    def _inventory(self, subnet: str, now_ns: int) -> list[Sample]:
        """One event per cable that is new, has moved, or was not told since the start."""
        known = self.subnets[subnet]
        places, known.new_cables = known.new_cables, []
        told: list[Sample] = []
        for guid, port in dict.fromkeys(places):
            cable = known.cabling.cables.get((guid, port))
            if cable is None or not cable.node:
                continue
            name = known.cabling.names.get(guid, "")
            text = (
                f"switch={guid} switch_port={port} adapter={cable.guid} "
                f"adapter_port={cable.port} name={name}"
            )
            where = known.cabling.label(cable)
            told.append(
                event(
                    cable.node, "inventory", "link", now_ns, text=text, severity=INFO, device=where
                )
            )
        return told

    def _events(
        self, subnet: str, reading: SubnetReading, manager_up: bool, now_ns: int
    ) -> list[Sample]:
        told: list[tuple[str, float, str, str]] = []
        before = self._manager_up.get(subnet, True)
        if before and not manager_up:
            why = reading.manager_fault or "it is no master"
            told.append(("sm_lost", ERROR, f"{subnet}: no subnet manager: {why}", subnet))
        elif manager_up and not before:
            told.append(("sm_back", INFO, f"{subnet}: a subnet manager answers again", subnet))
        self._manager_up[subnet] = manager_up
        known = self._unreachable.get(subnet, set())
        if not reading.fallback:
            now = set(reading.unreachable)
            told += self._named(subnet, sorted(now - known), "unreachable", reading)
            topology = self.subnets[subnet].topology
            there = set(topology.nodes) if topology else set()
            told += self._named(subnet, sorted((known - now) & there), "reachable", reading)
            told += self._named(subnet, sorted(known - now - there), "gone", reading)
            self._unreachable[subnet] = now
        for point in reading.points:
            key = (point.tags["guid"], point.tags["port"])
            if point.saturated and key not in self._saturated:
                self._saturated.add(key)
                words = ", ".join(point.saturated)
                text = f"{point.node.description} port {point.port}: at their ceiling: {words}"
                told.append(("saturated", WARNING, text, "/".join(key)))
        return [
            event(
                self._context.node,
                "fabric",
                code,
                now_ns,
                text=text,
                severity=severity,
                device=device,
            )
            for code, severity, text, device in _bounded(told)
        ]

    def _named(
        self, subnet: str, guids: Sequence[str], code: str, reading: SubnetReading
    ) -> list[tuple[str, float, str, str]]:
        topology = self.subnets[subnet].topology
        told = []
        for guid in guids:
            node = topology.nodes.get(guid) if topology else None
            name = node.description if node else guid
            kind = node.kind if node else "node"
            severity = ERROR if kind == "switch" else WARNING
            severity = severity if code == "unreachable" else INFO
            usual = "it answers again" if code == "reachable" else "it has left the fabric"
            words = reading.unreachable.get(guid, usual)
            told.append((code, severity, f"{subnet}: {kind} {name}: {words}", guid))
        return told


@functools.lru_cache(maxsize=65_536)
def _port_tags(guid: str, port: str, peer_node: str) -> Tags:
    """The tags of a port, as :func:`sample` makes them; they are the same in every round."""
    return sample("fabric_port", 0, {}, guid=guid, port=port, peer_node=peer_node).tags


def _bounded(told: list[tuple[str, float, str, str]]) -> list[tuple[str, float, str, str]]:
    """The first of each code, and how many more there are."""
    kept: list[tuple[str, float, str, str]] = []
    count: dict[str, int] = {}
    for one in told:
        count[one[0]] = count.get(one[0], 0) + 1
        if count[one[0]] <= EVENT_LIMIT:
            kept.append(one)
    for code, number in count.items():
        if number > EVENT_LIMIT:
            kept.append((code, WARNING, f"and {number - EVENT_LIMIT} more: {code}", ""))
    return kept
