"""Sensors in the output of FreeIPMI: ``ipmi-sensors`` and ``ipmimonitoring``.

Bars or commas, with or without header, with or without the ``host: `` that FreeIPMI puts before
each line when it reads many BMCs. A header, where there is one, names the columns.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field

from collectors.bmc.ipmi_discrete import Discrete
from collectors.bmc.ipmi_discrete import add as add_discrete
from collectors.bmc.ipmi_faults import complaint, words_for
from collectors.bmc.ipmi_text import TEXT_RECORDS_LIMIT, cells, lines, printable, split_last
from collectors.bmc.points import Reading, Readings, guess_kind, normal, number
from collectors.sample import Problem, Sample

_HOST = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9._%:-]{0,252}?): (?P<rest>.*)\Z")
_OLD = re.compile(
    r"(?P<id>\d{1,5}): (?P<name>.{1,64}?) \((?P<type>[^()]{1,40})\): "
    r"(?:(?P<value>\S+) (?P<unit>[A-Za-z%]{1,10}) (?:\([^()]*\): )?)?\[(?P<event>[^\]]*)\]\Z"
)
_EVENT = re.compile(r"'([^']*)'")
_STATES = {"nominal": False, "warning": False, "critical": True}
_TYPE_KIND = {
    "temperature": "celsius",
    "fan": "rpm",
    "voltage": "volts",
    "current": "amperes",
    "power supply": "state",
}

# Columns when there is no header, by their number.
_PLAIN: dict[int, tuple[str, ...]] = {
    6: ("ID", "Name", "Type", "Reading", "Units", "Event"),
    7: ("ID", "Name", "Type", "State", "Reading", "Units", "Event"),
    12: (
        "ID",
        "Name",
        "Type",
        "Reading",
        "Units",
        *("Lower NR", "Lower C", "Lower NC", "Upper NC", "Upper C", "Upper NR"),
        "Event",
    ),
    13: (
        "ID",
        "Name",
        "Type",
        "State",
        "Reading",
        "Units",
        *("Lower NR", "Lower C", "Lower NC", "Upper NC", "Upper C", "Upper NR"),
        "Event",
    ),
}


@dataclass
class Table:
    """Splits FreeIPMI's lines into named columns, for one or many hosts."""

    node: str
    header: tuple[str, ...] = ()
    plain: dict[int, tuple[str, ...]] = field(default_factory=lambda: _PLAIN)

    def row(self, line: str) -> tuple[str, dict[str, str]] | None:
        """Host and columns of one line; an empty dict for a header, None for anything else."""
        host, rest = self.node, line
        parts = self._split(rest)
        if not _is_start(parts[0]):
            hit = _HOST.match(line)
            if hit is None:
                return None
            host, rest = hit["host"], hit["rest"]
            parts = self._split(rest)
        if parts[0] == "ID":
            self.header = tuple(parts)
            return host, {}
        names = self.header or self.plain.get(len(parts), ())
        if not parts[0].isdigit() or not names or len(parts) != len(names):
            return None
        return host, dict(zip(names, parts, strict=True))

    @staticmethod
    def _split(text: str) -> list[str]:
        if "|" in text:
            return cells(text, "|")
        if '"' in text:
            try:
                return [cell.strip() for cell in next(csv.reader([text]), [""])] or [""]
            except csv.Error:
                return [""]
        return cells(text, ",")


def _is_start(cell: str) -> bool:
    return cell.isdigit() or cell == "ID"


