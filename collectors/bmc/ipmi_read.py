"""Reads one BMC over an open session: sensors, chassis, power, new SEL entries.

What a BMC cannot do is remembered and not asked again. What was read before a BMC fell silent
is kept, and the next round begins with the sensor at which this one ended. Where it falls silent at
the same question once more, that question is left out: it would hide all that comes after it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from collectors.bmc.ipmi_discrete import Discrete
from collectors.bmc.ipmi_discrete import add as add_discrete
from collectors.bmc.ipmi_lan import STORAGE, BmcError, Lan, Refused
from collectors.bmc.ipmi_power import DCMI_SENSOR
from collectors.bmc.ipmi_records import (
    CRITICAL_BITS,
    SCANNING_BIT,
    THRESHOLD_TYPE,
    UNAVAILABLE_BIT,
    SensorRecord,
    sensors_of,
)
from collectors.bmc.ipmi_tables import event_words, type_words
from collectors.bmc.points import Reading, Readings

SENSOR_EVENT, CHASSIS, GROUP = 0x04, 0x00, 0x2C
GET_READING, GET_CHASSIS, GET_POWER = 0x2D, 0x01, 0x02
GET_REPOSITORY, RESERVE, GET_RECORD = 0x20, 0x22, 0x23

RECORDS_LIMIT = 2_000
WHOLE = 0xFF
CHUNKS_BYTES = (48, 32, 22, 16, 8)
FIRST, LAST = 0x0000, 0xFFFF
NOT_THERE = frozenset({0xC1, 0xCB, 0xCD, 0xD5})
CANCELLED = 0xC5
# A list of sensors that could not be read to its end is read anew after so many rounds, and what
# a BMC could not do is tried again.
RETRY_ROUNDS = 100
TOO_LONG = frozenset({0xCA, 0xC7, 0xC8, 0xC9, 0xFF})


@dataclass
class Knowledge:
    """What is known of one BMC between rounds. ``stamp`` names the state of its repository."""

    sensors: tuple[SensorRecord, ...] = ()
    stamp: bytes = b""
    first: int = 0  # the sensor that the next round begins with
    no_power: bool = False
    no_chassis: bool = False
    gone: set[int] = field(default_factory=set)  # sensors that the BMC says it has not
    chunk_bytes: int = 0xFF  # how much of a record it gives at a time
    learning: bytes = b""  # the repository that is being read, what came of it, and the next id
    learned: list[SensorRecord] = field(default_factory=list)
    following: int = 0
    visited: set[int] = field(default_factory=set)  # ids that were read of it
    stuck: tuple[str, int] = ("", 0)  # the question at which the last round broke off
    cut: str = ""  # why the list of sensors is not whole, and for how many rounds that stands
    cut_rounds: int = 0
    rounds: int = 0  # how often all sensors were read

    def again_at(self, what: str, number: int = 0) -> bool:
        """Takes in at which question this round breaks off; whether the last one did there, too."""
        before, self.stuck = self.stuck, (what, number)
        return before == self.stuck


async def learn(lan: Lan, known: Knowledge) -> None:
    """Reads the sensor data records where they are new or have changed."""
    try:
        info = await lan.call(STORAGE, GET_REPOSITORY)
    except Refused:
        return  # a BMC without a repository: chassis, power and log are read all the same
    stamp = info[1:3] + info[5:13]  # count, last addition, last erase
    known.cut_rounds = max(0, known.cut_rounds - 1)
    if stamp == known.stamp and known.sensors and not (known.cut and known.cut_rounds == 0):
        return
    if stamp != known.learning:
        known.learning, known.learned, known.following = stamp, [], FIRST
        known.visited.clear()
    try:
        await _walk(lan, known)
    except BmcError as error:
        if not known.again_at("record", known.following) or not known.learned:
            raise
        # What there is must do, for a while.
        _learnt(known, stamp)
        known.cut = f"its list of sensors is read up to record {known.following}: {error}"
        known.following, known.cut_rounds = FIRST, RETRY_ROUNDS
        if not isinstance(error, Refused):
            raise
        return
    _learnt(known, stamp)
    known.following, known.cut = FIRST, ""


def _learnt(known: Knowledge, stamp: bytes) -> None:
    known.sensors, known.stamp, known.first = tuple(known.learned), stamp, 0
    known.learning, known.learned = b"", []
    known.visited.clear()
    known.gone.clear()


async def _walk(lan: Lan, known: Knowledge) -> None:
    """Reads the records from where the last round ended."""
    reservation = await _reserve(lan)
    while known.following != LAST and len(known.visited) < RECORDS_LIMIT:
        for attempt in range(3):
            try:
                following, record = await _record(lan, known, reservation, known.following)
                break
            except Refused as error:
                if error.code != CANCELLED or attempt == 2:
                    raise
                reservation = await _reserve(lan)
        # Kept at every record: a slow BMC is read on from here in the next round.
        known.learned.extend(sensors_of(record))
        known.visited.add(known.following)
        # A link back to what was read is the end: the same sensors would come again as others.
        known.following = LAST if following in known.visited else following


async def _reserve(lan: Lan) -> bytes:
    try:
        return (await lan.call(STORAGE, RESERVE))[:2]
    except Refused:
        return b"\0\0"  # a BMC without reservations reads whole records only


async def _record(lan: Lan, known: Knowledge, reservation: bytes, number: int) -> tuple[int, bytes]:
    """One record, and the number of the next.

    Some BMCs give a record as a whole, others only so many bytes at a time; what a BMC can do is
    found once and kept.
    """
    head = reservation + number.to_bytes(2, "little")
    if known.chunk_bytes == WHOLE:
        try:
            answer = await lan.call(STORAGE, GET_RECORD, head + bytes([0, WHOLE]))
            if len(answer) >= 7:
                return int.from_bytes(answer[:2], "little"), answer[2:]
        except Refused as error:
            if error.code not in TOO_LONG:
                raise
        known.chunk_bytes = CHUNKS_BYTES[0]
    answer = await lan.call(STORAGE, GET_RECORD, head + b"\x00\x05")
    following, record = int.from_bytes(answer[:2], "little"), answer[2:7]
    size = record[4] + 5 if len(record) == 5 else 0
    while len(record) < size:
        want = min(known.chunk_bytes, size - len(record))
        try:
            answer = await lan.call(STORAGE, GET_RECORD, head + bytes([len(record), want]))
        except Refused as error:
            smaller = [one for one in CHUNKS_BYTES if one < want]
            if error.code not in TOO_LONG or not smaller:
                raise
            known.chunk_bytes = smaller[0]
            continue
        if len(answer) <= 2:
            break
        record += answer[2:]
    return following, record


async def sensors(lan: Lan, known: Knowledge, node: str, found: Readings) -> None:
    """Reads every sensor once, beginning where the last round ended."""
    if known.cut:
        found.problem(known.cut, node)
    held: list[Discrete] = []
    count = len(known.sensors)
    turns = ((known.first + step) % count for step in range(count))
    places = [place for place in turns if known.sensors[place].number not in known.gone]
    requests = [known.sensors[place].request for place in places]
    reached = 0

    def take(turn: int, code: int, answer: bytes) -> None:
        nonlocal reached
        reached = turn + 1
        one = known.sensors[places[turn]]
        if code == 0:
            _take(one, answer, node, found, held)
        elif code in (0xC1, 0xCB):
            known.gone.add(one.number)
        elif code not in NOT_THERE:
            found.problem(str(Refused(code)), one.name)

    try:
        await lan.ask(requests, take)
        known.first = 0
        known.stuck = ("", 0)
        known.rounds += 1
        if known.rounds % RETRY_ROUNDS == 0:  # firmware is updated, and parts are put in
            known.no_power = known.no_chassis = False
            known.gone.clear()
    except (BmcError, asyncio.CancelledError) as error:
        known.first = places[reached % len(places)] if places else 0
        one = known.sensors[known.first]
        if isinstance(error, BmcError) and known.again_at("sensor", one.number):
            known.gone.add(one.number)
            found.problem(f"{one.name} is asked no more: {error}", one.name)
        raise
    finally:
        add_discrete(found, held)


def _take(
    one: SensorRecord, answer: bytes, node: str, found: Readings, held: list[Discrete]
) -> None:
    if len(answer) < 2:
        found.problem("a sensor's answer that is not whole", one.name)
        return
    off = bool(answer[1] & UNAVAILABLE_BIT) or not answer[1] & SCANNING_BIT
    if one.event_type != THRESHOLD_TYPE:
        held.append(_discrete(one, answer, node, off))
        known = None if off or one.unit is None else one.reading(answer[0])
        if known is not None:  # a supply that measures, and has states beside the number
            found.add(Reading(node, one.name, known[0], known[1], None, True, one.entity))
        return
    if off:
        found.add(Reading(node, one.name, one.kind, present=False, part=one.entity))
        return
    if one.unit is None:
        return
    known = one.reading(answer[0])
    if known is None:
        found.problem("a reading that cannot be converted", one.name)
        return
    critical = bool(answer[2] & CRITICAL_BITS) if len(answer) > 2 else None
    found.add(Reading(node, one.name, known[0], known[1], critical, True, one.entity))


def _discrete(one: SensorRecord, answer: bytes, node: str, off: bool) -> Discrete:
    kind = type_words(one.sensor_type)
    if off:
        return Discrete(node, one.name, "na", one.entity, kind)
    bits = int.from_bytes(answer[2:4], "little") & 0x7FFF
    states = [
        event_words(one.sensor_type, one.event_type, offset)
        for offset in range(15)
        if bits >> offset & 1
    ]
    return Discrete(node, one.name, ", ".join(states), one.entity, kind)


async def chassis(lan: Lan, known: Knowledge, node: str, found: Readings) -> None:
    """Power state and faults of the chassis (Get Chassis Status, section 28.2)."""
    if known.no_chassis:
        return
    try:
        answer = await lan.call(CHASSIS, GET_CHASSIS)
    except Refused:
        known.no_chassis = True
        return
    except BmcError:
        known.no_chassis = known.again_at("chassis")
        raise
    if len(answer) < 3:
        found.problem("a chassis status that is not whole", node)
        return
    power, misc = answer[0], answer[2]
    found.add(Reading(node, "System Power", "state", None, False, bool(power & 0x01)))
    for name, fault in (
        ("Power Overload", power & 0x02),
        ("Main Power Fault", power & 0x08),
        ("Power Control Fault", power & 0x10),
        ("Drive Fault", misc & 0x04),
        ("Cooling/Fan Fault", misc & 0x08),
    ):
        found.add(Reading(node, name, "state", None, bool(fault), True))


async def power(lan: Lan, known: Knowledge, node: str, found: Readings) -> None:
    """The system's power as DCMI measures it (DCMI 1.5, section 6.6.1)."""
    if known.no_power:
        return
    try:
        answer = await lan.call(GROUP, GET_POWER, b"\xdc\x01\x00\x00")
    except Refused as error:
        if error.code in (0xC1, 0xC9, 0xCB, 0xCC, 0xD4):
            known.no_power = True
        return
    except BmcError:
        known.no_power = known.again_at("power")
        raise
    if len(answer) < 18 or answer[0] != 0xDC:
        found.problem("a DCMI power reading that is not whole", node)
        return
    if not answer[17] & 0x40:
        found.add(Reading(node, DCMI_SENSOR, "watts", present=False))
        return
    found.add(Reading(node, DCMI_SENSOR, "watts", float(int.from_bytes(answer[1:3], "little"))))
