"""What IPMI and Redfish have in common: the ``bmc`` and ``sel`` points and what a chassis can be.

Everything that a BMC says passes through :class:`Readings`: units become one unit per kind,
impossible values are refused and named, two sensors of one name are told apart, and a sensor
without a reading is kept as ``present`` 0 and never as the number 0.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from collectors.events import EVENT_METRICS
from collectors.sample import Metric, Problem, Sample, Value, clip

# Tag ``kind`` of measurement ``bmc`` -> lowest and highest value that a chassis can have. The
# kind is the unit. ``headroom`` is degrees Celsius up to a limit (low is bad) and no
# temperature; ``state`` is a sensor without a
# number, ``count`` a counter (ECC errors of HGX memory, say). 255, -128 and the like are what BMCs
# answer for a part that is off; the bounds keep them out.
BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "celsius": (-60.0, 150.0),
        "rpm": (0.0, 60_000.0),
        "watts": (0.0, 300_000.0),
        "volts": (-60.0, 1_000.0),
        "amperes": (-3_000.0, 10_000.0),
        "ratio": (0.0, 1.2),
        "headroom": (-60.0, 200.0),
        "joules": (0.0, 1e16),
        "litres_per_minute": (0.0, 10_000.0),
        "pascals": (-1e6, 1e8),
        "count": (0.0, 1e16),
    }
)

# "All bits set" of a 16-bit register, which firmware prints for "not known".
SENTINELS: Mapping[str, frozenset[float]] = MappingProxyType(
    {
        "watts": frozenset({65_535.0}),
        "rpm": frozenset({65_535.0}),
        "celsius": frozenset({-128.0}),
    }
)

BMC_METRICS: tuple[Metric, ...] = (
    Metric("bmc", "value", "gauge", "Reading of the sensor; its unit is the tag kind.", -1e6, 1e16),
    Metric("bmc", "critical", "state", "1 when the BMC calls it critical, 0 when not.", 0, 1),
    Metric("bmc", "present", "state", "1 when it reads, 0 when it is absent or off.", 0, 1),
)

METRICS: tuple[Metric, ...] = (*BMC_METRICS, *EVENT_METRICS)

# Below this a fan stands.
_STANDS: Mapping[str, float] = MappingProxyType({"rpm": 100.0, "ratio": 0.01})

# Most sensors that one BMC is believed to have (a GB300 tray has about 900), and most that
# one text may bring (a FreeIPMI run over thousands of hosts).
SENSORS_LIMIT = 4_096
PROBLEMS_LIMIT = 200

# Unit as any tool spells it, lower case -> kind, factor, offset.
UNITS: Mapping[str, tuple[str, float, float]] = MappingProxyType(
    {
        "degrees c": ("celsius", 1.0, 0.0),
        "c": ("celsius", 1.0, 0.0),
        "cel": ("celsius", 1.0, 0.0),
        "celsius": ("celsius", 1.0, 0.0),
        "degrees f": ("celsius", 5 / 9, -160 / 9),
        "f": ("celsius", 5 / 9, -160 / 9),
        "degrees k": ("celsius", 1.0, -273.15),
        "k": ("celsius", 1.0, -273.15),
        "rpm": ("rpm", 1.0, 0.0),
        "{rev}/min": ("rpm", 1.0, 0.0),
        "watts": ("watts", 1.0, 0.0),
        "watt": ("watts", 1.0, 0.0),
        "w": ("watts", 1.0, 0.0),
        "kw": ("watts", 1000.0, 0.0),
        "volts": ("volts", 1.0, 0.0),
        "v": ("volts", 1.0, 0.0),
        "mv": ("volts", 0.001, 0.0),
        "amps": ("amperes", 1.0, 0.0),
        "amperes": ("amperes", 1.0, 0.0),
        "a": ("amperes", 1.0, 0.0),
        "ma": ("amperes", 0.001, 0.0),
        "percent": ("ratio", 0.01, 0.0),
        "%": ("ratio", 0.01, 0.0),
        "joules": ("joules", 1.0, 0.0),
        "j": ("joules", 1.0, 0.0),
        "kj": ("joules", 1e3, 0.0),
        "kw.h": ("joules", 3.6e6, 0.0),
        "w.h": ("joules", 3.6e3, 0.0),
        "l/min": ("litres_per_minute", 1.0, 0.0),
        "pa": ("pascals", 1.0, 0.0),
        "kpa": ("pascals", 1e3, 0.0),
    }
)

NUMBER = re.compile(r"[+-]?(?:\d{1,18}(?:\.\d{0,12})?|\.\d{1,12})(?:[eE][+-]?\d{1,3})?\Z")


def number(text: str) -> float | None:
    """``text`` as a finite number, or None. A comma makes it no number: nobody can tell which."""
    text = text.strip()
    if not NUMBER.match(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def normal(value: float, unit: str) -> tuple[str, float] | None:
    """Kind and value in the kind's unit, or None for a unit that we do not keep.

    >>> normal(3, "kW")
    ('watts', 3000.0)
    """
    known = _unit(unit)
    if known is None:
        return None
    kind, factor, offset = known
    return kind, value * factor + offset


@functools.lru_cache(maxsize=1_024)
def _unit(unit: str) -> tuple[str, float, float] | None:
    return UNITS.get(" ".join(unit.lower().split()))


_GUESSES = (
    (re.compile(r"(?i)temp|inlet|exhaust|ambient|thermal|\btj"), "celsius"),
    (re.compile(r"(?i)\bfan|fan\d|tach|rpm|blower"), "rpm"),
    (re.compile(r"(?i)pwr|power|watt|\bpin\b|\bpout\b"), "watts"),
    (re.compile(r"(?i)volt|vbat|\bp?\d+v\d*|vcore|\bvin\b|\bvout\b"), "volts"),
    (re.compile(r"(?i)current|amps?\b|\biin\b|\biout\b"), "amperes"),
)


def guess_kind(name: str) -> str:
    """The kind that a sensor without a reading would have, by its name; else ``state``.

    >>> guess_kind("NVMe7 Temp")
    'celsius'
    """
    if re.search(r"(?i)status|state|redundan|presence", name):
        return "state"
    for pattern, kind in _GUESSES:
        if pattern.search(name):
            return kind
    return "state"


def possible(kind: str, value: float) -> bool:
    """Whether a chassis can have this reading."""
    low, high = BOUNDS.get(kind, (-math.inf, math.inf))
    return low <= value <= high and value not in SENTINELS.get(kind, frozenset())


@dataclass(slots=True)
class Reading:
    """One sensor as it was read. ``value`` is in the kind's unit, None when not read.

    ``part`` tells sensors of one name apart (entity, member id); ``presence`` says that the
    sensor reports presence as a state, True or False.
    """

    node: str
    sensor: str
    kind: str
    value: float | None = None
    critical: bool | None = None
    present: bool | None = True
    part: str = ""


@functools.lru_cache(maxsize=16_384)
def _name(sensor: str) -> str:
    """The sensor's name as it may be a tag; the same few come again and again."""
    return clip(sensor, 80)


