"""Reads what ``perfquery`` prints: the counters of one port, of all ports, or their sum.

``perfquery`` names a port by LID, not by node: the points are ``ib_port`` with ``device`` set to
``lid5``. ``-a`` without ``-l`` sums the ports of a switch: ``port`` is then ``all``.
"""

from __future__ import annotations

import re

from collectors.ib.text import (
    OTHER_NAMES,
    Points,
    Problems,
    counter_value,
    known_counter,
    whole_lines,
)
from collectors.ib.units import DATA_FIELDS
from collectors.sample import Problem, Sample

_HEAD = re.compile(r"#\s*(Port.*?) counters: (.*?) port (\d{1,3})(?:\s*\(.*\))?\s*\Z")
_LID = re.compile(r"Lid (\d{1,5})\Z")
_PAIR = re.compile(r"([A-Za-z][A-Za-z0-9]{2,40}):\.*\s*(\S+)\s*\Z")
_SUM_OF_PORTS = 255

# Section -> width of its counters; None: the width that PortCounters gives each.
_SECTIONS: dict[str, int | None] = {"Port": None, "Port extended": 64}


def parse_perfquery(
    text: str | bytes, node: str, now_ns: int
) -> tuple[list[Sample], list[Problem]]:
    """``perfquery`` with or without ``-x``, ``-a``, ``-a -l``, one run or several in a row.

    Of a port that was read both ways, the data counters are those of ``-x``: at 32 bits they
    are full within a second.
    """
    problems = Problems()
    plain: dict[tuple[str, str], dict[str, float]] = {}
    wide: dict[tuple[str, str], dict[str, float]] = {}
    points = Points(problems)
    target: dict[str, float] | None = None
    section, where = "", ""
    for line in whole_lines(text, problems):
        if not line.strip():
            continue
        if line.lstrip().startswith("#"):
            section, where, target = "", "", None
            match = _HEAD.match(line.strip())
            if match is None:
                problems.unknown(line, "perfquery")
                continue
            section = match.group(1)
            if section in _SECTIONS:
                key = _port_key(match.group(2), match.group(3))
                where = f"{key[0]} port {key[1]}"
                store = wide if section == "Port extended" else plain
                if key in store:
                    problems.add("the same port a second time is left out", line)
                else:
                    target = store[key] = {}
            continue
        match = _PAIR.match(line.strip())
        if match is None or not section:
            if problems.unknown(line, "perfquery") and ":." not in line:
                section, where, target = "", "", None
        elif target is not None:
            _take(match.group(1), match.group(2), section, where, target, problems)
    for key in [*plain, *(key for key in wide if key not in plain)]:
        tags = {"node": node, "device": key[0], "port": key[1]}
        points.put("ib_port", tags, {**plain.get(key, {}), **wide.get(key, {})})
    return points.samples(now_ns), problems.all()


def _port_key(address: str, port: str) -> tuple[str, str]:
    lid = _LID.match(address)
    device = f"lid{int(lid.group(1))}" if lid else re.sub(r"[^A-Za-z0-9,]+", "_", address)[:60]
    return device, "all" if int(port) == _SUM_OF_PORTS else str(int(port))


def _take(
    name: str,
    text: str,
    section: str,
    where: str,
    target: dict[str, float],
    problems: Problems,
) -> None:
    counter = known_counter(name)
    if counter is None:
        if name not in OTHER_NAMES:
            problems.add(f"counter {name} is not known, left out", text)
        return
    bits = _SECTIONS[section] or counter.bits
    if where.endswith(" all") and counter.field not in DATA_FIELDS:
        bits = 64  # perfquery itself adds the ports up
    value = counter_value(counter, text, where, problems, bits)
    if value is None:
        return
    old = target.setdefault(counter.field, value)
    if old != value:
        problems.add(f"{name} of {where} is told twice: {old:g} and {value:g}", text)
