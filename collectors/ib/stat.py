"""Reads what ``ibstat``, ``ibstatus`` and ``rdma link`` print of the ports of one node.

All give ``ib_port`` points. The rate is what the tool says, also of a link that is down (the
kernel then reports the slowest, 10 Gb/s at 4X): look at ``physical_state`` beside it.
"""

from __future__ import annotations

import re

from collectors.ib.text import Points, Problems, whole_lines
from collectors.ib.units import physical_state_of, rate_fields, state_of
from collectors.sample import Problem, Sample

Parsed = tuple[list[Sample], list[Problem]]

_DEVICE = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}"
_CA = re.compile(rf"CA:?\s+'({_DEVICE})'\s*\Z")
_CA_ANY = re.compile(r"CA:?\s+'")
_PORT = re.compile(r"Port (\d{1,3}):\s*\Z")
_PAIR = re.compile(r"([A-Z][A-Za-z0-9 ]{1,30}):\s*(.*)\Z")
_RATE = re.compile(r"(\d{1,5}(?:\.\d{1,5})?)(?: \([A-Z]{2,4}\d{0,2}\))?\Z")
_STOPPED = re.compile(rf"stat of IB device '({_DEVICE})' failed")
_SILENT = frozenset(
    {
        "CA type",
        "Number of ports",
        "Firmware version",
        "Hardware version",
        "Node GUID",
        "System image GUID",
        "Base lid",
        "LMC",
        "SM lid",
        "Capability mask",
        "Port GUID",
        "Link layer",
    }
)


def parse_ibstat(text: str | bytes, node: str, now_ns: int) -> Parsed:
    """``ibstat`` (all devices, one device, or one port) as ``ib_port`` points of ``node``."""
    problems = Problems()
    points = Points(problems)
    device, port = "", ""
    for line in whole_lines(text, problems):
        plain = line.strip()
        if not plain:
            continue
        if _CA_ANY.match(plain):
            match = _CA.match(plain)
            device, port = (match.group(1), "") if match else ("", "")
            if match is None:
                problems.add("device name not understood, its ports are left out", line)
        elif match := _PORT.match(plain):
            port = match.group(1) if device else ""
            if not device:
                problems.add("a port without its device is left out", line)
        elif match := _STOPPED.search(plain):
            # Versions up to 44 end here: a device that cannot be read hides those after it.
            problems.add(
                f"ibstat stopped at {match.group(1)}: it and the devices after it are missing",
                line,
            )
        elif match := _PAIR.match(plain):
            key, value = match.groups()
            if port:
                fields = _ibstat_field(key, value, line, problems)
                points.put("ib_port", _tags(node, device, port), fields)
                port = _after(key, value, port)
            elif key not in _SILENT:
                problems.unknown(line, "ibstat")
        elif problems.unknown(line, "ibstat"):
            port, device = "", _beneath(line, device)
    return points.samples(now_ns), problems.all()


def _after(key: str, value: str, port: str) -> str:
    """The port that the next lines are about: none after what may be a heading."""
    return port if value or key in _SILENT else ""


def _beneath(line: str, device: str) -> str:
    """The device that the next lines are about, after a line that nobody can read."""
    return device if line[0].isspace() else ""


def _ibstat_field(key: str, value: str, line: str, problems: Problems) -> dict[str, float]:
    if key == "State":
        return _one("state", state_of(value), line, problems)
    if key == "Physical state":
        return _one("physical_state", physical_state_of(value), line, problems)
    if key == "Rate":
        # Whole Gb/s. Which width and lane speed make it up, it does not say.
        match = _RATE.match(value)
        rate = float(match.group(1)) * 1e9 if match else None
        return _one("rate_bits_per_second", rate, line, problems)
    if key not in _SILENT:
        problems.unknown(line, "ibstat")
    return {}


_STATUS = re.compile(rf"Infini[Bb]and device '({_DEVICE})' port (\S+) status:\s*\Z")
_STATUS_ANY = re.compile(r"Infini[Bb]and device ")
_STATUS_PAIR = re.compile(r"(default gid|base lid|sm lid|state|phys state|rate|link_layer):\s*(.*)")


def parse_ibstatus(text: str | bytes, node: str, now_ns: int) -> Parsed:
    """``ibstatus`` as ``ib_port`` points of ``node``."""
    problems = Problems()
    points = Points(problems)
    device, port, skip = "", "", False
    for line in whole_lines(text, problems):
        plain = line.strip()
        if not plain:
            continue
        if _STATUS_ANY.match(plain):
            match = _STATUS.match(plain)
            device, port = match.groups() if match else ("", "")
            skip = not port.isdecimal() or len(port) > 3
            if skip:
                # ibstatus is a shell script: for a device without ports it lists whatever
                # its pattern matched, with every value "unknown".
                problems.add("a port that has no number is left out", line)
            continue
        match = _STATUS_PAIR.match(plain)
        if match is None or not (device or skip):
            foreign = problems.unknown(line, "ibstatus")
            skip = skip or (foreign and not line[0].isspace())
        elif not skip:
            fields = _ibstatus_field(match.group(1), match.group(2).strip(), line, problems)
            points.put("ib_port", _tags(node, device, port), fields)
    return points.samples(now_ns), problems.all()


def _ibstatus_field(key: str, value: str, line: str, problems: Problems) -> dict[str, float]:
    if key == "state":
        return _one("state", state_of(value), line, problems)
    if key == "phys state":
        return _one("physical_state", physical_state_of(value), line, problems)
    if key == "rate":
        fields = rate_fields(value)
        if fields is None:
            problems.add("rate not understood", line)
        return fields or {}
    return {}


_LINK = re.compile(rf"link ({_DEVICE})/(\d{{1,3}})\s+(.*)\Z")
_LINK_STATE = re.compile(r"(?:\A|\s)state (\S+)(?:\s|\Z)")
_LINK_PHYSICAL = re.compile(r"(?:\A|\s)physical_state (\S+)(?:\s|\Z)")


def parse_rdma_link(text: str | bytes, node: str, now_ns: int) -> Parsed:
    """``rdma link`` (iproute2) as ``ib_port`` points of ``node``: the states only."""
    problems = Problems()
    points = Points(problems)
    for line in whole_lines(text, problems):
        if not line.strip():
            continue
        match = _LINK.match(re.sub(r"\A\d+: |\A\d+/\d+: ", "", line.strip()))
        if match is None:
            problems.unknown(line, "rdma link")
            continue
        device, port, rest = match.groups()
        fields: dict[str, float] = {}
        if state := _LINK_STATE.search(rest):
            fields |= _one("state", state_of(state.group(1)), line, problems)
        if physical := _LINK_PHYSICAL.search(rest):
            value = physical_state_of(physical.group(1))
            fields |= _one("physical_state", value, line, problems)
        points.put("ib_port", _tags(node, device, port), fields)
    return points.samples(now_ns), problems.all()


def _tags(node: str, device: str, port: str) -> dict[str, str]:
    return {"node": node, "device": device, "port": str(int(port))}


def _one(name: str, value: float | None, line: str, problems: Problems) -> dict[str, float]:
    if value is None:
        problems.add(f"{name} not understood", line)
        return {}
    return {name: value}
