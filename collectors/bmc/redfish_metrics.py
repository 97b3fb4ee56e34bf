"""Values of a Redfish MetricReport: an address, a value as text, a time, and no unit.

The unit comes from what the Sensor resource at that address said (:class:`Known`), else from the
property that the address names, else from the sensor's name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from collectors.bmc.ipmi_sel_entry import iso_time
from collectors.bmc.points import Reading, Readings, guess_kind
from collectors.bmc.redfish_parts import is_headroom, owner_of, real, rows, text

# A value older than this is history and no reading of now; BMC clocks may run this far ahead.
OLD_NS = 86_400 * 1_000_000_000
AHEAD_NS = 300 * 1_000_000_000

_PROPERTIES: tuple[tuple[str, str], ...] = (
    (r"ReadingCelsius|TemperatureCelsius|TemperatureReadingsCelsius", "celsius"),
    (r"PowerWatts|ConsumedWatts|InputWatts|OutputWatts", "watts"),
    (r"ReadingVolts|InputVoltage", "volts"),
    (r"CurrentAmps", "amperes"),
    (r"SpeedRPM", "rpm"),
    (r"EnergyJoules", "joules"),
    (r"(Error|Correctable\w*|Uncorrectable\w*)Count\b", "count"),
)
_COMPILED = tuple((re.compile(pattern), kind) for pattern, kind in _PROPERTIES)


@dataclass(frozen=True, slots=True)
class Known:
    """What a Sensor resource said of itself: kind, factor to the kind's unit, critical limits
    (in the sensor's own unit).
    """

    kind: str
    factor: float = 1.0
    high: float | None = None
    low: float | None = None

    def critical(self, value: float) -> bool | None:
        """Whether ``value``, in the sensor's unit, is at or past a limit; None without limits."""
        if self.high is None and self.low is None:
            return None
        over = self.high is not None and value >= self.high
        return over or (self.low is not None and value < self.low)


def kind_of(address: str, sensor: str) -> str:
    """The kind of the value at ``address`` by its words, or empty where nobody can tell."""
    prop = address.split("#", 1)[1] if "#" in address else ""
    for pattern, kind in _COMPILED:
        if prop and pattern.search(prop):
            return "headroom" if kind == "celsius" and is_headroom(address) else kind
    if prop:
        return ""
    if is_headroom(sensor):
        return "headroom"
    if re.search(r"(?i)energy", sensor):
        return "joules"
    guess = guess_kind(sensor)
    return "" if guess == "state" else guess


@functools.lru_cache(maxsize=16_384)
def _place(address: str, name: str) -> tuple[str, str]:
    """Sensor and chassis by the address of a value; servers of one kind have the same ones."""
    path, _, prop = address.partition("#")
    parts = [part for part in path.split("/") if part]
    sensor = parts[-1] if parts else name
    if prop:
        sensor = f"{owner_of(path)} {prop.strip('/').replace('/', ' ')}".strip()
    return sensor, parts[parts.index("Chassis") + 1] if "Chassis" in parts[:-1] else ""


def metric_values(
    body: Mapping[str, Any], node: str, known: Mapping[str, Known], found: Readings
) -> Iterator[tuple[Reading, str]]:
    """Readings of the report, each with its Timestamp as text. Values like "nan" are left out."""
    for _, item in rows(body, "MetricValues"):
        address = text(item.get("MetricProperty"))
        name = text(item.get("MetricId"))
        sensor, chassis = _place(address, name)
        if not sensor:
            found.problem("a metric value without address", str(item)[:80])
            continue
        raw = item.get("MetricValue")
        value = real(raw)
        if value is None:
            continue  # null, "nan" or text: not read
        told = known.get(address) or Known(kind_of(address, sensor))
        if not told.kind:
            continue  # a metric of some other sort (utilisation, bandwidth)
        critical = told.critical(value)
        reading = Reading(node, sensor, told.kind, value * told.factor, critical, True, chassis)
        yield reading, text(item.get("Timestamp"))


def report_time(stamp: str, body: Mapping[str, Any], now_ns: int) -> int | None:
    """Time of one value: its own, the report's, or now; None for one that is not of today."""
    stamp = stamp or text(body.get("Timestamp"))
    time_ns = iso_time(stamp) if stamp else None
    if time_ns is None:
        return now_ns
    if time_ns > now_ns + AHEAD_NS or time_ns < now_ns - OLD_NS:
        return None
    return min(time_ns, now_ns)
