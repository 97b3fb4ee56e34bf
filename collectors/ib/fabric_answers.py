"""Turns the output of ``collectors.ib.fabric_sweep`` into fields, without believing all of it."""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectors.ib import fabric_sweep as sweep
from collectors.ib.units import (
    COUNTERS,
    DOWN,
    LINK_UP,
    SPEED_CODES,
    SPEED_EXTENDED2_CODES,
    SPEED_EXTENDED_CODES,
    U64_CEILING,
    WIDTH_CODES,
    lane_fields,
)
from collectors.sample import Problem

# Places of the counters in the answers to PortCounters and to the errors of its extension.
_PLACES = {
    "symbol_errors_total": 0,
    "link_recoveries_total": 1,
    "link_downs_total": 2,
    "receive_errors_total": 3,
    "receive_remote_physical_errors_total": 4,
    "receive_switch_relay_errors_total": 5,
    "transmit_discards_total": 6,
    "vl15_drops_total": 11,
}
_INTEGRITY_AND_OVERRUN = 9
U32_CEILING = (1 << 32) - 1
_WIDE_PLACES = {
    "symbol_errors_total": 0,
    "link_recoveries_total": 1,
    "link_downs_total": 2,
    "receive_errors_total": 3,
    "receive_remote_physical_errors_total": 4,
    "receive_switch_relay_errors_total": 5,
    "transmit_discards_total": 6,
    "local_link_integrity_errors_total": 9,
    "excessive_buffer_overruns_total": 10,
    "vl15_drops_total": 11,
    "transmit_wait_total": 12,
}
_CEILINGS = {counter.field: counter.ceiling for counter in COUNTERS}
_FACTORS = {counter.field: counter.factor for counter in COUNTERS}
EXTENDED_ANSWERS, WIDE_ANSWERS, INFO_ANSWERS = 2, 13, 6


@dataclass(frozen=True, slots=True)
class Manager:
    """What SMInfo (14.2.5.13) says of the subnet manager. ``state`` 3 is master."""

    lid: int
    guid: str
    activity: int
    priority: int
    state: int


@dataclass(slots=True)
class Answers:
    """What one sweep brought. Ports are named by (LID, port), as they were asked.

    ``unread`` maps a LID that does not answer to why; ``masks`` what a node says it can tell.
    ``whole`` is False when the sweep ran out of time.
    """

    ports: dict[tuple[int, int], dict[str, float]] = field(default_factory=dict)
    saturated: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    failed: set[tuple[int, int]] = field(default_factory=set)
    unread: dict[int, str] = field(default_factory=dict)
    strangers: set[int] = field(default_factory=set)
    masks: dict[int, tuple[int, int]] = field(default_factory=dict)
    manager: Manager | None = None
    whole: bool = False
    requests: int = 0
    timeouts: int = 0
    seconds: float = 0.0
    problems: list[Problem] = field(default_factory=list)


def read_answers(told: bytes) -> Answers | None:
    """The answers in ``told``, or None when its end is missing: the program did not finish."""
    answers = Answers()
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    place, done = 0, False
    while place + sweep.RECORD.size <= len(told) and not done:
        lid, port, kind, size = sweep.RECORD.unpack_from(told, place)
        place += sweep.RECORD.size
        data = told[place : place + size]
        place += size
        try:
            if kind in _ROW:
                _ROW[kind](rows.setdefault((lid, port), {}), data)
            else:
                done = _node(lid, kind, data, answers)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError, struct.error):
            answers.problems.append(Problem("a record of the sweep is not understood", data.hex()))
    for key, row in rows.items():
        fields, saturated = port_fields(row)
        answers.ports[key] = fields
        if saturated:
            answers.saturated[key] = saturated
        if row.get("e"):
            answers.failed.add(key)
    return answers if done else None


def _info(row: dict[str, Any], data: bytes) -> None:
    speeds = data[35] >> 4, data[62] >> 4, data[56] >> 5 & 3
    row["i"] = (data[32] & 15, data[33] >> 4, data[31], *speeds)


def _counters(row: dict[str, Any], data: bytes) -> None:
    row["c"], row["d"] = data[:20], _DATA.unpack(data[20:])


def _counters_wait(row: dict[str, Any], data: bytes) -> None:
    _counters(row, data)
    row["w"] = True


def _extended(row: dict[str, Any], data: bytes) -> None:
    row["x"] = _EXTENDED.unpack(data)


def _wider(row: dict[str, Any], data: bytes) -> None:
    row["x"], row["y"] = _EXTENDED.unpack(data[:16]), _ERRORS.unpack(data[16:])


def _failed(row: dict[str, Any], data: bytes) -> None:
    row.setdefault("e", []).append(sweep.FAILED_OF.unpack(data)[0])


_ERROR_COUNTERS, _DATA = struct.Struct(">HBBHHHHBBxBHH"), struct.Struct(">IIIII")
_MANAGER = struct.Struct(">Q8xIB")
_EXTENDED, _ERRORS = struct.Struct(">QQ"), struct.Struct(">13Q")
_ROW = {
    sweep.INFO: _info,
    sweep.COUNTERS: _counters,
    sweep.COUNTERS_WAIT: _counters_wait,
    sweep.EXTENDED: _extended,
    sweep.WIDER: _wider,
    sweep.FAILED: _failed,
}


