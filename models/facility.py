"""What happens to a whole rack or power feed: heat, power, fans, coolant, a dead BMC network.

A BMC sees its own inlet and its own supplies. When many of one group show the same at once, the
cause is the room and no node: one event names the group, people get one alert, and no node of the
group is drained for it. Limits for inlet air are those of ASHRAE's thermal guidelines for data
processing environments (recommended up to 27, allowable class A2 up to 35 degrees Celsius).
"""

from __future__ import annotations

import re
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectors.sample import Sample
from models.rules_chassis import ChassisThresholds, host_off, is_bad, part_of

SECOND_NS = 1_000_000_000
SENSORS_LIMIT = 64
FACILITY_MEASUREMENTS = frozenset({"source", "bmc"})

_INLET = re.compile(r"(?i)inlet|intake|ambient|front ?panel|air.?in\b")
_OUTLET = re.compile(r"(?i)exhaust|outlet|rear|air.?out\b")
_COOLANT = re.compile(r"(?i)coolant|liquid|water")
_TOTAL = re.compile(
    r"(?i)^(dcmi power|total[ _]?power|system power control|power control\b.*|pwr consumption)"
)


@dataclass(frozen=True, slots=True)
class FacilityThresholds:
    """Numbers that make an event. Shares are of the nodes of the group that are heard."""

    fresh_seconds: float = 600.0
    nodes_low: int = 3  # fewer nodes are no group
    share_low: float = 0.5
    inlet_hot_celsius: float = 35.0
    # Or: warmer than the other groups by this much, and above what is recommended.
    inlet_above_fleet_celsius: float = 8.0
    inlet_recommended_celsius: float = 27.0
    # Supplies lost, or fans stopped, within this time belong together.
    together_seconds: float = 600.0
    # Share of a group's BMCs that must be silent before their network is to blame.
    silent_share_low: float = 0.8


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """Something that happens to a group. ``kind`` is heat, power, fans, leak or silence.

    ``nodes`` show it; ``holds`` says whether nodes of the group must not be drained meanwhile.
    """

    group: str
    kind: str
    since_ns: int
    nodes: tuple[str, ...]
    severity: int
    text: str
    holds: bool = True

    @property
    def key(self) -> str:
        """Names the event while it lasts: one alert, however often it is told."""
        return f"facility/{self.kind}/{self.group}"


@dataclass(frozen=True, slots=True)
class GroupReading:
    """A group at a glance. A number is None where nobody tells it."""

    group: str
    nodes: int
    heard: int
    inlet_celsius: float | None
    outlet_celsius: float | None
    power_watts: float | None
    supplies_lost: int


@dataclass(slots=True)
class _Node:
    """What one node's BMC said last: (value, time) by sensor; and since when supplies are lost."""

    inlet: dict[str, tuple[float, int]] = field(default_factory=dict)
    outlet: dict[str, tuple[float, int]] = field(default_factory=dict)
    power: tuple[float, int] | None = None
    lost: dict[str, int] = field(default_factory=dict)
    had: set[str] = field(default_factory=set)
    # Fans that were seen to turn, and those of them that stand: since when, and when last seen.
    turned: set[str] = field(default_factory=set)
    stopped: dict[str, tuple[int, int]] = field(default_factory=dict)
    rpm: set[str] = field(default_factory=set)  # fans that tell more than a percentage
    off_ns: int = 0  # when the host was last told to be off; 0: it is on
    leaks: dict[str, int] = field(default_factory=dict)
    hot_since_ns: int = 0
    seen_ns: int = 0
    silent_since_ns: int = 0
    heard_ns: int = 0


