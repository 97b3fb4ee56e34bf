"""How each kind of Redfish resource gives its readings. The table is ``PARTS``.

Vendors differ, and nulls are normal: every member may be missing, null, of another type, or
stand under an older name (FanName, CurrentReading).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from collectors.bmc.points import Reading, Readings, normal, number

Body = Mapping[str, Any]

# Status.State -> the number that stands beside it is none, and the part is not there.
_ABSENT = frozenset({"absent"})
_NO_VALUE = frozenset({"absent", "disabled", "unavailableoffline", "standbyoffline", "deferring"})

# Sensor.ReadingType -> unit, where ReadingUnits is missing.
_TYPE_UNIT = {
    "Temperature": "Cel",
    "Power": "W",
    "Voltage": "V",
    "Current": "A",
    "Rotational": "RPM",
    "EnergyJoules": "J",
    "EnergykWh": "kW.h",
    "EnergyWh": "W.h",
    "Percent": "%",
    "LiquidFlowLPM": "L/min",
    "PressurePa": "Pa",
    "PressurekPa": "kPa",
}

# Names of distances to a limit on boards that do not say ReadingBasis. NVIDIA's GPU_n_TEMP_1 is
# the distance to the first throttle limit.
_HEADROOM = re.compile(
    r"(?i)headroom|t[._ ]?limit|thermal[ _]?margin|_margin|gpu.*[ _]temp[ _]1(\D|$)"
)


@dataclass(frozen=True, slots=True)
class Node:
    """Where readings of one node go."""

    found: Readings
    name: str

    def add(
        self,
        sensor: str,
        kind: str,
        value: float | None,
        critical: bool | None,
        present: bool | None,
        part: str = "",
    ) -> None:
        """One reading. Without value, judgement and presence it only holds its name's place."""
        self.found.add(Reading(self.name, sensor, kind, value, critical, present, part))


def is_headroom(name: str) -> bool:
    """Whether a sensor of this name is a distance to a limit and no temperature."""
    return bool(_HEADROOM.search(name))