def _node(lid: int, kind: int, data: bytes, answers: Answers) -> bool:
    """Takes in what is said of a node, or of the sweep; True for the last record."""
    if kind == sweep.MASKS:
        mask, mask2 = sweep.MASKS_OF.unpack(data)
        answers.masks[lid] = (mask, mask2)
    elif kind == sweep.SILENT:
        _, stranger = sweep.SILENT_OF.unpack_from(data)
        answers.unread[lid] = data[sweep.SILENT_OF.size :].decode("utf-8", "replace")
        if stranger:
            answers.strangers.add(lid)
    elif kind == sweep.MANAGER:
        guid, activity, state = _MANAGER.unpack(data)
        answers.manager = Manager(lid, f"0x{guid:x}", activity, state >> 4, state & 15)
    elif kind == sweep.DONE:
        row = json.loads(data)
        answers.whole = row["done"] is True
        answers.requests, answers.timeouts = int(row["sent"]), int(row["timeouts"])
        answers.seconds = float(row["seconds"])
        return True
    else:
        raise ValueError("of no known kind")
    return False


def port_fields(row: Mapping[str, Any]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Fields of one port and the names of the counters at their ceiling.

    Width and speed of a link that is down are what it would start with: left out. Of data
    counters only those of 64 bits are taken, unless a port has no others.
    """
    fields: dict[str, float] = {}
    saturated: set[str] = set()
    info: Sequence[int] = row.get("i") or ()
    if len(info) == INFO_ANSWERS:
        fields |= _link_fields(*info)
    if "c" in row:
        errors, full = _errors(row["c"])
        fields |= errors
        saturated = set(full)
        _plain_data(row["d"], bool(row.get("w")), fields, saturated)
    wide: Sequence[int] = row.get("y") or ()
    if len(wide) == WIDE_ANSWERS:
        found = {name: wide[place] for name, place in _WIDE_PLACES.items()}
        saturated -= _take_wide(found, 1, fields)
    data: Sequence[int] = row.get("x") or ()
    if len(data) == EXTENDED_ANSWERS:
        found = {"transmit_bytes_total": data[0], "receive_bytes_total": data[1]}
        saturated -= _take_wide(found, 4, fields)
    return fields, tuple(sorted(saturated))


_NIBBLES = ("local_link_integrity_errors_total", "excessive_buffer_overruns_total")


@functools.lru_cache(maxsize=4_096)
def _errors(raw: bytes) -> tuple[dict[str, float], frozenset[str]]:
    """Error counters of PortCounters, and which stand at their ceiling; most ports have few."""
    told = _ERROR_COUNTERS.unpack(raw)
    found = {name: told[place] for name, place in _PLACES.items()}
    both = told[_INTEGRITY_AND_OVERRUN]
    found |= dict(zip(_NIBBLES, (both >> 4, both & 15), strict=True))
    fields = {name: float(value * _FACTORS[name]) for name, value in found.items()}
    return fields, frozenset(name for name, value in found.items() if value == _CEILINGS[name])


def _plain_data(
    told: Sequence[int], has_wait: bool, fields: dict[str, float], saturated: set[str]
) -> None:
    """Adds the counters of 32 bits: data where they still count, waiting where it is counted."""
    sent, received, _, _, wait = told
    for name, value in (("transmit_bytes_total", sent), ("receive_bytes_total", received)):
        if value == U32_CEILING:
            saturated.add(name)
        else:
            fields[name] = float(4 * value)
    if has_wait:  # without the capability the place holds nothing
        fields["transmit_wait_total"] = float(wait)
        if wait == U32_CEILING:
            saturated.add("transmit_wait_total")


def _take_wide(found: Mapping[str, int], factor: int, fields: dict[str, float]) -> set[str]:
    """Adds counters of 64 bits; answers which of them were taken."""
    taken = {name for name, value in found.items() if value != U64_CEILING}
    for name in taken:
        fields[name] = float(found[name] * factor)
    return taken


@functools.lru_cache(maxsize=1_024)
def _link_fields(
    state: int, physical: int, width: int, speed: int, extended: int, extended2: int
) -> dict[str, float]:
    """What PortInfo says of a link; the same few answers come from thousands of ports."""
    fields: dict[str, float] = {}
    if 1 <= state <= 5:
        fields["state"] = float(state)
    if 1 <= physical <= 7:
        fields["physical_state"] = float(physical)
    if float(state) > DOWN and physical == LINK_UP:
        name = SPEED_EXTENDED_CODES.get(extended, "") if extended else SPEED_CODES.get(speed, "")
        # Beyond NDR the speed stands in a place that was reserved before (LinkSpeedExtActive2).
        name = SPEED_EXTENDED2_CODES.get(extended2, "") if extended2 else name
        fields |= lane_fields(WIDTH_CODES.get(width, 0), name)
    return fields
