"""Power and chassis in the output of ``ipmitool dcmi power reading``, ``ipmi-dcmi`` and
``ipmitool chassis status``.

A meter that is switched off prints 0 Watts and says "deactivated": that is no reading.
"""

from __future__ import annotations

import re

from collectors.bmc.ipmi_faults import complaint, words_for
from collectors.bmc.ipmi_text import lines, printable
from collectors.bmc.points import Reading, Readings, number
from collectors.sample import Problem, Sample

DCMI_SENSOR = "DCMI Power"
# What one BMC says in a few lines; a longer text is another tool's.
LINES_LIMIT = 10_000

_PAIR = re.compile(r"\s*(?P<key>[A-Za-z][A-Za-z0-9 /_-]{1,60}?)(?: is)?\s*: ?(?P<value>.*?)\s*\Z")
_WATTS = re.compile(r"(?P<value>\S+)\s+[Ww]atts\Z")
_NOW = frozenset({"instantaneous power reading", "current power"})
_STATE = frozenset({"power reading state", "power measurement"})

# Line of ``chassis status`` -> (sensor, the value that is critical).
_CHASSIS: dict[str, str] = {
    "power overload": "true",
    "main power fault": "true",
    "power control fault": "true",
    "drive fault": "true",
    "cooling/fan fault": "true",
    "chassis intrusion": "",
    "system power": "",
}


def _pairs(found: Readings, text: str | bytes) -> dict[str, str]:
    """Keys in lower case and values of ``text``; what is neither becomes a problem."""
    pairs: dict[str, str] = {}
    for place, line in enumerate(lines(text)):
        if place >= LINES_LIMIT:
            found.problem(f"more than {LINES_LIMIT} lines: the rest is left out", "")
            break
        if not line.strip():
            continue
        hit = _PAIR.match(line)
        if not printable(line):
            found.problem("bytes that no tool prints", line)
        elif complaint(line.strip()) or words_for(line):
            found.problem(words_for(line) or "the tool complains", line)
        elif hit is None:
            found.problem("not a line of a power reading", line)
        elif len(pairs) < 200:
            pairs.setdefault(hit["key"].lower().strip(), hit["value"].strip())
    return pairs


def parse_dcmi(text: str | bytes, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """The system's power as DCMI reads it, kind ``watts``. Never raises."""
    found = Readings()
    pairs = _pairs(found, text)
    current = next((pairs[key] for key in pairs if key in _NOW), None)
    state = next((pairs[key].lower() for key in pairs if key in _STATE), "")
    if current is None:
        if not found.problems:
            found.problem("no power reading in it", "")
    elif state in ("deactivated", "not active", "not available", "inactive"):
        found.add(Reading(node, DCMI_SENSOR, "watts", present=False))
    elif state not in ("activated", "active"):
        found.problem("it does not say whether the meter is on: output cut off?", current)
    else:
        hit = _WATTS.match(current)
        value = number(hit["value"]) if hit else None
        if value is None:
            found.problem("a power reading that is no number", current)
        else:
            found.add(Reading(node, DCMI_SENSOR, "watts", value))
    return found.samples(now_ns), found.problems


def parse_chassis(text: str | bytes, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """Faults that the chassis reports, kind ``state``. ``present`` 0 of System Power: it is off."""
    found = Readings()
    pairs = _pairs(found, text)
    for key, value in pairs.items():
        low = value.lower()
        if key == "system power":
            if low in ("on", "off"):
                found.add(Reading(node, "System Power", "state", None, False, low == "on"))
            else:
                found.problem("a power state that ipmitool does not print", value)
        elif key in _CHASSIS and low in ("true", "false", "active", "inactive"):
            critical = bool(_CHASSIS[key]) and low == _CHASSIS[key]
            found.add(Reading(node, key.title(), "state", None, critical, True))
        elif key in _CHASSIS:
            found.problem(f"{key}: a state that ipmitool does not print", value)
    if not len(found) and not found.problems:
        found.problem("no chassis status in it", "")
    return found.samples(now_ns), found.problems
