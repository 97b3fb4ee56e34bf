"""Facts about a node's chassis that need more than one sensor: supplies, fans, leaks.

What one sensor says of itself (critical) is a fact of its own in :mod:`models.rules`. Here: a
supply that was there and is gone, how many supplies are left, several fans at once, coolant where
it should not be. All of them ask for a person, none for a drain: they are no faults of the GPUs,
and where a whole rack shows them they are none of the node either (:mod:`models.facility`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectors.sample import Sample
from models.turns import Turn, some_at_once
from models.voices import Entity, Fact, Remedy

SECOND_NS = 1_000_000_000
SENSORS_LIMIT = 256

_SUPPLY = re.compile(r"(?i)power ?supply|\bpsu?[ _-]?\w?\d*\b|\bpws[ _-]?\d*\b")
_NO_SUPPLY = re.compile(r"(?i)redundan|power|input|output|temp|fan")
_FAN = re.compile(r"(?i)fan|blower|tach")
# Percentages that are asked of fans, or of which nobody knows what they are shares of.
_NO_SPEED = re.compile(r"(?i)pwm|duty|util|demand|target|control|redundan|power")
_LEAK = re.compile(r"(?i)leak")


@dataclass(frozen=True, slots=True)
class ChassisThresholds:
    """Numbers that the rules compare with. BMCs are read in turn, so a reading counts long."""

    fresh_seconds: float = 600.0
    # Readings in a row that must agree: BMCs answer nonsense while they start.
    readings: int = 2
    # Fans that must be down at once; one is told by its own sensor.
    fans_down: int = 2
    # At or below this share of the supplies that were once there, the node may lose power.
    supplies_low_ratio: float = 0.5
    fan_stopped_rpm: float = 100.0
    # Where fans are told in percent only.
    fan_stopped_ratio: float = 0.01


@dataclass(slots=True)
class Part:
    """One sensor over time. ``good`` and ``bad`` count readings in a row, up to a few.

    ``was_good`` is whether it ever agreed to be well; a part that never was is not missed.
    ``percent`` is whether it is told in percent: where a fan tells both, its rpm are what counts.
    """

    good: int = 0
    bad: int = 0
    was_good: bool = False
    since_ns: int = 0
    seen_ns: int = 0
    percent: bool = False

    def take(self, bad: bool, time_ns: int, needed: int) -> None:
        """One more reading."""
        if time_ns < self.seen_ns:
            return
        if time_ns == self.seen_ns and (self.bad if bad else self.good):
            return  # the same reading, sent once more
        self.seen_ns = time_ns
        if bad:
            if self.bad == 0:
                self.since_ns = time_ns
            self.bad, self.good = min(self.bad + 1, needed), 0
            return
        self.good, self.bad = min(self.good + 1, needed), 0
        self.was_good = self.was_good or self.good >= needed


@dataclass(slots=True)
class Chassis:
    """One node: its supplies, fans and leak detectors by sensor name."""

    supplies: dict[str, Part] = field(default_factory=dict)
    fans: dict[str, Part] = field(default_factory=dict)
    leaks: dict[str, Part] = field(default_factory=dict)
    off_ns: int = 0  # when the host was last told to be off; 0: it is on
    spent_ns: int = 0


def part_of(sensor: str, kind: str) -> str:
    """``supplies``, ``fans``, ``leaks`` or empty: what a sensor tells of.

    >>> part_of("PSU2 Status", "state")
    'supplies'
    """
    if kind == "state":
        if _LEAK.search(sensor):
            return "leaks"
        if _SUPPLY.search(sensor) and not _NO_SUPPLY.search(_SUPPLY.sub("", sensor)):
            return "supplies"
    if kind in ("rpm", "ratio") and _FAN.search(sensor):
        return "" if kind == "ratio" and _NO_SPEED.search(sensor) else "fans"
    return ""


def host_off(sample: Sample) -> bool | None:
    """Whether a reading says that the host is off; None where it is of something else.

    A sensor of the same name that measures watts is none of it.
    """
    if sample.tag("sensor") != "System Power" or sample.tag("kind") != "state":
        return None
    return sample.number("present") == 0.0


def is_bad(part: str, sample: Sample, thresholds: ChassisThresholds) -> bool | None:
    """Whether one reading says that the part is broken or gone; None where it says nothing."""
    critical, present = sample.number("critical"), sample.number("present")
    if critical == 1.0:
        return True
    if part == "supplies":
        if present is None:
            return None if critical is None else False
        return present == 0.0
    if present == 0.0 or present is None:
        return None  # a fan without reading is a host that is off, as a rule
    value = sample.number("value")
    if part == "fans":
        if value is None:
            return None
        percent = sample.tag("kind") == "ratio"
        return value < (thresholds.fan_stopped_ratio if percent else thresholds.fan_stopped_rpm)
    return False if critical is not None else None


class ChassisRules:
    """Takes ``bmc`` samples as they arrive and tells the facts that hold. Not for many threads."""

    def __init__(self, thresholds: ChassisThresholds | None = None) -> None:
        self.thresholds = thresholds or ChassisThresholds()
        self._nodes: dict[str, Chassis] = {}
        self._sick: set[str] = set()  # nodes with a part that is not well: few, looked at often

    def observe(self, sample: Sample, arrival_ns: int) -> None:
        """Takes in one ``bmc`` sample."""
        del arrival_ns
        sensor, kind, name = sample.tag("sensor"), sample.tag("kind"), sample.tag("node")
        off = host_off(sample)
        if off is not None:
            if name in self._nodes:
                self._nodes[name].off_ns = sample.time_ns if off else 0
            return
        part = part_of(sensor, kind)
        if not part or not name:
            return
        bad = is_bad(part, sample, self.thresholds)
        if bad is None:
            return
        held: dict[str, Part] = getattr(self._nodes.setdefault(name, Chassis()), part)
        if sensor not in held and len(held) >= SENSORS_LIMIT:
            return
        percent = kind == "ratio"
        one = held.get(sensor)
        if one is not None and percent and not one.percent:
            return
        if one is None or one.percent != percent:
            one = held[sensor] = Part(percent=percent)
        one.take(bad, sample.time_ns, self.thresholds.readings)
        if bad:
            self._sick.add(name)

    def clear(self, node: str, at_ns: int) -> None:
        """The node came back at ``at_ns``: what was wrong by then is known."""
        chassis = self._nodes.setdefault(node, Chassis())
        chassis.spent_ns = max(chassis.spent_ns, at_ns)

    def nothing_later(self, now_ns: int) -> None:
        """Nothing was later than ``now_ns``, the head's clock that was set back."""
        for chassis in self._nodes.values():
            chassis.spent_ns = min(chassis.spent_ns, now_ns)
            chassis.off_ns = min(chassis.off_ns, now_ns)

    def facts(self, now_ns: int) -> Iterator[Fact]:
        """Every fact that holds at ``now_ns``, by node."""
        for name in sorted(self._sick):
            chassis = self._nodes[name]
            if not any(part.bad for what in _PARTS for part in getattr(chassis, what).values()):
                self._sick.discard(name)
                continue
            if now_ns - chassis.off_ns <= int(self.thresholds.fresh_seconds * SECOND_NS):
                continue
            for fact in (
                self._supplies(name, chassis, now_ns),
                self._fans(name, chassis, now_ns),
                self._leaks(name, chassis, now_ns),
            ):
                if fact is not None and fact.onset_ns > chassis.spent_ns:
                    yield fact

    # ---- one rule each ---------------------------------------------------------------------

    def _down(self, parts: Mapping[str, Part], now_ns: int, once_good: bool) -> list[str]:
        oldest_ns = now_ns - int(self.thresholds.fresh_seconds * SECOND_NS)
        return [
            sensor
            for sensor, part in sorted(parts.items())
            if part.bad >= self.thresholds.readings
            and part.seen_ns >= oldest_ns
            and (part.was_good or not once_good)
        ]

    def _supplies(self, name: str, chassis: Chassis, now_ns: int) -> Fact | None:
        down = self._down(chassis.supplies, now_ns, once_good=True)
        if not down:
            return None
        known = [sensor for sensor, part in chassis.supplies.items() if part.was_good]
        left = len(known) - len(down)
        low = left <= len(known) * self.thresholds.supplies_low_ratio
        text = f"{_names(down)} failed or gone, {left} of {len(known)} supplies left"
        advice = "replace the supply" + ("; the node may lose power" if low else "")
        return self._fact(
            name, chassis.supplies, down, "supplies", "psu", 3 if low else 2, text, advice
        )

    def _fans(self, name: str, chassis: Chassis, now_ns: int) -> Fact | None:
        down = self._down(chassis.fans, now_ns, once_good=True)
        if len(down) < self.thresholds.fans_down:
            return None
        text = f"{len(down)} of {len(chassis.fans)} fans down: {_names(down)}"
        return self._fact(
            name, chassis.fans, down, "fans", "fans", 3, text, "replace them before it gets hot"
        )

    def _leaks(self, name: str, chassis: Chassis, now_ns: int) -> Fact | None:
        wet = self._down(chassis.leaks, now_ns, once_good=False)
        if not wet:
            return None
        text = f"coolant leak: {_names(wet)}"
        return self._fact(
            name, chassis.leaks, wet, "leak", "leak", 3, text, "switch the node off and look"
        )

    @staticmethod
    def _fact(
        name: str,
        parts: Mapping[str, Part],
        down: Sequence[str],
        rule: str,
        code: str,
        severity: int,
        text: str,
        advice: str,
    ) -> Fact:
        onset_ns = min(parts[sensor].since_ns for sensor in down)
        entity = Entity("chassis", name, rule)
        evidence = tuple(f"BMC: {sensor}" for sensor in down[:3])
        return Fact(
            entity, rule, code, severity, Remedy.ALERT, onset_ns, text[:120], advice, evidence
        )

    # ---- to JSON and back ------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """All that is remembered, as JSON data."""
        return {name: _dump_node(chassis) for name, chassis in self._nodes.items()}

    def dump_turns(self) -> Iterator[Turn]:
        """The same some nodes at a time: readings may come between."""
        yield from some_at_once((), self._nodes, _dump_node)

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes back what ``dump`` gave."""
        self._nodes = {}
        for name, held in state.items():
            chassis = Chassis(off_ns=held.get("off_at", 0), spent_ns=held["spent"])
            for what in _PARTS:
                parts = getattr(chassis, what)
                for sensor, numbers in held["parts"][what].items():
                    parts[sensor] = Part(*numbers)
            self._nodes[name] = chassis
        self._sick = set(self._nodes)


def _dump_node(chassis: Chassis) -> dict[str, Any]:
    return {
        "off_at": chassis.off_ns,
        "spent": chassis.spent_ns,
        "parts": {
            what: {
                sensor: [
                    one.good,
                    one.bad,
                    one.was_good,
                    one.since_ns,
                    one.seen_ns,
                    one.percent,
                ]
                for sensor, one in getattr(chassis, what).items()
            }
            for what in _PARTS
        },
    }


_PARTS = ("supplies", "fans", "leaks")


def _names(sensors: Sequence[str]) -> str:
    """A few names, and how many more."""
    shown = ", ".join(sensors[:3])
    return shown if len(sensors) <= 3 else f"{shown} and {len(sensors) - 3} more"