@dataclass
class Readings:
    """Collects readings of one or more BMCs and turns them into samples."""

    problems: list[Problem] = field(default_factory=list)
    sensors_limit: int = SENSORS_LIMIT
    stands: bool = False  # a fan that does not turn is among them: is the host on at all?
    _held: list[Reading] = field(default_factory=list)
    _dropped: int = 0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, reading: Reading) -> None:
        """Takes one reading in; an impossible value is refused and named."""
        if len(self._held) >= self.sensors_limit:
            self._dropped += 1
            return
        reading.sensor = _name(reading.sensor)
        if not reading.sensor:
            self.problem("a sensor without a name", "")
            return
        if reading.value is not None and not possible(reading.kind, reading.value):
            self.problem(
                f"{reading.sensor}: {reading.value:g} {reading.kind} cannot be: refused",
                reading.sensor,
            )
            return
        if reading.value is not None and reading.value < _STANDS.get(reading.kind, -math.inf):
            self.stands = self.stands or reading.kind == "rpm" or "fan" in reading.sensor.lower()
        self._held.append(reading)

    def full(self, more: int = 0) -> bool:
        """Whether no more fit, with ``more`` that are held elsewhere; then it is told."""
        if len(self._held) + more < self.sensors_limit:
            return False
        self.problems.append(
            Problem(f"over the limit of {self.sensors_limit} sensors: the rest is left out")
        )
        return True

    def take_numbers(self, other: Readings) -> int:
        """Takes over the readings of ``other`` that have a number, and its problems; how many."""
        numbers = [one for one in other._held if one.value is not None]
        for one in numbers:
            self.add(one)
        for problem in other.problems:
            self.problem(problem.problem, problem.line)
        return len(numbers)

    def problem(self, words: str, line: str) -> None:
        """Keeps one problem; beyond a bound only their number grows no further."""
        if len(self.problems) < PROBLEMS_LIMIT:
            self.problems.append(Problem(clip(words, 300), clip(line, 300)))

    def samples(self, time_ns: int) -> list[Sample]:
        """The readings as ``bmc`` points of one time, each with tags of its own."""
        if self._dropped:
            self.problem(f"{self._dropped} sensors over the limit of {self.sensors_limit}", "")
        result: list[Sample] = []
        for reading, name in zip(self._held, self._names(), strict=True):
            fields: dict[str, Value] = {}
            if reading.value is not None:
                fields["value"] = float(reading.value)
            if reading.critical is not None:
                fields["critical"] = 1.0 if reading.critical else 0.0
            if reading.present is not None:
                fields["present"] = 1.0 if reading.present else 0.0
            if fields:
                tags = (("kind", reading.kind), ("node", reading.node), ("sensor", name))
                result.append(Sample("bmc", tags if reading.node else tags[::2], fields, time_ns))
        return result

    def _names(self) -> list[str]:
        """One name a reading: where a name stands twice, its part or its place is added."""
        if len({(one.node, one.sensor, one.kind) for one in self._held}) == len(self._held):
            return [one.sensor for one in self._held]
        times = Counter((one.node, one.sensor, one.kind) for one in self._held)
        taken: set[tuple[str, str, str]] = set()
        places: dict[tuple[str, str, str], int] = {}  # where to go on: many may share a name
        names: list[str] = []
        for one in self._held:
            name = one.sensor
            if times[(one.node, one.sensor, one.kind)] > 1 and one.part:
                name = f"{one.sensor} #{one.part}"
            plain = (one.node, name, one.kind)
            while (one.node, name, one.kind) in taken:
                places[plain] = places.get(plain, 1) + 1
                name = f"{plain[1]} #{places[plain]}"
            taken.add((one.node, name, one.kind))
            names.append(name)
        return names
