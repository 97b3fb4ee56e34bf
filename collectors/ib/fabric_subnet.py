"""One subnet: what is connected to what, and one sweep over all its ports."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collectors.command import Result, Runner
from collectors.ib.fabric_answers import Answers, Manager, read_answers
from collectors.ib.fabric_cabling import Cabling
from collectors.ib.fabric_tools import read_by_tools
from collectors.ib.text import FAILURE
from collectors.ib.topology import FabricNode, Topology, parse_topology
from collectors.ib.units import DOWN
from collectors.sample import Problem, SourceUnavailable, clip
from collectors.worker import Worker, WorkerEnded, WorkerError, WorkerHung

MASTER = 3  # the state of a subnet manager that is at work
SECOND_NS = 1_000_000_000
OUTPUT_LIMIT_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SubnetOptions:
    """Through which adapter and port of the head the subnet is reached, and how hard it is asked.

    ``window`` requests are in flight at once; each waits ``timeout_ms`` and is repeated
    ``retries`` times.
    """

    name: str = "ib"
    adapter: str = ""
    port: int = 0
    window: int = 64
    timeout_ms: int = 300
    retries: int = 2
    topology_seconds: float = 600.0
    rediscover_seconds: float = 30.0
    description: re.Pattern[str] | None = None
    method: str = "auto"


@dataclass(slots=True)
class PortPoint:
    """One port of the sweep: its tags and what was read."""

    node: FabricNode
    port: int
    tags: dict[str, str]
    fields: dict[str, float]
    saturated: tuple[str, ...] = ()


@dataclass(slots=True)
class SubnetReading:
    """One cycle of one subnet. ``unreachable`` names nodes (GUID -> why) that did not answer."""

    points: list[PortPoint] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unreachable: dict[str, str] = field(default_factory=dict)
    unread_ports: int = 0
    manager: Manager | None = None
    manager_fault: str = ""
    switches: int = 0
    adapters: int = 0
    requests: int = 0
    timeouts: int = 0
    sweep_seconds: float = 0.0
    topology_age_seconds: float = 0.0
    fallback: bool = False
    whole: bool = True
    faults: list[str] = field(default_factory=list)


_SMINFO = re.compile(
    r"sminfo: sm lid (\d{1,5}) sm guid (0x[0-9a-f]{1,16}), activity count (\d{1,20}) "
    r"priority (\d{1,2}) state (\d{1,2}) "
)


def parse_sminfo(text: str) -> Manager | None:
    """The subnet manager in the output of ``sminfo``, or None."""
    match = _SMINFO.search(text)
    if match is None:
        return None
    lid, guid, activity, priority, state = match.groups()
    return Manager(int(lid), guid, int(activity), int(priority), int(state))


class Subnet:
    """Discovers and sweeps one subnet; remembers who did not answer, and what was where.

    ``planar`` says whether the head's adapter has planes. Where it does, subnet management packets
    that are sent by LID are not valid, and the sweep sends its questions so; the tools know better
    (rdma-core, "ibportstate: send SMP only in direct route, as required in planarized fabrics").
    """

    def __init__(
        self,
        options: SubnetOptions,
        runner: Runner,
        cabling: Cabling,
        planar: Callable[[], bool] = lambda: False,
    ) -> None:
        self.options = options
        self._planar = planar
        where = str(Path.cwd())  # as the tools run
        self._worker = Worker(f"fabric {options.name}", "collectors.ib.fabric_worker", cwd=where)
        self.cabling = cabling
        self.topology: Topology | None = None
        self.new_cables: list[tuple[str, int]] = list(cabling.cables)
        self.cabling_changed = False
        self._runner = runner
        self._topology_ns = 0
        self._tried_ns = 0
        self._stale = False
        self._manager_lid = 0
        self._suspects: set[str] = set()
        self._masks: dict[str, tuple[int, int]] = {}
        self._down: set[tuple[str, int]] | None = None

    def close(self) -> None:
        """Ends the process that sweeps. May be called twice."""
        self._worker.close()

    @property
    def worker_pid(self) -> int:
        """The process that sweeps, 0 while there is none."""
        return self._worker.pid

    def read(self, now_ns: int, deadline_seconds: float) -> SubnetReading:
        """One cycle. Raises SourceUnavailable when nothing at all could be read."""
        reading = SubnetReading()
        self._discover(now_ns, deadline_seconds * 0.4, reading)
        topology = self.topology
        if topology is None:
            raise SourceUnavailable(f"{self.options.name}: " + "; ".join(reading.faults))
        reading.topology_age_seconds = (now_ns - self._topology_ns) / SECOND_NS
        reading.switches = sum(1 for _ in topology.switches())
        reading.adapters = sum(1 for _ in topology.adapters())
        by_tools = self.options.method == "tools" or self._planar()
        if by_tools or not self._sweep(topology, reading, deadline_seconds * 0.45):
            self._by_tools(topology, reading, now_ns, deadline_seconds * 0.15)
        if reading.manager is None or reading.manager.state != MASTER:
            # Not known yet, or it does not answer where it was: the tool looks for it.
            reading.manager, reading.manager_fault = self._ask_manager(deadline_seconds)
        self._manager_lid = reading.manager.lid if reading.manager else 0
        return reading

    # ---- who is there ------------------------------------------------------------------------

    def _discover(self, now_ns: int, deadline_seconds: float, reading: SubnetReading) -> None:
        age = (now_ns - self._topology_ns) / SECOND_NS
        since_try = (now_ns - self._tried_ns) / SECOND_NS
        due = self.topology is None or self._stale or age >= self.options.topology_seconds
        if not due or (self._tried_ns and since_try < self.options.rediscover_seconds):
            return
        self._tried_ns = now_ns
        result = self._tool("ibnetdiscover", [], deadline_seconds)
        topology, problems = parse_topology(result.text(), self.options.description)
        lost = [line for line in _lines(result.stderr) if "umad" in line or "timed out" in line]
        if not result.ok or not topology.nodes:
            reading.faults.append(result.fault or "ibnetdiscover found nothing")
            return
        reading.problems += [*problems, *(Problem("not reached", line) for line in lost[:20])]
        old = self.topology
        if old is not None and (lost or problems):
            # Part of the fabric did not answer: what was known of it is kept, not forgotten.
            for guid, node in old.nodes.items():
                topology.nodes.setdefault(guid, node)
        self.topology = topology
        self._topology_ns = now_ns
        self._stale = False
        changed = self.cabling.learn(topology)
        self.new_cables += changed
        self.cabling_changed = self.cabling_changed or bool(changed)

    def _ask_manager(self, deadline_seconds: float) -> tuple[Manager | None, str]:
        """The subnet manager, or why there is none."""
        result = self._tool("sminfo", [], min(5.0, deadline_seconds * 0.15))
        found = parse_sminfo(result.text()) if result.ok else None
        silent = result.fault or "sminfo says nothing of a subnet manager"
        return found, "" if found else silent

    # ---- the sweep ---------------------------------------------------------------------------

    def _sweep(self, topology: Topology, reading: SubnetReading, deadline_seconds: float) -> bool:
        """Asks every port through libibumad. False when that is not possible here."""
        targets = self._targets(topology)
        if not targets:
            reading.faults.append("no node of the topology has a LID: is a subnet manager there?")
            return True
        lines = [line for _, line in targets.values()]
        told: list[bytes] = []
        arguments = {
            "lines": "\n".join(lines),
            "adapter": self.options.adapter,
            "port": self.options.port,
            "window": self.options.window,
            "timeout_ms": self.options.timeout_ms,
            "retries": self.options.retries,
            "deadline_seconds": deadline_seconds * 0.9,
            "manager_lid": self._manager_lid,
        }
        try:
            self._worker.call(
                "sweep",
                arguments,
                deadline_seconds=deadline_seconds,
                on_part=lambda part: told.append(base64.b64decode(part)),
            )
        except WorkerHung as error:
            # What hung the sweep hangs the tools, too: there is no time left to try.
            raise SourceUnavailable(f"{self.options.name}: {error}") from error
        except (WorkerError, WorkerEnded) as error:
            reading.faults.append(str(error))
            return False
        answers = read_answers(b"".join(told))
        if answers is None:
            reading.faults.append("the sweep ended without its last record")
            return False
        self._take(topology, {lid: node for lid, (node, _) in targets.items()}, answers, reading)
        return True

    def _targets(self, topology: Topology) -> dict[int, tuple[FabricNode, str]]:
        """LID -> node and its line for the sweep. A LID claimed twice is given to nobody."""
        found: dict[int, tuple[FabricNode, str]] = {}
        twice: set[int] = set()
        for node in topology.nodes.values():
            for lid, ports, flags in _wanted(node):
                if not 0 < lid < 0xC000:
                    continue
                if lid in found and found[lid][0] is not node:
                    twice.add(lid)
                flags += "s" if node.guid in self._suspects else ""
                mask = self._masks.get(node.guid)
                told = f"{mask[0]}:{mask[1]}" if mask else "?"
                listed = ",".join(map(str, ports))
                flags = flags or "-"
                found[lid] = (node, f"{lid} {node.guid} {listed} {flags} {told}")
        return {lid: entry for lid, entry in found.items() if lid not in twice}

    def _take(
        self,
        topology: Topology,
        nodes: dict[int, FabricNode],
        answers: Answers,
        reading: SubnetReading,
    ) -> None:
        reading.requests, reading.timeouts = answers.requests, answers.timeouts
        reading.sweep_seconds, reading.whole = answers.seconds, answers.whole
        reading.problems += answers.problems
        reading.unread_ports = len(answers.failed)
        reading.manager = answers.manager
        for lid, mask in answers.masks.items():
            self._masks[nodes[lid].guid] = mask
        suspects: set[str] = set()
        for lid, words in answers.unread.items():
            node = nodes[lid]
            suspects.add(node.guid)
            reading.unreachable[node.guid] = words
            if lid in answers.strangers:
                self._stale = True
        down: set[tuple[str, int]] = set()
        for (lid, port), fields in answers.ports.items():
            node = nodes[lid]
            if fields.get("state") == DOWN:
                down.add((node.guid, port))
            self._point(topology, node, port, fields, answers, lid, reading)
        if (self._down is not None and down != self._down) or suspects - self._suspects:
            self._stale = True
        self._down, self._suspects = down, suspects

    def _point(
        self,
        topology: Topology,
        node: FabricNode,
        port: int,
        fields: dict[str, float],
        answers: Answers,
        lid: int,
        reading: SubnetReading,
    ) -> None:
        tags = self.cabling.tags(topology, node, port)
        unused = fields.get("state") == DOWN and not tags.get("peer_node")
        if node.kind == "switch" and unused and port not in node.links:
            return  # a port that nothing was ever seen on
        if fields:
            saturated = answers.saturated.get((lid, port), ())
            reading.points.append(PortPoint(node, port, tags, fields, saturated))

    def _by_tools(
        self, topology: Topology, reading: SubnetReading, now_ns: int, deadline_seconds: float
    ) -> None:
        reading.fallback = True
        found = read_by_tools(self._tool, topology, now_ns, deadline_seconds)
        reading.problems += found.problems
        reading.faults += found.faults
        for (guid, port), fields in found.ports.items():
            node = topology.nodes[guid]
            tags = self.cabling.tags(topology, node, port)
            if fields.get("state") != DOWN or tags.get("peer_node"):
                reading.points.append(PortPoint(node, port, tags, fields))
        if not reading.points:
            raise SourceUnavailable(f"{self.options.name}: " + clip("; ".join(reading.faults)))

    def _tool(
        self,
        name: str,
        arguments: Sequence[str],
        deadline_seconds: float,
    ) -> Result:
        where: list[str] = []
        if self.options.adapter:
            where += ["-C", self.options.adapter]
        if self.options.port:
            where += ["-P", str(self.options.port)]
        return self._runner.run(
            [name, *where, *arguments],
            deadline_seconds=deadline_seconds,
            kind=f"{name}-{self.options.name}",
            output_bytes=OUTPUT_LIMIT_BYTES,
        )


def _wanted(node: FabricNode) -> list[tuple[int, list[int], str]]:
    """(LID, ports, flags) of what is asked of a node: a switch tells of its links, too."""
    if node.kind == "switch":
        return [(node.lid, list(range(1, node.ports + 1)), "i")]
    ports: dict[int, list[int]] = {}  # planes of one link have one LID
    if node.kind == "adapter":
        for port, link in node.links.items():
            ports.setdefault(link.lid, []).append(port)
    return [(lid, listed, "") for lid, listed in ports.items()]


def _lines(raw: bytes) -> list[str]:
    text = raw[:65_536].decode("utf-8", "replace")
    return [line for line in text.splitlines() if FAILURE.search(line)]