class Facility:
    """Takes ``bmc`` and ``source`` samples and tells what happens to groups. One thread."""

    def __init__(self, thresholds: FacilityThresholds | None = None) -> None:
        self.thresholds = thresholds or FacilityThresholds()
        self._chassis = ChassisThresholds()
        self._nodes: dict[str, _Node] = {}
        self._since: dict[str, int] = {}

    # ---- in ----------------------------------------------------------------------------------

    def observe(self, sample: Sample, arrival_ns: int) -> None:
        """Takes in one sample; what is not about a chassis is ignored."""
        del arrival_ns
        name = sample.tag("node")
        if not name:
            return
        if sample.measurement == "source":
            if sample.tag("source") == "bmc":
                self._heard(name, sample)
        elif sample.measurement == "bmc":
            self._reading(self._nodes.setdefault(name, _Node()), sample)

    def _heard(self, name: str, sample: Sample) -> None:
        node = self._nodes.setdefault(name, _Node())
        if sample.time_ns < node.heard_ns:
            return
        node.heard_ns = sample.time_ns
        if sample.number("up") == 1.0:
            node.silent_since_ns = 0
        elif not node.silent_since_ns:
            node.silent_since_ns = sample.time_ns

    def _reading(self, node: _Node, sample: Sample) -> None:
        sensor, kind, time_ns = sample.tag("sensor"), sample.tag("kind"), sample.time_ns
        node.seen_ns = max(node.seen_ns, time_ns)
        value = sample.number("value")
        if kind == "celsius" and value is not None and not _COOLANT.search(sensor):
            held = node.inlet if _INLET.search(sensor) else None
            held = node.outlet if held is None and _OUTLET.search(sensor) else held
            if held is not None and (sensor in held or len(held) < SENSORS_LIMIT):
                held[sensor] = (value, time_ns)
        elif kind == "watts" and value is not None and _TOTAL.search(sensor):
            node.power = (value, time_ns)
        off = host_off(sample)
        if off is not None:
            node.off_ns = time_ns if off else 0
            if off:
                node.stopped.clear()
        part = part_of(sensor, kind)
        if part == "supplies":
            self._supply(node, sensor, sample)
        elif part == "fans":
            self._fan(node, sensor, sample)
        elif part == "leaks":
            if sample.number("critical") == 1.0 and len(node.leaks) < SENSORS_LIMIT:
                node.leaks.setdefault(sensor, time_ns)
            elif sample.number("critical") == 0.0:
                node.leaks.pop(sensor, None)

    @staticmethod
    def _supply(node: _Node, sensor: str, sample: Sample) -> None:
        bad = sample.number("critical") == 1.0 or sample.number("present") == 0.0
        if not bad:
            node.lost.pop(sensor, None)
            if len(node.had) < SENSORS_LIMIT:
                node.had.add(sensor)
        elif sensor in node.had:
            node.lost.setdefault(sensor, sample.time_ns)

    def _fan(self, node: _Node, sensor: str, sample: Sample) -> None:
        bad = is_bad("fans", sample, self._chassis)
        if sample.tag("kind") == "ratio":
            if sensor in node.rpm:
                return
        elif len(node.rpm) < SENSORS_LIMIT:
            node.rpm.add(sensor)
        if bad is None or (bad and self._is_off(node, sample.time_ns)):
            return
        if not bad:
            node.stopped.pop(sensor, None)
            if len(node.turned) < SENSORS_LIMIT:
                node.turned.add(sensor)
        elif sensor in node.turned:
            since_ns, _ = node.stopped.get(sensor, (sample.time_ns, 0))
            node.stopped[sensor] = (since_ns, sample.time_ns)

    def _is_off(self, node: _Node, at_ns: int) -> bool:
        """Whether its host was told to be off of late: it may be asked only while fans stand."""
        return at_ns - node.off_ns <= int(self.thresholds.fresh_seconds * SECOND_NS)

    # ---- out ---------------------------------------------------------------------------------

    def events(self, now_ns: int, groups: Mapping[str, Sequence[str]]) -> list[GroupEvent]:
        """What happens at ``now_ns`` to each group; ``groups`` is node -> its groups."""
        members = members_of(groups)
        inlets = {name: self._inlet(name, now_ns) for name in groups}
        found: list[GroupEvent] = []
        for group, names in sorted(members.items()):
            if len(names) < self.thresholds.nodes_low:
                continue
            looked = (
                self._heat(group, names, members, inlets, now_ns),
                self._power(group, names, now_ns),
                self._fans(group, names, now_ns),
                self._silence(group, names, now_ns),
            )
            found.extend(event for event in looked if event is not None)
        for group, names in sorted(members.items()):
            event = self._leak(group, names, now_ns)
            if event is not None:
                found.append(event)
        lasting = {event.key for event in found}
        self._since = {key: since for key, since in self._since.items() if key in lasting}
        return found

    def readings(self, now_ns: int, groups: Mapping[str, Sequence[str]]) -> list[GroupReading]:
        """Every group at a glance, for people."""
        result = []
        for group, names in sorted(members_of(groups).items()):
            fresh = [self._nodes[name] for name in names if self._is_fresh(name, now_ns)]
            inlets = [
                one for one in (self._inlet(name, now_ns) for name in names) if one is not None
            ]
            outlets = [
                max(value for value, _ in node.outlet.values()) for node in fresh if node.outlet
            ]
            powers = [node.power[0] for node in fresh if node.power is not None]
            result.append(
                GroupReading(
                    group,
                    len(names),
                    len(fresh),
                    statistics.median(inlets) if inlets else None,
                    statistics.median(outlets) if outlets else None,
                    sum(powers) if powers else None,
                    sum(len(node.lost) for node in fresh),
                )
            )
        return result

    def _is_fresh(self, name: str, now_ns: int) -> bool:
        node = self._nodes.get(name)
        oldest_ns = now_ns - int(self.thresholds.fresh_seconds * SECOND_NS)
        return node is not None and node.seen_ns >= oldest_ns

    def _inlet(self, name: str, now_ns: int) -> float | None:
        """The coolest fresh inlet of a node: one broken sensor that reads high is outvoted."""
        node = self._nodes.get(name)
        if node is None:
            return None
        oldest_ns = now_ns - int(self.thresholds.fresh_seconds * SECOND_NS)
        fresh = [value for value, time_ns in node.inlet.values() if time_ns >= oldest_ns]
        return min(fresh) if fresh else None

    def _heat(
        self,
        group: str,
        names: Sequence[str],
        members: Mapping[str, Sequence[str]],
        inlets: Mapping[str, float | None],
        now_ns: int,
    ) -> GroupEvent | None:
        limits = self.thresholds
        here = {name: inlets[name] for name in names if inlets[name] is not None}
        values = [one for one in here.values() if one is not None]
        if len(values) < limits.nodes_low:
            return None
        inside = set(names)
        kind = group.split(" ", 1)[0]
        others = [
            one
            for other, others_names in members.items()
            if other != group and other.split(" ", 1)[0] == kind
            for one in (inlets[name] for name in others_names if name not in inside)
            if one is not None
        ]
        line = limits.inlet_hot_celsius
        if len(others) >= limits.nodes_low:
            above = statistics.median(others) + limits.inlet_above_fleet_celsius
            line = min(line, max(limits.inlet_recommended_celsius, above))
        hot = sorted(name for name, one in here.items() if one is not None and one >= line)
        if len(hot) < max(limits.nodes_low, limits.share_low * len(values)):
            return None
        middle = statistics.median(values)
        text = f"heat in {group}: inlet {middle:.0f} C, {len(hot)} of {len(values)} nodes"
        if others:
            text += f" (elsewhere {statistics.median(others):.0f} C)"
        severity = 3 if middle >= limits.inlet_hot_celsius else 2
        return self._event(group, "heat", hot, severity, text, now_ns)

    def _power(self, group: str, names: Sequence[str], now_ns: int) -> GroupEvent | None:
        fresh = [name for name in names if self._is_fresh(name, now_ns)]
        lost = {
            name: min(self._nodes[name].lost.values()) for name in fresh if self._nodes[name].lost
        }
        if not self._together(lost.values(), len(fresh)):
            return None  # few of them, or supplies that failed one by one over weeks
        hit = sorted(lost)
        supplies = sum(len(self._nodes[name].lost) for name in hit)
        text = (
            f"power in {group}: {len(hit)} of {len(fresh)} nodes lost {supplies} supplies together"
        )
        common = set.intersection(*(set(self._nodes[name].lost) for name in hit))
        if common:
            text += f", all of them {', '.join(sorted(common)[:3])}"
        return self._event(group, "power", hit, 3, text, now_ns, min(lost.values()))

    def _fans(self, group: str, names: Sequence[str], now_ns: int) -> GroupEvent | None:
        """Fans of nodes that are on and that stood in two readings: BMCs that start say 0 once."""
        fresh = [
            name
            for name in names
            if self._is_fresh(name, now_ns) and not self._is_off(self._nodes[name], now_ns)
        ]
        stopped: dict[str, int] = {}
        count = 0
        for name in fresh:
            since = [first for first, last in self._nodes[name].stopped.values() if last > first]
            if since:
                stopped[name] = min(since)
                count += len(since)
        if not self._together(stopped.values(), len(fresh)):
            return None
        text = f"fans in {group}: {count} stopped together in {len(stopped)} of {len(fresh)} nodes"
        hit, since_ns = sorted(stopped), min(stopped.values())
        return self._event(group, "fans", hit, 3, text, now_ns, since_ns)

    def _together(self, starts: Iterable[int], heard: int) -> bool:
        """Whether enough of the ``heard`` nodes of a group began to show it at about one time."""
        limits, begun = self.thresholds, sorted(starts)
        window_ns = int(limits.together_seconds * SECOND_NS)
        most = max(
            (bisect_right(begun, first + window_ns) - at for at, first in enumerate(begun)),
            default=0,
        )
        return most >= max(limits.nodes_low, limits.share_low * heard)

    def _silence(self, group: str, names: Sequence[str], now_ns: int) -> GroupEvent | None:
        limits = self.thresholds
        oldest_ns = now_ns - int(limits.fresh_seconds * SECOND_NS)
        asked = [
            name
            for name in names
            if name in self._nodes and self._nodes[name].heard_ns >= oldest_ns
        ]
        silent = sorted(name for name in asked if self._nodes[name].silent_since_ns)
        if len(silent) < max(limits.nodes_low, limits.silent_share_low * len(asked)):
            return None
        since_ns = min(self._nodes[name].silent_since_ns for name in silent)
        text = f"{len(silent)} of {len(asked)} BMCs of {group} are silent: their network, it seems"
        return self._event(group, "silence", silent, 2, text, now_ns, since_ns, holds=False)

    def _leak(self, group: str, names: Sequence[str], now_ns: int) -> GroupEvent | None:
        wet = sorted(
            name for name in names if self._is_fresh(name, now_ns) and self._nodes[name].leaks
        )
        if len(wet) < 2:
            return None  # one tray is that node's own fact
        since_ns = min(min(self._nodes[name].leaks.values()) for name in wet)
        text = f"coolant leaks in {len(wet)} nodes of {group}"
        return self._event(group, "leak", wet, 3, text, now_ns, since_ns)

    def _event(
        self,
        group: str,
        kind: str,
        nodes: Sequence[str],
        severity: int,
        text: str,
        now_ns: int,
        since_ns: int = 0,
        holds: bool = True,
    ) -> GroupEvent:
        key = f"facility/{kind}/{group}"
        since_ns = self._since.setdefault(key, since_ns or now_ns)
        return GroupEvent(group, kind, since_ns, tuple(nodes), severity, text, holds)

    # ---- to JSON and back ------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """Since when events last, and which supplies and fans each node had, as JSON data.

        Readings are not kept: they come again within a round.
        """
        return {
            "since": dict(self._since),
            "had": {name: sorted(node.had) for name, node in self._nodes.items() if node.had},
            "lost": {name: dict(node.lost) for name, node in self._nodes.items() if node.lost},
            "turned": {n: sorted(node.turned) for n, node in self._nodes.items() if node.turned},
            "stopped": {
                name: {sensor: list(times) for sensor, times in node.stopped.items()}
                for name, node in self._nodes.items()
                if node.stopped
            },
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes back what ``dump`` gave."""
        self._since = dict(state["since"])
        for name, had in state["had"].items():
            self._nodes.setdefault(name, _Node()).had = set(had)
        for name, lost in state["lost"].items():
            self._nodes.setdefault(name, _Node()).lost = dict(lost)
        for name, turned in state.get("turned", {}).items():
            self._nodes.setdefault(name, _Node()).turned = set(turned)
        for name, stopped in state.get("stopped", {}).items():
            self._nodes.setdefault(name, _Node()).stopped = {
                sensor: (first, last) for sensor, (first, last) in stopped.items()
            }


def members_of(groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Group -> its nodes, from node -> its groups."""
    members: dict[str, list[str]] = {}
    for name, listed in groups.items():
        for group in listed:
            members.setdefault(group, []).append(name)
    return members


def held(
    node: str, groups: Mapping[str, Sequence[str]], events: Iterable[GroupEvent]
) -> GroupEvent | None:
    """The event for which ``node`` must not be drained now, None when there is none.

    A guard of the policy: what a node shows while its rack is hot or without power may be the
    room's doing.
    """
    mine = frozenset(groups.get(node, ()))
    for event in events:
        if event.holds and event.group in mine:
            return event
    return None
