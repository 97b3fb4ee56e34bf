"""Reads what is new in a BMC's System Event Log. Nothing in a SEL is ever cleared or changed.

The cursor is the last record that was read, its id and its bytes. Ids alone do not do: they wrap
at FFFEh, and after somebody has cleared the log they begin again. So the last record is read
again; if it is another one, the log was cleared, which is an event of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from collectors.bmc.ipmi_lan import STORAGE, Lan, Refused
from collectors.bmc.ipmi_records import SensorRecord, entry_of, record_id
from collectors.bmc.ipmi_sel_entry import to_sample
from collectors.events import WARNING, event
from collectors.sample import Sample

GET_INFO, GET_ENTRY = 0x40, 0x43
FIRST, LAST = 0x0000, 0xFFFF
RECORD_BYTES = 16
OVERFLOW_BIT = 0x80


@dataclass
class Cursor:
    """Where we are in one BMC's log. ``info`` is its last answer to Get SEL Info.

    ``following`` is the id to go on with when a round ended in the midst of the log.
    """

    last_id: int = 0
    last_record: bytes = b""
    info: bytes = b""
    following: int = FIRST
    started: bool = False
    full: bool = False
    asked: int = 0  # the record that is being asked for; 0: none
    # Records read since the log was begun with: a log whose links lead back never ends else.
    visited: set[int] = field(default_factory=set)

    def dump(self) -> list[object]:
        """JSON data."""
        return [self.last_id, self.last_record.hex(), self.info.hex(), self.full]

    def pass_over(self) -> None:
        """Goes on behind the record that was asked for: nobody gets it out of this BMC."""
        self.following, self.asked = min(self.asked + 1, LAST - 1), 0

    @classmethod
    def load(cls, data: object) -> Cursor:
        """What ``dump`` gave; a fresh cursor from anything else."""
        if not isinstance(data, list) or len(data) != 4:
            return cls()
        try:
            record, info = bytes.fromhex(data[1]), bytes.fromhex(data[2])
            return cls(int(data[0]), record, info, FIRST, True, bool(data[3]))
        except (TypeError, ValueError):
            return cls()


async def read_new(
    lan: Lan,
    cursor: Cursor,
    node: str,
    sensors: Callable[[], Mapping[tuple[int, int], SensorRecord]],
    now_ns: int,
    limit: int,
    backlog: int,
    samples: list[Sample] | None = None,
) -> list[Sample]:
    """The entries since the last time, at most ``limit``; the rest comes next time.

    They go into ``samples`` one by one, as the cursor moves: where the BMC falls silent in the
    midst, what came before stands there. ``sensors`` gives the sensors by number and owner, asked
    for only where there is an entry. At the first contact with a BMC only about ``backlog`` old
    entries are read.
    """
    samples = [] if samples is None else samples
    cursor.asked = 0
    try:
        info = await lan.call(STORAGE, GET_INFO)
    except Refused:
        return samples  # a BMC without a log
    if len(info) < 14:
        return samples
    full = bool(info[13] & OVERFLOW_BIT)
    if full and not cursor.full:
        words = "SEL: the log is full and takes no new entries"
        samples.append(
            event(node, "sel", "log_full", now_ns, text=words, severity=WARNING, device="SEL")
        )
    cursor.full = full
    waiting = cursor.following not in (FIRST, LAST)
    if info == cursor.info and not waiting:
        return samples
    entries = int.from_bytes(info[1:3], "little")
    if entries == 0:
        if cursor.last_record:
            samples.append(_cleared(node, now_ns))
        cursor.last_id, cursor.last_record, cursor.following = 0, b"", FIRST
        cursor.info, cursor.started = info, True
        return samples
    number = (
        cursor.following if waiting else await _begin(lan, cursor, backlog, node, samples, now_ns)
    )
    if not waiting:
        cursor.visited.clear()
    left = limit
    known: Mapping[tuple[int, int], SensorRecord] = {}
    while number != LAST and left > 0:
        left -= 1
        cursor.asked = number
        answer = await _entry(lan, number)
        if answer is None:
            number = LAST  # removed meanwhile by somebody else
            break
        following, record = answer
        if (
            following == number
            or number in cursor.visited
            or (record_id(record) == cursor.last_id and record == cursor.last_record)
        ):
            number = LAST
            break
        cursor.visited.add(number)
        known = known or sensors()
        samples.append(to_sample(entry_of(record, node, known), now_ns))
        cursor.last_id, cursor.last_record = record_id(record), record
        number = following
        # Kept at every entry: a BMC that falls silent now is read on from here.
        cursor.following, cursor.started = following, True
    cursor.following, cursor.asked = FIRST if number == LAST else number, 0
    if number == LAST:
        cursor.info = info
    cursor.started = True
    return samples


async def _begin(
    lan: Lan, cursor: Cursor, backlog: int, node: str, samples: list[Sample], now_ns: int
) -> int:
    """The id of the first entry that is new, or LAST when none is."""
    if cursor.last_record:
        answer = await _entry(lan, cursor.last_id)
        if answer is not None and answer[1] == cursor.last_record:
            return answer[0]
        samples.append(_cleared(node, now_ns))
        cursor.last_id, cursor.last_record = 0, b""
        return FIRST
    if not cursor.started:
        answer = await _entry(lan, LAST)
        if answer is not None:
            start = record_id(answer[1]) - backlog + 1
            if start > 1 and await _entry(lan, start) is not None:
                return start
    return FIRST


async def _entry(lan: Lan, number: int) -> tuple[int, bytes] | None:
    """The id of the following entry and the record ``number``; None where it is not there."""
    request = b"\0\0" + number.to_bytes(2, "little") + b"\x00\xff"
    try:
        answer = await lan.call(STORAGE, GET_ENTRY, request)
    except Refused:
        return None
    if len(answer) < 2 + RECORD_BYTES:
        return None
    return int.from_bytes(answer[:2], "little"), answer[2 : 2 + RECORD_BYTES]


def _cleared(node: str, now_ns: int) -> Sample:
    words = "SEL: somebody cleared the log; it is read from its beginning"
    return event(node, "sel", "log_cleared", now_ns, text=words, severity=WARNING, device="SEL")