def parse(text: str | bytes, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """``bmc`` points from ``ipmi-sensors`` or ``ipmimonitoring``. Never raises.

    Where lines begin with ``host: `` the host is the node, else ``node`` is.
    """
    found = Readings(sensors_limit=TEXT_RECORDS_LIMIT)
    held: list[Discrete] = []
    table = Table(node)
    end, last = split_last(text)
    for line in lines(text, end):
        _line(found, held, table, line, node)
        if found.full(len(held)):
            break
    if last:
        # Nobody can tell whether its end is missing: only a number with its unit is believed.
        scratch = Readings()
        _line(scratch, [], table, last, node)
        if not found.take_numbers(scratch):
            found.problem("the last line has no end: output cut off?", last)
    add_discrete(found, held)
    return found.samples(now_ns), found.problems


def _line(found: Readings, held: list[Discrete], table: Table, line: str, node: str) -> None:
    if not line.strip():
        return
    if not printable(line):
        found.problem("bytes that no tool prints", line)
        return
    old = _OLD.match(line.strip())
    if old is not None:
        _keep(held, _old(found, node, old, line))
        return
    answer = table.row(line.strip())
    if answer is None:
        said = words_for(line)
        if said or complaint(line):
            found.problem(said or "FreeIPMI complains", line)
        else:
            found.problem("not a line of a sensor listing", line)
    elif answer[1]:
        _keep(held, _columns(found, answer[0], answer[1], line))


def _keep(held: list[Discrete], one: Discrete | None) -> None:
    if one is not None:
        held.append(one)


def _columns(found: Readings, node: str, row: dict[str, str], line: str) -> Discrete | None:
    missing = {"Name", "Type", "Reading", "Units", "Event"} - row.keys()
    if missing:
        found.problem(f"columns are missing: {', '.join(sorted(missing))}", line)
        return None
    event = row["Event"]
    if event != "N/A" and not (event.startswith("'") and event.endswith("'") and len(event) > 1):
        found.problem("an event without its end: output cut off?", line)
        return None
    states = ", ".join(_EVENT.findall(event))
    state = row.get("State", "N/A").lower()
    if state not in ("n/a", *_STATES):
        found.problem("a state that FreeIPMI does not print", line)
        return None
    critical = _STATES.get(state)
    return _take(
        found,
        node,
        row["Name"],
        row["Type"],
        row["Reading"],
        row["Units"],
        states,
        critical,
        row["ID"],
        line,
    )


def _old(found: Readings, node: str, hit: re.Match[str], line: str) -> Discrete | None:
    """The layout of FreeIPMI before 0.8, still there as --legacy-output."""
    states = ", ".join(part.strip() for part in hit["event"].split("]["))
    value = hit["value"] or "N/A"
    unit = hit["unit"] or "N/A"
    return _take(found, node, hit["name"], hit["type"], value, unit, states, None, hit["id"], line)


def _take(
    found: Readings,
    node: str,
    name: str,
    sensor_type: str,
    reading: str,
    unit: str,
    states: str,
    critical: bool | None,
    part: str,
    line: str,
) -> Discrete | None:
    """Adds a sensor with a number; gives back one that has states instead."""
    if reading == "N/A":
        if unit in ("N/A", "") and states and states.lower() not in ("unknown", "n/a", "na"):
            return Discrete(node, name, states, part, sensor_type, critical)
        kind = _TYPE_KIND.get(sensor_type.lower()) or guess_kind(name)
        found.add(Reading(node, name, kind, present=False, part=part))
        return None
    value = number(reading)
    if value is None:
        found.problem("a reading that is no number", line)
        return None
    known = normal(value, unit)
    if known is None:
        found.problem(f"a unit that is not kept: {unit[:30]}", line)
        return None
    words = states.lower().replace("non-critical", "")
    own = sensor_type.lower() == "power supply" and words not in ("", "ok", "n/a", "unknown")
    if own and not re.search(r"threshold|(upper|lower) ", words):
        # A supply that measures, and has states beside the number.
        found.add(Reading(node, name, known[0], known[1], None, True, part))
        return Discrete(node, name, states, part, sensor_type, critical)
    if critical is None:
        critical = "critical" in words or "non-recoverable" in words
    found.add(Reading(node, name, known[0], known[1], critical, True, part))
    return None
