"""Sensor data records and SEL records, from bytes (IPMI 2.0, chapters 32, 36 and 43)."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from collectors.bmc.ipmi_sel_entry import NS, Entry
from collectors.bmc.ipmi_tables import UNIT, event_words, type_words
from collectors.bmc.ipmi_words import Meaning
from collectors.bmc.points import guess_kind, normal
from collectors.events import INFO

FULL, COMPACT = 0x01, 0x02
THRESHOLD_TYPE = 0x01
BMC_OWNER = 0x20

# Bits of the threshold comparison in a sensor's reading: at or past a critical limit.
CRITICAL_BITS = 0b11_0110
# A reading that "cannot be had now" or belongs to a sensor that is not scanned.
UNAVAILABLE_BIT, SCANNING_BIT = 0x20, 0x40

_LINEAR: Mapping[int, Callable[[float], float]] = {
    0: lambda x: x,
    1: math.log,
    2: math.log10,
    3: math.log2,
    4: math.exp,
    5: lambda x: 10.0**x,
    6: lambda x: 2.0**x,
    7: lambda x: 1.0 / x,
    8: lambda x: x * x,
    9: lambda x: x**3,
    10: math.sqrt,
    11: lambda x: math.copysign(abs(x) ** (1 / 3), x),
}

# Types of discrete sensors that say something of a node's health.
DISCRETE_TYPES = frozenset(
    {0x01, 0x04, 0x05, 0x07, 0x08, 0x09, 0x0A, 0x0C, 0x0D, 0x13, 0x19, 0x1B, 0x20, 0x21, 0x28, 0x29}
)

# Of these some vendors' discrete sensors have a number as well: fans, supplies, cooling devices.
MEASURING_TYPES = frozenset({0x04, 0x08, 0x09, 0x0A})


@dataclass(frozen=True, slots=True)
class SensorRecord:
    """One sensor of a BMC: how to ask for it and how to read the answer.

    ``factors`` is (M, B * 10^Bexp, 10^Rexp) of section 36.3; ``unit`` is None for a sensor
    without a number or with one that we do not keep.
    """

    name: str
    number: int
    lun: int
    sensor_type: int
    event_type: int
    entity: str
    unit: str | None = None
    analog_format: int = 3
    linearization: int = 0
    factors: tuple[float, float, float] = (1.0, 0.0, 1.0)
    _read: dict[int, tuple[str, float] | None] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def kind(self) -> str:
        """The kind that its readings have."""
        return _kind(self.name, self.unit, self.event_type)

    @property
    def request(self) -> tuple[int, int, bytes, int]:
        """Network function, command, data and LUN of Get Sensor Reading (35.14)."""
        return 0x04, 0x2D, _ONE_BYTE[self.number], self.lun

    def reading(self, raw: int) -> tuple[str, float] | None:
        """Kind and value of a raw reading, as :func:`points.normal` gives them; worked out once."""
        try:
            return self._read[raw]
        except KeyError:
            value = self.value(raw)
            known = None if value is None or self.unit is None else normal(value, self.unit)
            self._read[raw] = known
            return known

    def value(self, raw: int) -> float | None:
        """The reading in the sensor's unit, or None where the conversion has no result."""
        if self.unit is None or self.analog_format == 3:
            return None
        x = raw
        if self.analog_format == 1 and raw & 0x80:
            x = -(~raw & 0xFF)
        elif self.analog_format == 2 and raw & 0x80:
            x = raw - 256
        m, b, scale = self.factors
        convert = _LINEAR.get(self.linearization)
        if convert is None:
            return None
        try:
            result = convert((m * x + b) * scale)
        except (ValueError, OverflowError, ZeroDivisionError):
            return None
        return round(result, 6) if math.isfinite(result) else None


_ONE_BYTE = tuple(bytes([number]) for number in range(256))


@functools.lru_cache(maxsize=16_384)
def _kind(name: str, unit: str | None, event_type: int) -> str:
    known = normal(0.0, unit) if unit else None
    if known:
        return known[0]
    return guess_kind(name) if event_type == THRESHOLD_TYPE else "state"


@functools.lru_cache(maxsize=16_384)
def sensors_of(record: bytes) -> tuple[SensorRecord, ...]:
    """The sensors that one record of the repository describes; none for other records.

    Servers of one kind have the same records, so thousands of BMCs share what is kept of them.
    """
    if len(record) < 6 or record[4] + 5 > len(record):
        return ()
    kind = record[3]
    if kind == FULL and len(record) >= 48:
        found = _full(record)
        return (found,) if found else ()
    if kind == COMPACT and len(record) >= 32:
        return tuple(_compact(record))
    return ()


