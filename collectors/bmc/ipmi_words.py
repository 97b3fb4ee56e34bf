"""What IPMI events mean: one code and one severity, whichever tool spelt them.

ipmitool says "Power Supply AC lost", FreeIPMI "Power Supply input lost (AC/DC)"; both become
the code ``power_supply_input_lost``. Sensor types and their states are those of the IPMI 2.0
specification, table 42-1 (thresholds and generic states), 42-2 and 42-3 (sensor-specific).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from collectors.bmc.ipmi_tables import GENERIC, SPECIFIC
from collectors.events import CRITICAL, ERROR, INFO, WARNING

# Names of sensor types as tools print them, longest first where one begins like another.
SENSOR_TYPES: tuple[str, ...] = (
    "Temperature",
    "Voltage",
    "Current",
    "Fan",
    "Physical Security",
    "Platform Security",
    "Processor",
    "Power Supply",
    "Power Unit",
    "Cooling Device",
    "Other Units Based Sensor",
    "Other Units-based Sensor",
    "Memory",
    "Drive Slot / Bay",
    "Drive Slot",
    "POST Memory Resize",
    "System Firmware Progress",
    "System Firmwares",
    "System Firmware",
    "Event Logging Disabled",
    "Watchdog1",
    "Watchdog 1",
    "System Event",
    "Critical Interrupt",
    "Button/Switch",
    "Button",
    "Module / Board",
    "Module/Board",
    "Microcontroller/Coprocessor",
    "Microcontroller",
    "Add-in Card",
    "Chassis",
    "Chip Set",
    "Other FRU",
    "Cable / Interconnect",
    "Cable/Interconnect",
    "Terminator",
    "System Boot Initiated",
    "System Boot Initiated/Restart",
    "Boot Error",
    "OS Boot",
    "OS Critical Stop",
    "OS Stop/Shutdown",
    "Slot / Connector",
    "Slot/Connector",
    "System ACPI Power State",
    "Watchdog2",
    "Watchdog 2",
    "Platform Alert",
    "Entity Presence",
    "Monitor ASIC/IC",
    "Monitor ASIC",
    "LAN",
    "Management Subsys Health",
    "Management Subsystem Health",
    "Battery",
    "Session Audit",
    "Version Change",
    "FRU State",
    "Unknown",
    "Reserved",
    "OEM",
    "Other",
)
_BY_LENGTH = sorted(SENSOR_TYPES, key=len, reverse=True)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an event is: ``code`` for a tag, ``severity`` 0 to 3 (see collectors.events)."""

    code: str
    severity: float


# (code, severity when asserted, pattern over "type: event" in lower case); the first hit counts.
_RULES: tuple[tuple[str, float, str], ...] = (
    ("memory_correctable_limit", ERROR, r"correctable .*(limit|logging) "),
    (
        "memory_uncorrectable",
        CRITICAL,
        r"uncorrectable (ecc|memory)|multi-?bit (ecc|memory)|memory.*uncorrectable",
    ),
    (
        "memory_correctable",
        WARNING,
        r"(?<!un)correctable (ecc|memory)|memory.*(?<!un)correctable",
    ),
    ("memory_parity", ERROR, r"memory.*parity|parity error"),
    ("memory_scrub", ERROR, r"memory scrub failed"),
    ("memory_disabled", ERROR, r"memory.*(device disabled|disabled)"),
    ("memory_overheated", ERROR, r"critical overtemperature"),
    ("memory_spare", INFO, r"memory.*spare"),
    (
        "power_supply_input_lost",
        CRITICAL,
        r"power supply.*(ac lost|input lost|input out)|input( power)? (for|to) power supply.*lost",
    ),
    ("power_supply_predictive", ERROR, r"power supply.*predictive"),
    ("power_supply_failure", CRITICAL, r"power supply.*(failure|failed|fault)"),
    ("power_supply_configuration", ERROR, r"(power supply|psu|ps).*config(uration)? (error|mism)"),
    ("power_supply_present", INFO, r"power supply.*presence"),
    ("power_unit_failure", CRITICAL, r"power unit.*(failure|failed|fault)"),
    ("power_unit_input_lost", CRITICAL, r"power unit.*ac lost|240va"),
    ("power_unit_change", INFO, r"power unit.*(power off|power down|power cycle|on|off)"),
    ("redundancy_lost", ERROR, r"redundancy (is )?lost|non-redundant|insufficient resources"),
    ("redundancy_degraded", WARNING, r"redundancy degraded|redundancy.*regained"),
    ("redundancy_full", INFO, r"fully redundant|redundancy.*full"),
    ("processor_ierr", CRITICAL, r"\bierr\b|internal error"),
    ("processor_thermal_trip", CRITICAL, r"thermal trip"),
    ("processor_machine_check", CRITICAL, r"uncorrectable machine check|machine check exception"),
    ("processor_machine_check_corrected", WARNING, r"correctable machine check"),
    ("processor_frb", ERROR, r"frb[123]|configuration error|initialization"),
    ("processor_throttled", WARNING, r"throttle|prochot|throttled"),
    ("processor_disabled", ERROR, r"processor.*disabled"),
    ("bus_uncorrectable", CRITICAL, r"bus (uncorrectable|fatal)|fatal (error|nmi)|pci serr"),
    ("bus_correctable", WARNING, r"bus correctable"),
    ("bus_error", ERROR, r"pci perr|bus (timeout|degraded)|software nmi|i/o channel check"),
    ("nmi", ERROR, r"\bnmi\b"),
    (
        "watchdog",
        ERROR,
        r"watchdog.*(hard reset|power cycle|power down|power off|timer exp|os shutdown|nmi)",
    ),
    ("watchdog_timer", INFO, r"watchdog"),
    ("os_stop", CRITICAL, r"run-?time critical stop|critical stop"),
    ("os_stop_graceful", INFO, r"graceful|os boot|boot completed"),
    ("drive_predictive", ERROR, r"drive.*predictive"),
    ("drive_fault", CRITICAL, r"(drive|bay).*(fault|failed)|in (critical|failed) array"),
    ("drive_present", INFO, r"drive.*presence|drive present"),
    ("log_cleared", INFO, r"log (area )?(reset/)?clear|sel clear|log reset"),
    ("log_full", WARNING, r"(log|sel) (almost )?full"),
    ("intrusion", WARNING, r"intrusion|leash lost|area intrusion"),
    ("boot_error", ERROR, r"no bootable|boot error|system firmware error|post error"),
    ("boot", INFO, r"system boot|initiated by|system restart|firmware progress"),
    ("clock", INFO, r"clock synch?|timestamp clock"),
    ("battery_low", WARNING, r"battery.*(low|predictive)"),
    ("battery_failed", ERROR, r"battery.*fail"),
    (
        "management_degraded",
        ERROR,
        r"(controller|management controller|sensor).*(degraded|unavailable|off-?line|access)",
    ),
    ("cable", ERROR, r"cable.*(config|incorrect|mismatch|disconnect)"),
    ("slot_fault", ERROR, r"slot.*fault"),
    ("non_recoverable", CRITICAL, r"transition to non-recoverable|non-recoverable (from|state)"),
    ("state_critical", CRITICAL, r"transition to critical from|transition to critical"),
    ("state_non_critical", WARNING, r"transition to non-critical"),
    ("state_ok", INFO, r"transition to ok|state deasserted"),
    ("limit_exceeded", WARNING, r"limit exceeded|performance lags"),
    ("predictive_failure", ERROR, r"predictive failure asserted|predictive failure$"),
    ("device_removed", WARNING, r"device (removed|absent)|entity absent|card absent"),
    ("device_present", INFO, r"device (inserted|present)|entity present|presence detected|present"),
    ("failure", ERROR, r"failure detected|failed|\bfault\b"),
)
_COMPILED = tuple((code, severity, re.compile(pattern)) for code, severity, pattern in _RULES)

