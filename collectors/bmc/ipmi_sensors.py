"""Sensors in the output of ipmitool: ``sdr`` (list, elist, csv, type), ``sensor``, ``sensor get``.

The columns of a line say which form it is, so one parser reads all of them, also mixed. A
line that was cut off has too few columns, an unknown unit or an unknown status, and is told
as a problem: a number is only taken with its unit and its status.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from collectors.bmc.ipmi_discrete import HEX_STATES, Discrete
from collectors.bmc.ipmi_discrete import add as add_discrete
from collectors.bmc.ipmi_faults import complaint, words_for
from collectors.bmc.ipmi_text import TEXT_RECORDS_LIMIT, cells, lines, printable, split_last
from collectors.bmc.ipmi_words import split_type
from collectors.bmc.points import Reading, Readings, guess_kind, normal, number
from collectors.sample import Problem, Sample

_CRITICAL = frozenset({"cr", "nr", "lcr", "lnr", "ucr", "unr"})
_FINE = frozenset({"ok", "nc", "lnc", "unc"})
_NO_READING = frozenset({"ns", "na", "us"})
_ABSENT_WORDS = frozenset(
    {"no reading", "disabled", "not readable", "na", "n/a", "", "unknown", "not available"}
)
_NUMBERED = re.compile(r"[0-9a-fA-F]{2}h\Z")
_ENTITY = re.compile(r"\d{1,3}\.\s?\d{1,3}\Z")
_VALUE = re.compile(r"(?P<value>\S+)(?:\s+\(\+/-\s*\S+\))?\s+(?P<unit>\S.*)\Z")
_NOT_A_NUMBER = re.compile(r"(?i)[+-]?(nan|inf(inity)?)\b")
_BLOCK_STATES = re.compile(r"\[([^\]]{1,80})\]")


@dataclass(slots=True)
class _Block:
    """One sensor of ``sensor get`` or ``sdr get``, gathered line by line."""

    name: str = ""
    kind: str = ""
    reading: str = ""
    status: str = ""
    entity: str = ""
    discrete: bool = False
    states: str = ""


def parse(text: str | bytes, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """``bmc`` points of one BMC from any ipmitool sensor listing. Never raises."""
    found = Readings(sensors_limit=TEXT_RECORDS_LIMIT)
    read_into(found, text, node)
    return found.samples(now_ns), found.problems


def read_into(found: Readings, text: str | bytes, node: str) -> None:
    """Adds the sensors of ``text`` to ``found``."""
    end, last = split_last(text)
    held: list[Discrete] = []
    block = _Block()
    for line in lines(text, end):
        block = _line(found, held, block, line, node)
        if found.full(len(held)):
            break
    if last:
        # Nobody can tell whether its end is missing: only a number with its unit is believed.
        scratch = Readings()
        block = _line(scratch, [], block, last, node)
        if not found.take_numbers(scratch) and not block.name:
            found.problem("the last line has no end: output cut off?", last)
    if block.name and last:
        found.problem("a sensor whose lines do not end: output cut off?", block.name)
    else:
        _block_end(found, held, block, node)
    add_discrete(found, held)


def _line(found: Readings, held: list[Discrete], block: _Block, line: str, node: str) -> _Block:
    """Takes one line in; gives back the sensor that following lines belong to."""
    if not line.strip() or line.startswith("Locating sensor record"):
        return block
    if not printable(line):
        found.problem("bytes that no tool prints", line)
    elif complaint(line):
        found.problem(words_for(line) or "ipmitool complains", line)
    elif "|" in line:
        _row(found, held, cells(line, "|"), line, node)
    elif _is_block(line, block):
        return _block_line(found, held, block, line, node)
    elif line.count(",") >= 3:
        _csv(found, held, line.split(","), line, node)
    else:
        found.problem("not a line of a sensor listing", line)
    return block


def _row(found: Readings, held: list[Discrete], row: list[str], line: str, node: str) -> None:
    """One line with bars: 3 columns are ``sdr list``, 5 ``elist``, 10 ``sensor``."""
    if len(row) == 3:
        _analog(found, held, node, row[0], row[1], row[2], "", line)
    elif len(row) == 5 and _NUMBERED.match(row[1]):
        _analog(found, held, node, row[0], row[4], row[2], row[3].replace(" ", ""), line)
    elif len(row) >= 10:
        _sensor(found, held, row, line, node)
    elif len(row) == 2 and number(row[1]) is not None:
        found.problem("a reading without a unit: use sdr elist or sensor", line)
    else:
        found.problem("a sensor line with too few columns", line)


def _csv(found: Readings, held: list[Discrete], row: list[str], line: str, node: str) -> None:
    """One line with commas: 4 columns are ``sdr``, 10 ``sensor``, a ``22h`` a discrete one."""
    row = [cell.strip() for cell in row]
    if len(row) >= 4 and _NUMBERED.match(row[1]) and _ENTITY.match(row[3]):
        if row[2] not in _FINE | _CRITICAL | _NO_READING:
            found.problem("a status that ipmitool does not print", line)
            return
        states = ", ".join(cell for cell in row[4:] if cell)
        if row[2] in _NO_READING:
            states = "na"
        held.append(Discrete(node, row[0], states, row[3]))
    elif len(row) >= 10:
        _sensor(found, held, row, line, node)
    elif len(row) in (4, 6):
        reading = f"{row[1]} {row[2]}" if row[1] else ""
        _analog(found, held, node, row[0], reading, row[3], "", line)
    else:
        found.problem("a sensor line with too few columns", line)


def _sensor(found: Readings, held: list[Discrete], row: list[str], line: str, node: str) -> None:
    """One line of ``ipmitool sensor``: name, value, unit, status, six thresholds."""
    name, value, unit, status = row[:4]
    if any(cell not in ("na", "") and number(cell) is None for cell in row[4:10]):
        found.problem("a threshold that is no number", line)
    elif unit == "discrete":
        # The value column holds the states in the text form and 0x0 in the csv form of
        # ipmitool 1.8.19; the status column holds them in both, low byte first.
        if value == "na" or status == "na":
            held.append(Discrete(node, name, "na"))
        elif HEX_STATES.match(status) and len(status) == 6:
            held.append(Discrete(node, name, f"0x{status[4:6]}{status[2:4]}"))
        else:
            found.problem("states that are no hexadecimal number", line)
    else:
        reading = "" if value == "na" else f"{value} {unit}"
        _analog(found, held, node, name, reading, status, "", line)


def _analog(
    found: Readings,
    held: list[Discrete],
    node: str,
    name: str,
    reading: str,
    status: str,
    entity: str,
    line: str,
) -> None:
    if status not in _FINE | _CRITICAL | _NO_READING:
        found.problem("a status that ipmitool does not print", line)
        return
    if status in _NO_READING or reading.lower() in _ABSENT_WORDS:
        if entity and not reading and status == "ok":
            held.append(Discrete(node, name, "", entity))  # a discrete sensor with no state set
        else:
            found.add(Reading(node, name, guess_kind(name), present=False, part=entity))
        return
    if HEX_STATES.match(reading):
        held.append(Discrete(node, name, reading, entity))
        return
    hit = _VALUE.match(reading)
    value = number(hit["value"]) if hit else None
    if hit is None or value is None:
        if _NOT_A_NUMBER.match(reading):
            found.problem("a reading that is no number", line)
        elif reading[0].isdigit() or reading[0] in "+-.":
            found.problem("a reading without a unit", line)
        else:
            held.append(Discrete(node, name, reading, entity))
        return
    # A sensor may have a number and states: "95 Watts, Presence detected".
    unit, _, states = hit["unit"].partition(", ")
    if states:
        held.append(Discrete(node, name, states, entity))
    known = normal(value, unit)
    if known is None:
        if not states:
            found.problem(f"a unit that is not kept: {unit[:30]}", line)
        return
    critical = status in _CRITICAL
    judged = critical if critical or not states else None  # the states are judged by themselves
    found.add(Reading(node, name, known[0], known[1], judged, True, entity))


# ---- sensor get --------------------------------------------------------------------------------

_KEY = re.compile(r"\s*(?P<key>[A-Z][A-Za-z /()-]{1,40}?)\s*: ?(?P<value>.*)\Z")


def _is_block(line: str, block: _Block) -> bool:
    return line.startswith("Sensor ID") or (
        bool(block.name) and bool(_KEY.match(line) or _BLOCK_STATES.search(line))
    )


def _block_line(
    found: Readings, held: list[Discrete], block: _Block, line: str, node: str
) -> _Block:
    hit = _KEY.match(line)
    if hit is None:
        state = _BLOCK_STATES.search(line)
        if state:
            block.states = f"{block.states}, {state[1]}" if block.states else state[1]
        return block
    key, value = hit["key"].strip(), hit["value"].strip()
    if key == "Sensor ID":
        _block_end(found, held, block, node)
        return _Block(name=re.sub(r"\s*\(0x[0-9a-fA-F]+\)\Z", "", value))
    if key == "Entity ID":
        block.entity = value.split(" ")[0]
    elif key.startswith("Sensor Type"):
        block.kind, block.discrete = value, "Discrete" in key
    elif key == "Sensor Reading":
        block.reading = value
    elif key == "Status":
        block.status = value
    return block


def _block_end(found: Readings, held: list[Discrete], block: _Block, node: str) -> None:
    if not block.name:
        return
    if block.discrete or block.states:
        sensor_type = split_type(block.kind)[0]
        held.append(Discrete(node, block.name, block.states, block.entity, sensor_type))
        return
    if block.reading.lower() in _ABSENT_WORDS or block.reading.lower().startswith("no reading"):
        if block.reading:
            found.add(
                Reading(node, block.name, guess_kind(block.name), present=False, part=block.entity)
            )
        else:
            found.problem("a sensor without a reading: output cut off?", block.name)
        return
    hit = _VALUE.match(block.reading)
    value = number(hit["value"]) if hit else None
    known = normal(value, hit["unit"]) if hit and value is not None else None
    if known is None or not block.status:
        found.problem("a sensor without value, unit or status: cut off?", block.name)
        return
    status = block.status.lower()
    critical = "critical" in status.replace("non-critical", "") or "non-recoverable" in status
    found.add(Reading(node, block.name, known[0], known[1], critical, True, block.entity))