def _common(record: bytes, name: str) -> SensorRecord | None:
    if record[5] != BMC_OWNER or not name:
        return None  # owned by another controller, behind the BMC
    sensor_type, event_type = record[12], record[13] & 0x7F
    if event_type != THRESHOLD_TYPE and sensor_type not in DISCRETE_TYPES:
        return None
    entity = f"{record[8]}.{record[9] & 0x7F}"
    return SensorRecord(name, record[7], record[6] & 0x03, sensor_type, event_type, entity)


def _full(record: bytes) -> SensorRecord | None:
    base = _common(record, _name(record, 47))
    if base is None:
        return None
    if base.event_type != THRESHOLD_TYPE and base.sensor_type not in MEASURING_TYPES:
        return base
    units, base_unit = record[20], record[21]
    unit = "percent" if units & 0x01 else UNIT.get(base_unit)
    if units & 0b0011_1110:
        unit = None  # a rate or a compound unit
    m = _signed(record[24] | (record[25] & 0xC0) << 2, 10)
    b = _signed(record[26] | (record[27] & 0xC0) << 2, 10)
    result_exponent = _signed(record[29] >> 4, 4)
    b_exponent = _signed(record[29] & 0x0F, 4)
    return SensorRecord(
        base.name,
        base.number,
        base.lun,
        base.sensor_type,
        base.event_type,
        base.entity,
        unit,
        units >> 6,
        record[23] & 0x7F,
        (float(m), b * 10.0**b_exponent, 10.0**result_exponent),
    )


def _compact(record: bytes) -> list[SensorRecord]:
    base = _common(record, _name(record, 31))
    if base is None:
        return []
    count = max(1, record[23] & 0x0F)
    if count == 1:
        return [base]
    alpha = (record[23] >> 4) & 0x03 == 1
    offset = record[24] & 0x7F
    shared = []
    for place in range(count):
        suffix = chr(ord("A") + (offset + place) % 26) if alpha else str(offset + place)
        shared.append(
            SensorRecord(
                base.name + suffix,
                (base.number + place) & 0xFF,
                base.lun,
                base.sensor_type,
                base.event_type,
                base.entity,
            )
        )
    return shared


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _name(record: bytes, place: int) -> str:
    """The ID string whose type and length stand at ``place`` (section 43.15)."""
    if place >= len(record):
        return ""
    size = record[place] & 0x1F
    raw = record[place + 1 : place + 1 + size]
    if record[place] >> 6 == 2:  # 6-bit ASCII, packed
        bits = int.from_bytes(raw, "little")
        text = "".join(chr(0x20 + (bits >> 6 * i & 0x3F)) for i in range(len(raw) * 8 // 6))
    else:
        text = raw.decode("latin-1")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


# ---- SEL -----------------------------------------------------------------------------------------

UNSPECIFIED = 0xFFFFFFFF
PRE_INIT_LIMIT = 0x20000000  # up to here a time counts seconds since the BMC started (37.1)


def record_id(record: bytes) -> int:
    """The id of a SEL record."""
    return int.from_bytes(record[:2], "little")


def entry_of(record: bytes, node: str, sensors: Mapping[tuple[int, int], SensorRecord]) -> Entry:
    """A SEL record of 16 bytes as an Entry. ``sensors`` is by sensor number and owner."""
    number, kind = record_id(record), record[2]
    time_ns, clock = _time(record) if kind < 0xE0 else (None, "")
    if kind != 0x02:
        data = record[3:] if kind >= 0xE0 else record[10:]
        vendor = "" if kind >= 0xE0 else f" {record[9]:02x}{record[8]:02x}{record[7]:02x}"
        words = f"OEM record {kind:02x}{vendor} {data.hex()}"
        return Entry(node, number, "", "", words, None, "", time_ns, clock, Meaning("oem", INFO))
    owner, sensor_type, sensor_number = record[7], record[10], record[11]
    event_type, asserted = record[12] & 0x7F, not record[12] & 0x80
    offset = record[13] & 0x0F
    known = sensors.get((sensor_number, owner))
    detail = ""
    if event_type == THRESHOLD_TYPE and known is not None and record[13] >> 4 == 0b0101:
        reading, threshold = known.value(record[14]), known.value(record[15])
        if reading is not None and threshold is not None:
            detail = f"reading {reading:g}, threshold {threshold:g} {known.unit}"
    elif event_type != THRESHOLD_TYPE and record[14:16] != b"\xff\xff":
        detail = f"data {record[14:16].hex()}"
    name = known.name if known else f"#0x{sensor_number:02x}"
    words = event_words(sensor_type, event_type, offset)
    return Entry(
        node, number, type_words(sensor_type), name, words, asserted, detail, time_ns, clock
    )


def _time(record: bytes) -> tuple[int | None, str]:
    seconds = struct.unpack_from("<I", record, 3)[0]
    if seconds == UNSPECIFIED:
        return None, ""
    if seconds < PRE_INIT_LIMIT:
        return None, f"before the BMC knew the time: {seconds} s after its start"
    return seconds * NS, ""