# States whose going away is the fault: code -> what it then is.
_LOSS: dict[str, Meaning] = {
    "power_supply_present": Meaning("power_supply_removed", ERROR),
    "redundancy_full": Meaning("redundancy_lost", ERROR),
    "drive_present": Meaning("drive_removed", WARNING),
    "device_present": Meaning("device_removed", WARNING),
}

_THRESHOLD = re.compile(
    r"(?P<side>upper|lower)\s+(?P<level>non[- ]?critical|critical|non[- ]?recoverable)"
)
_TYPE_SLUG = {"other units based sensor": "other", "other units-based sensor": "other"}


def slug(text: str) -> str:
    """``text`` as lower-case words joined by underscores, at most 40 characters."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:40].strip("_")


def split_type(text: str) -> tuple[str, str]:
    """``Power Supply PSU2 Status`` -> (``Power Supply``, ``PSU2 Status``); no type: ("", text)."""
    text = " ".join(text.split())
    for name in _BY_LENGTH:
        if text == name:
            return name, ""
        if text.startswith(name + " "):
            return name, text[len(name) + 1 :]
    return "", text


def meaning(sensor_type: str, event: str, asserted: bool = True) -> Meaning:
    """Code and severity of ``event`` at a sensor of ``sensor_type``.

    What goes away is information, except where presence or redundancy goes away.

    >>> meaning("Power Supply", "Power Supply AC lost").code
    'power_supply_input_lost'
    """
    kind = _TYPE_SLUG.get(sensor_type.lower(), slug(sensor_type)) or "sensor"
    words = " ".join(event.lower().split())
    found = _threshold(kind, words) or _state(kind, f"{sensor_type.lower()}: {words}")
    if asserted:
        return found
    return _LOSS.get(found.code, Meaning(found.code, INFO))


def _threshold(kind: str, words: str) -> Meaning | None:
    hit = _THRESHOLD.search(words)
    if hit is None:
        return None
    level = re.sub(r"[- ]", "", hit["level"])
    name = {"noncritical": "warning", "critical": "critical", "nonrecoverable": "fatal"}[level]
    severity = WARNING if name == "warning" else CRITICAL
    return Meaning(f"{kind}_{hit['side']}_{name}", severity)


def _state(kind: str, words: str) -> Meaning:
    for code, severity, pattern in _COMPILED:
        if pattern.search(words):
            return Meaning(code, severity)
    return Meaning(kind, INFO)


# States that mean no fault and have no code: those of the specification, and FreeIPMI's "OK".
_PLAIN = frozenset(
    " ".join(part.lower().split())
    for table in (*GENERIC.values(), *SPECIFIC.values())
    for words in table
    for part in words.split(",")
) | {"ok", "present", "running", "enabled", "normal"}


@functools.lru_cache(maxsize=4_096)
def critical_states(sensor_type: str, states: str) -> bool | None:
    """Whether any of the asserted ``states`` (comma separated) is critical.

    None where one of them is known to nobody (a vendor's own, another language): that a part is
    well is said only of words that say so.
    """
    kind = meaning(sensor_type, "").code
    unknown = False
    for one in filter(None, (part.strip() for part in states.split(","))):
        found = meaning(sensor_type, one)
        if found.severity >= CRITICAL:
            return True
        unknown = unknown or (found.code == kind and " ".join(one.lower().split()) not in _PLAIN)
    return None if unknown else False
