"""Reads what ``iblinkinfo`` prints: every link of a fabric with width, speed and states."""

from __future__ import annotations

import functools
import re

from collectors.ib.text import Points, Problems, whole_lines
from collectors.ib.units import (
    LANES,
    WIDTHS,
    guid_of,
    host_of,
    lane_fields,
    lane_name,
    physical_state_of,
    state_of,
)
from collectors.sample import Problem, Sample

_LINK = re.compile(
    r"(?:(?P<width>\d{1,2})X\s+)?"
    r"(?:(?:(?P<speed>\d{1,4}(?:\.\d{1,6})?) Gbps|(?P<name>[A-Z]{2,4}\d{0,2}))"
    r"(?:\s+\(?[A-Z]{2,4}\d{0,2}\)?)?\s+)?(?P<state>[A-Za-z]+)/\s*(?P<physical>[A-Za-z ]+)\Z"
)
_ROW = re.compile(
    r'\s*(?:(?P<guid>0x[0-9a-fA-F]{1,16})\s+)?(?:"(?P<who>.*?)"\s+)?(?P<lid>\d{1,5})\s+'
    r"(?P<port>\d{1,3})\[[^\]]*\]\s+==\((?P<link>.*?)\)==>\s*(?P<rest>.*)\Z"
)
_PEER = re.compile(
    r'(?:0x[0-9a-fA-F]{1,16}\s+)?(?:\d{1,5}\s+\d{1,3})?\s*\[[^\]]*\]\s+"(?P<peer>.*)"'
    r"\s*(?:\(.*\))?\Z"
)
_SWITCH = re.compile(r"(?:Switch|Router): (0x[0-9a-fA-F]{1,16}) (.*?):?\Z")
_ADAPTER = re.compile(r"CA: (.*?):?\Z")


def link_fields(text: str) -> dict[str, float] | None:
    """What stands between ``==(`` and ``)==>``, or None where the form is unknown.

    >>> link_fields(" 4X      25.78125 Gbps Active/  LinkUp")["rate_bits_per_second"]
    100000000000.0
    >>> link_fields("                Down/ Polling")
    {'state': 1.0, 'physical_state': 2.0}
    """
    fields = _link_fields(text.strip())
    return None if fields is None else dict(fields)


# The links of a fabric are in few states, and each host is named by each of its links.
_host_of = functools.lru_cache(maxsize=16_384)(host_of)


@functools.lru_cache(maxsize=4_096)
def _link_fields(text: str) -> dict[str, float] | None:
    match = _LINK.match(text)
    if match is None:
        return None
    state, physical = state_of(match["state"]), physical_state_of(match["physical"])
    if state is None or physical is None:
        return None
    fields = {"state": state, "physical_state": physical}
    width = int(match["width"]) if match["width"] else 0
    name = match["name"] or (lane_name(float(match["speed"]) * 1e9) if match["speed"] else "")
    if name in LANES:
        fields |= lane_fields(width, name)
    elif width in WIDTHS:
        fields["link_width"] = float(width)
    return fields


def parse_iblinkinfo(
    text: str | bytes, node: str, now_ns: int
) -> tuple[list[Sample], list[Problem]]:
    """``iblinkinfo`` with or without ``-l`` as ``fabric_port`` points; ``node`` is not used.

    ``peer_node`` is the host on the link: of a switch's port the one at the other end, of an
    adapter's own port that adapter's host.
    """
    del node
    problems = Problems()
    points = Points(problems)
    head_guid, head_description, head_is_adapter = "", "", False
    for line in whole_lines(text, problems):
        if not line.strip():
            continue
        if match := _SWITCH.match(line):
            head_guid, head_description = guid_of(match.group(1)), match.group(2)
            head_is_adapter = False
            continue
        if match := _ADAPTER.match(line):
            head_guid, head_description, head_is_adapter = "", match.group(1), True
            continue
        row = _ROW.match(line)
        fields = link_fields(row["link"]) if row else None
        if row is None or fields is None:
            if problems.unknown(line, "iblinkinfo") and row is None and not line[0].isspace():
                head_guid, head_description, head_is_adapter = "", "", False
            continue
        guid = guid_of(row["guid"]) if row["guid"] else head_guid
        if not guid:
            problems.add("a port without a GUID is left out", line)
            continue
        if row["who"] is not None:
            host, device = _host_of(row["who"])
            host = host if device else ""
        else:
            host = _host_of(head_description)[0] if head_is_adapter else ""
        peer_node = host or _peer_node(row["rest"], line, problems)
        tags = {"guid": guid, "port": str(int(row["port"])), "peer_node": peer_node}
        points.put("fabric_port", tags, fields)
    return points.samples(now_ns), problems.all()


def _peer_node(rest: str, line: str, problems: Problems) -> str:
    if rest == '"Port not available"':
        problems.add("the other end of this link did not answer", line)
        return ""
    peer = _PEER.match(rest)
    if peer is None:
        problems.add("the other end of this link is not understood", line)
        return ""
    host, device = _host_of(peer["peer"])
    return host if device else ""
