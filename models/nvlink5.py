"""Xid 144 to 150 (NVLink 5): what the registers in the line say.

The line names a unit (``RLW_REMAP``), then IntrInfo and the error status. The table
(``tables/nvlink5.csv``) has, for each unit, the bits of IntrInfo that must stand (written for
drivers before R575 and from R575 on; the line does not say which, so either may match) and the
error status. Most error statuses are one bit of a mask; those of NETIR are numbers.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from collectors.kernel.nvidia import nvlink_line

_TABLE = Path(__file__).with_name("tables") / "nvlink5.csv"
# How strongly each action speaks, where several bits are set at once.
_FORCE = {"RESET_GPU": 3, "XID_154_EVAL": 2, "IGNORE": 1}


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the table says of one line; ``link`` is -1 where the error is of no single link."""

    unit: str
    link: int
    fatal: bool
    immediate: str
    investigatory: str
    severity: str
    effect: str


@dataclass(frozen=True, slots=True)
class _Bits:
    """A pattern of 32 characters as mask and value; the empty pattern matches nothing."""

    mask: int
    value: int

    def match(self, word: int) -> bool:
        return self.mask != 0 and word & self.mask == self.value


@dataclass(frozen=True, slots=True)
class _Row:
    xid: int
    units: frozenset[str]
    bits: tuple[_Bits, _Bits]
    bits2: tuple[_Bits, _Bits]
    statuses: frozenset[int]  # empty: any
    immediate: str
    immediate2: str
    investigatory: str
    severity: str
    effect: str


def decode(code: int, message: str) -> Decoded | None:
    """The table's answer to an NVLink 5 line, None if it holds none (or the line is cut off).

    >>> decode(145, "RLW_REMAP Fatal XC0 i0 Link 03 (0x00000004 0x00000040)").immediate
    'RESET_GPU'
    """
    line = nvlink_line(message)
    if line is None or not line.words:
        return None
    info = line.words[0]
    status = line.words[1] if len(line.words) > 1 else None
    units = set(line.unit.replace(" ", "_").split("/"))
    rows = [
        row
        for row in _table()
        if row.xid == code
        and row.units & units
        and any(bits.match(info) for bits in (*row.bits, *row.bits2))
    ]
    found = [row for row in rows if _status_is(row, status)]
    if not found and status:
        # Several bits at once: each row that names one of them speaks, the strongest wins.
        found = [row for row in rows if any(_one_bit(own) and own & status for own in row.statuses)]
    if not found:
        return None
    answers = [(_action(row, info), row) for row in found]
    action, row = max(answers, key=lambda answer: _FORCE.get(answer[0], 0))
    return Decoded(
        line.unit, line.link, line.fatal, action, row.investigatory, row.severity, row.effect
    )


def _status_is(row: _Row, status: int | None) -> bool:
    if not row.statuses:
        return True
    return status is not None and status in row.statuses


def _one_bit(status: int) -> bool:
    return status.bit_count() == 1


def _action(row: _Row, info: int) -> str:
    if row.immediate2 and any(bits.match(info) for bits in row.bits2):
        return row.immediate2
    return row.immediate


@cache
def _table() -> tuple[_Row, ...]:
    with open(_TABLE, newline="", encoding="utf-8") as file:
        return tuple(
            _Row(
                int(row["xid"]),
                frozenset(row["units"].replace(" ", "_").split("/")),
                (_bits(row["bits_v1"]), _bits(row["bits_v2"])),
                (_bits(row["bits2_v1"]), _bits(row["bits2_v2"])),
                frozenset(int(word, 16) for word in row["error_status"].split("/") if word),
                row["immediate_action"],
                row["immediate_action2"],
                row["investigatory_action"],
                row["severity"],
                row["effect"],
            )
            for row in csv.DictReader(file)
        )


def _bits(pattern: str) -> _Bits:
    mask = value = 0
    for character in pattern:
        mask, value = mask << 1, value << 1
        if character in "01":
            mask |= 1
            value |= int(character)
    return _Bits(mask, value)
