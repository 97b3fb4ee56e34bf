"""Sensors that have states and no number: power supplies, processors, intrusion, redundancy.

A supply whose states are all clear may be gone or may belong to firmware that never sets the
presence bit. The others tell: it is absent only where a sensor of the same kind of name, in the
same listing, says "Presence detected".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from collectors.bmc.ipmi_words import critical_states
from collectors.bmc.points import Reading, Readings

HEX_STATES = re.compile(r"0x[0-9a-fA-F]{1,4}\Z")
NO_STATES = frozenset({"na", "n/a", "no reading", "disabled", "not readable", "unknown"})

_SUPPLY = re.compile(r"(?i)\b(psu|ps|pws|power supply)[ _-]?\w?\d*\b")
_DIGITS = re.compile(r"\d+")

# Power supply, IPMI 2.0 table 42-3, type 08h: bit 0 presence, 1 failure, 3 input lost, 4 input
# lost or out of range, 5 input out of range but present.
PRESENCE_BIT = 0b1
SUPPLY_CRITICAL_BITS = 0b11_1010


@dataclass(frozen=True, slots=True)
class Discrete:
    """One sensor as listed. ``states`` are words split by commas, or the bits as ``0x0b``.

    ``critical`` is the tool's own judgement where it gives one.
    """

    node: str
    name: str
    states: str
    part: str = ""
    sensor_type: str = ""
    critical: bool | None = None


def add(found: Readings, held: Iterable[Discrete]) -> None:
    """Adds the sensors without a number to ``found`` as readings of kind ``state``."""
    listed = list(held)
    families = {_family(one) for one in listed if _says_present(one)}
    for one in listed:
        if one.states.lower() in NO_STATES:
            found.add(Reading(one.node, one.name, "state", present=False, part=one.part))
            continue
        says = _says_present(one)
        present = says or (_family(one) not in families and not _says_absent(one))
        critical = _critical(one) if present else None
        found.add(Reading(one.node, one.name, "state", None, critical, present, one.part))


def _family(one: Discrete) -> tuple[str, str]:
    return one.node, _pattern(one.name)


@functools.lru_cache(maxsize=16_384)
def _pattern(name: str) -> str:
    return _DIGITS.sub("#", name)


def _bits(states: str) -> int | None:
    return int(states, 16) if HEX_STATES.match(states) else None


def is_supply(one: Discrete) -> bool:
    """Whether it is a power supply, by its type or else by its name."""
    return "power supply" in one.sensor_type.lower() or bool(_SUPPLY.search(one.name))


def _says_present(one: Discrete) -> bool:
    bits = _bits(one.states)
    if bits is not None:
        return is_supply(one) and bool(bits & PRESENCE_BIT)
    words = one.states.lower()
    return "presence detected" in words or "device present" in words or "inserted" in words


def _says_absent(one: Discrete) -> bool:
    words = one.states.lower()
    return "absent" in words or "device removed" in words


def _critical(one: Discrete) -> bool | None:
    """Whether the states are critical; None where only bits of unknown meaning are given."""
    if one.critical is not None:
        return one.critical
    bits = _bits(one.states)
    if bits is not None:
        return bool(bits & SUPPLY_CRITICAL_BITS) if is_supply(one) else None
    sensor_type = one.sensor_type or ("Power Supply" if is_supply(one) else "")
    return critical_states(sensor_type, one.states)