def real(value: Any) -> float | None:
    """A finite number from JSON: a number, or a string of one; null, true and "nan" are none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        try:
            result = float(value)
        except OverflowError:
            return None
        return result if math.isfinite(result) else None
    return number(value) if isinstance(value, str) else None


def text(value: Any) -> str:
    """A string, or an integer as text; else empty."""
    if isinstance(value, str):
        return value.strip()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def rows(body: Body, key: str) -> Iterator[tuple[int, Body]]:
    """The objects in the list ``key``, each with its place."""
    listed = body.get(key)
    if isinstance(listed, list):
        for place, item in enumerate(listed):
            if isinstance(item, dict) and set(item) != {"@odata.id"}:
                yield place, item


def status(body: Body) -> tuple[bool | None, bool | None, bool]:
    """Critical, present, and whether a number beside it counts, from ``Status``."""
    held = body.get("Status")
    if not isinstance(held, dict):
        return None, None, True
    state = text(held.get("State")).lower()
    health = text(held.get("Health")).lower()
    critical = {"critical": True, "warning": False, "ok": False}.get(health)
    present = state not in _ABSENT if state else None
    if state in _ABSENT:
        critical = None
    return critical, present, state not in _NO_VALUE


def over(body: Body, value: float | None) -> bool | None:
    """Whether ``value`` is at or past a critical threshold; None where no threshold is usable.

    An upper threshold of 0 is what firmware prints while the host is off: it is none.
    """
    if value is None:
        return None
    uppers: list[float | None] = []
    lowers: list[float | None] = []
    held = body.get("Thresholds")
    if isinstance(held, dict):
        uppers = [_threshold(held, "UpperCritical"), _threshold(held, "UpperFatal")]
        lowers = [_threshold(held, "LowerCritical"), _threshold(held, "LowerFatal")]
    uppers += [real(body.get("UpperThresholdCritical")), real(body.get("UpperThresholdFatal"))]
    lowers += [real(body.get("LowerThresholdCritical")), real(body.get("LowerThresholdFatal"))]
    known_up = [one for one in uppers if one is not None and one > 0]
    known_low = [one for one in lowers if one is not None]
    if not known_up and not known_low:
        return None
    return any(value >= one for one in known_up) or any(value < one for one in known_low)


def _threshold(held: Body, name: str) -> float | None:
    one = held.get(name)
    return real(one.get("Reading")) if isinstance(one, dict) else real(one)


def chassis_of(body: Body) -> str:
    """The chassis that a resource belongs to, from its address."""
    hit = re.search(r"/(?:Chassis|Systems)/([^/#?]{1,64})", text(body.get("@odata.id")))
    return hit[1] if hit else ""


def measured(
    node: Node, body: Body, sensor: str, kind: str, value: float | None, part: str
) -> None:
    """One number with the status and thresholds that stand beside it."""
    critical, present, counts = status(body)
    if not counts:
        value = None
    limit = over(body, value)
    if limit is not None and present is not False:
        critical = limit or bool(critical)
    if present is None and value is not None:
        present = True
    if value is None and present:
        # Listed, but null: nothing is known of it now.
        present, critical = (None, critical) if critical else (None, None)
    if not counts and present is not False:
        present = False
    node.add(sensor, kind, value, critical, present, part)


# ---- Sensor ----------------------------------------------------------------------------------


def sensor_kind(body: Body) -> tuple[str, float] | None:
    """Kind and factor of a Sensor resource (value * factor is in the kind's unit), or None."""
    unit = text(body.get("ReadingUnits")) or _TYPE_UNIT.get(text(body.get("ReadingType")), "")
    known = normal(1.0, unit)
    zero = normal(0.0, unit)
    if known is None or zero is None or zero[1] != 0.0:
        return None
    kind = known[0]
    names = f"{text(body.get('Id'))} {text(body.get('Name'))}"
    basis = text(body.get("ReadingBasis"))
    if kind == "celsius" and (basis not in ("", "Zero") or is_headroom(names)):
        kind = "headroom"
    return kind, known[1]


def sensor(node: Node, body: Body) -> None:
    """A Sensor resource."""
    name = text(body.get("Id")) or text(body.get("Name"))
    kind = sensor_kind(body)
    value = real(body.get("Reading"))
    if kind is None:
        unit = text(body.get("ReadingUnits")) or text(body.get("ReadingType"))
        if value is not None:
            node.found.problem(f"a unit that is not kept: {unit[:40] or 'none'}", name)
        return
    if value is not None:
        value *= kind[1]
    measured(node, body, name, kind[0], value, chassis_of(body))


# ---- Thermal and Power -----------------------------------------------------------------------


def _name(item: Body, place: int, fallback: str) -> tuple[str, str]:
    """Name and part of a member of a list."""
    part = text(item.get("MemberId")) or str(place)
    name = text(item.get("Name")) or text(item.get("FanName")) or text(item.get("DeviceName"))
    return name or f"{fallback} {part}", part


def thermal(node: Node, body: Body) -> None:
    """Thermal: temperatures, fans, redundancy of fans."""
    for place, item in rows(body, "Temperatures"):
        name, part = _name(item, place, "Temperature")
        kind = "headroom" if is_headroom(name) else "celsius"
        measured(node, item, name, kind, real(item.get("ReadingCelsius")), part)
    for place, item in rows(body, "Fans"):
        name, part = _name(item, place, "Fan")
        value = real(item.get("Reading"))
        if value is None:
            value = real(item.get("CurrentReading"))
        unit = text(item.get("ReadingUnits")) or text(item.get("Units")) or "RPM"
        known = normal(value or 0.0, unit)
        if known is None:
            node.found.problem(f"a unit that is not kept: {unit[:40]}", name)
            continue
        measured(node, item, name, known[0], None if value is None else known[1], part)
    redundancy(node, body)


def power(node: Node, body: Body) -> None:
    """Power: consumption, supplies, voltages, redundancy of supplies."""
    for place, item in rows(body, "PowerControl"):
        name, part = _name(item, place, "Power Control")
        measured(node, item, name, "watts", real(item.get("PowerConsumedWatts")), part)
    for place, item in rows(body, "PowerSupplies"):
        supply(node, item, place)
    for place, item in rows(body, "Voltages"):
        name, part = _name(item, place, "Voltage")
        measured(node, item, name, "volts", real(item.get("ReadingVolts")), part)
    redundancy(node, body)


def redundancy(node: Node, body: Body) -> None:
    """Redundancy groups: critical when the group is."""
    for place, item in rows(body, "Redundancy"):
        name, part = _name(item, place, "Redundancy")
        critical, present, _ = status(item)
        if critical is not None:
            node.add(name, "state", None, critical, present, part)


def supply(node: Node, item: Body, place: int = 0) -> None:
    """One power supply: its state, and the watts that go in and come out."""
    name, part = _name(item, place, "Power Supply")
    if "MemberId" not in item and text(item.get("Id")):
        name, part = text(item.get("Id")), chassis_of(item)
    critical, present, counts = status(item)
    if text(_within(item, "Status").get("State")).lower() == "unavailableoffline":
        present = True  # it is plugged in, and its input is gone
    if present is not False and text(item.get("LineInputStatus")).lower() == "lossofinput":
        critical = True  # some firmware calls the supply itself healthy
    node.add(name, "state", None, critical, present, part)
    for key, label, kind in (
        ("PowerInputWatts", "Input", "watts"),
        ("LastPowerOutputWatts", "Output", "watts"),
        ("PowerOutputWatts", "Output", "watts"),
        ("LineInputVoltage", "Input", "volts"),
    ):
        if key in item:
            value = real(item[key]) if counts else None
            if key == "PowerOutputWatts" and "LastPowerOutputWatts" in item:
                continue
            node.add(
                f"{name} {label}", kind, value, None, True if value is not None else None, part
            )


def _within(body: Body, key: str) -> Body:
    held = body.get(key)
    return held if isinstance(held, dict) else {}


# ---- subsystems --------------------------------------------------------------------------------


def excerpts(
    node: Node, body: Body, table: Mapping[str, tuple[str, str, float]], prefix: str
) -> None:
    """Sensor excerpts ``{"Reading": x, "DataSourceUri": ...}`` under fixed keys."""
    for key, (label, kind, factor) in table.items():
        held = body.get(key)
        listed = held if isinstance(held, list) else [held]
        for place, item in enumerate(listed):
            if not isinstance(item, dict):
                continue
            value = real(item.get("Reading"))
            uri = text(item.get("DataSourceUri"))
            name = text(item.get("DeviceName")) or (
                uri.rstrip("/").rsplit("/", 1)[-1] if uri else ""
            )
            name = name or f"{prefix} {label}".strip()
            is_margin = kind == "celsius" and is_headroom(f"{name} {uri}")
            node.add(
                name,
                "headroom" if is_margin else kind,
                None if value is None else value * factor,
                None,
                None if value is None else True,
                str(place),
            )


_THERMAL_METRICS = {"TemperatureReadingsCelsius": ("Temperature", "celsius", 1.0)}
_ENVIRONMENT = {
    "TemperatureCelsius": ("Temperature", "celsius", 1.0),
    "PowerWatts": ("Power", "watts", 1.0),
    "EnergyJoules": ("Energy", "joules", 1.0),
    "EnergykWh": ("Energy", "joules", 3.6e6),
    "FanSpeedsPercent": ("Fan", "ratio", 0.01),
}
_SUPPLY_METRICS = {
    "InputPowerWatts": ("Input Power", "watts", 1.0),
    "OutputPowerWatts": ("Output Power", "watts", 1.0),
    "InputVoltage": ("Input Voltage", "volts", 1.0),
    "InputCurrentAmps": ("Input Current", "amperes", 1.0),
    "TemperatureCelsius": ("Temperature", "celsius", 1.0),
    "EnergykWh": ("Energy", "joules", 3.6e6),
}


def thermal_metrics(node: Node, body: Body) -> None:
    """ThermalMetrics: a list of excerpts, else the summary."""
    excerpts(node, body, _THERMAL_METRICS, "")
    if not body.get("TemperatureReadingsCelsius"):
        summary = _within(body, "TemperatureSummaryCelsius")
        table = {
            name: (name, "celsius", 1.0) for name in ("Ambient", "Exhaust", "Intake", "Internal")
        }
        excerpts(node, summary, table, "")


def environment(node: Node, body: Body) -> None:
    """EnvironmentMetrics of a chassis, processor or memory module."""
    excerpts(node, body, _ENVIRONMENT, owner_of(text(body.get("@odata.id"))))


def supply_metrics(node: Node, body: Body) -> None:
    """PowerSupplyMetrics."""
    excerpts(node, body, _SUPPLY_METRICS, owner_of(text(body.get("@odata.id"))))


def fan(node: Node, body: Body) -> None:
    """A Fan of a ThermalSubsystem: percent, and RPM where it is given."""
    name = text(body.get("Id")) or text(body.get("Name")) or "Fan"
    speed = _within(body, "SpeedPercent")
    rpm = real(speed.get("SpeedRPM"))
    percent = real(speed.get("Reading"))
    part = chassis_of(body)
    if rpm is not None or "SpeedRPM" in speed:
        measured(node, body, name, "rpm", rpm, part)
    if percent is not None:
        measured(node, body, name, "ratio", percent / 100, part)
    if not speed:
        state(node, body)


def leaks(node: Node, body: Body) -> None:
    """LeakDetection: each detector is a state; Critical is a leak."""
    for _, group in rows(body, "LeakDetectorGroups"):
        for place, item in rows(group, "Detectors"):
            name = text(item.get("DeviceName")) or f"Leak detector {place}"
            leak(node, name, item)


def leak(node: Node, name: str, body: Body) -> None:
    """One leak detector."""
    word = text(body.get("DetectorState")).lower()
    if word in ("ok", "warning", "critical"):
        node.add(name, "state", None, word == "critical", True)
    elif word in ("absent", "unavailable"):
        node.add(name, "state", None, None, False)


def leak_detector(node: Node, body: Body) -> None:
    """A LeakDetector resource."""
    leak(node, text(body.get("Id")) or text(body.get("Name")) or "Leak detector", body)


def state(node: Node, body: Body) -> None:
    """A part that has a state and no number: chassis, system, fan without speed, processor."""
    name = text(body.get("Id")) or text(body.get("Name"))
    critical, present, _ = status(body)
    if name and (critical is not None or present is False):
        node.add(name, "state", None, critical, present, chassis_of(body))


def system(node: Node, body: Body) -> None:
    """A Chassis: health, and whether the power is on."""
    state(node, body)
    on = text(body.get("PowerState")).lower()
    name = text(body.get("Id"))
    if on in ("on", "off") and name:
        node.add(f"{name} Power", "state", None, None, on == "on", "")


def is_baseboard(body: Body) -> bool:
    """Whether a ComputerSystem is a board of GPUs, which is no host."""
    return text(body.get("Id")).upper().startswith("HGX")


def computer(node: Node, body: Body) -> None:
    """A ComputerSystem: health, and as over IPMI whether the host is on."""
    if is_baseboard(body):
        system(node, body)
        return
    state(node, body)
    on = text(body.get("PowerState")).lower()
    if on in ("on", "off"):
        node.add("System Power", "state", None, None, on == "on", text(body.get("Id")))


def owner_of(address: str) -> str:
    """The part that a resource of metrics belongs to: ``GPU_1``, ``GPU_1 MemorySummary``.

    Ports and summaries of memory are called alike in every GPU and switch.
    """
    parts = [part for part in address.split("/") if part]
    if len(parts) < 2:
        return ""
    if parts[-2] == "MemorySummary" and len(parts) > 2:
        return f"{parts[-3]} {parts[-2]}"
    if len(parts) > 3 and parts[-3] == "Ports":
        return f"{parts[-4]} {parts[-2]}"
    return parts[-2]


_COUNT = re.compile(
    r"(Correctable|Uncorrectable|Corrected|Uncorrected|Fatal)\w*Count\Z|ErrorCount\Z"
)


def counters(node: Node, body: Body) -> None:
    """MemoryMetrics and ProcessorMetrics: error counters, each named by part and counter."""
    prefix = owner_of(text(body.get("@odata.id"))) or text(body.get("Id"))
    for section in ("LifeTime", "CacheMetricsTotal", "PCIeErrors"):
        held = _within(body, section)
        inner = _within(held, "LifeTime") or held
        for key, raw in inner.items():
            value = real(raw)
            if value is not None and _COUNT.search(key):
                node.add(f"{prefix} {key}", "count", value, None, True)


PARTS: dict[str, Callable[[Node, Body], None]] = {
    "Sensor": sensor,
    "Thermal": thermal,
    "Power": power,
    "PowerSupply": supply,
    "PowerSupplyMetrics": supply_metrics,
    "ThermalMetrics": thermal_metrics,
    "EnvironmentMetrics": environment,
    "Fan": fan,
    "LeakDetection": leaks,
    "LeakDetector": leak_detector,
    "MemoryMetrics": counters,
    "ProcessorMetrics": counters,
    "Chassis": system,
    "ComputerSystem": computer,
    "Processor": state,
    "Memory": state,
    "ThermalSubsystem": redundancy,
    "PowerSubsystem": redundancy,
}
