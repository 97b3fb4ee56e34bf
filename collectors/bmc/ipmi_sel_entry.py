"""One entry of a System Event Log as an ``event`` point of kind ``sel``.

Every reader of SELs (ipmitool's text, FreeIPMI's, our own client, Redfish) ends here, so that
one entry looks the same whoever read it. The record id stands first in the text.
"""

from __future__ import annotations

import calendar
import functools
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from collectors.bmc.ipmi_words import Meaning, meaning
from collectors.events import event
from collectors.sample import Sample

NS = 1_000_000_000
# A BMC that lost its clock counts from 1970 or 2000; times before this are no times.
EARLIEST_NS = 1_104_537_600 * NS  # 2005-01-01
# How far ahead of ours a BMC's clock may run.
AHEAD_NS = 86_400 * NS
# Stands in the text of an entry that got our time for want of its own: it may be years old.
TIME_UNKNOWN = "when is not known"

_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}


@dataclass(frozen=True, slots=True)
class Entry:
    """One SEL entry. ``time_ns`` is None where the BMC gave no time that can be.

    ``asserted`` is False when the state went away. ``clock`` is what the BMC said of the time
    where that is no time (``Pre-Init 0000005832``).
    """

    node: str
    record_id: int | None
    sensor_type: str
    sensor: str
    event: str
    asserted: bool | None = True
    detail: str = ""
    time_ns: int | None = None
    clock: str = ""
    meaning: Meaning | None = None


def to_sample(entry: Entry, now_ns: int) -> Sample:
    """The entry as an ``event``; an impossible time becomes ``now_ns`` and is told in the text."""
    found = entry.meaning or meaning(entry.sensor_type, entry.event, entry.asserted is not False)
    time_ns, clock = sane_time(entry.time_ns, now_ns)
    clock = clock or entry.clock
    head = "SEL" if entry.record_id is None else f"SEL 0x{entry.record_id:x}"
    where = " ".join(part for part in (entry.sensor_type, entry.sensor) if part)
    parts = [f"{head}: {where}: {entry.event}" if where else f"{head}: {entry.event}"]
    if entry.asserted is False:
        parts.append("deasserted")
    unknown = TIME_UNKNOWN if clock or entry.time_ns is None else ""
    parts.extend(part for part in (entry.detail, clock, unknown) if part)
    return event(
        entry.node,
        "sel",
        found.code,
        time_ns,
        text="; ".join(parts),
        severity=found.severity,
        device=entry.sensor or entry.sensor_type,
    )


def sane_time(time_ns: int | None, now_ns: int) -> tuple[int, str]:
    """``time_ns`` where it can be, else ``now_ns`` and what the BMC's clock says instead."""
    if time_ns is None:
        return now_ns, ""
    if EARLIEST_NS <= time_ns <= now_ns + AHEAD_NS:
        return time_ns, ""
    try:
        said = f"{datetime.fromtimestamp(time_ns // NS, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, OSError, ValueError):
        said = str(time_ns // NS)
    return now_ns, f"BMC clock says {said}"


_SLASHED = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{2}|\d{4})\Z")
_DASHED = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})\Z")
_NAMED = re.compile(r"([A-Za-z]{3})-(\d{1,2})-(\d{4})\Z")
_CLOCK = re.compile(
    r"(\d{1,2}):(\d{2}):(\d{2})(?:\.\d+)?\s*(AM|PM)?\s*(UTC|GMT|Z|[A-Z]{2,5}|[+-]\d{2}:?\d{2})?\Z"
)


def time_of(date: str, clock: str) -> int | None:
    """Nanoseconds UTC of what a tool printed, or None.

    ipmitool prints month/day/year, FreeIPMI Mon-dd-yyyy. Both print UTC or the zone of the
    machine they ran on; our own runs set TZ=UTC, and a zone by name other than UTC cannot be
    resolved and counts as UTC.

    >>> time_of("11/30/26", "01:16:43 UTC") // 10**9
    1796001403
    """
    day = _day(date.strip())
    hit = _CLOCK.match(clock.strip())
    if day is None or hit is None:
        return None
    hour, minute, second = int(hit[1]), int(hit[2]), int(hit[3])
    if hit[4]:
        hour = hour % 12 + (12 if hit[4] == "PM" else 0)
    try:
        moment = datetime(day[0], day[1], day[2], hour, minute, min(second, 59), tzinfo=UTC)
    except ValueError:
        return None
    zone = hit[5] or ""
    if zone[:1] in "+-" and zone:
        sign = 1 if zone[0] == "+" else -1
        moment -= sign * timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
    return int(moment.timestamp()) * NS


def _day(text: str) -> tuple[int, int, int] | None:
    hit = _SLASHED.match(text)
    if hit:
        year = int(hit[3])
        return (year if year >= 100 else 2000 + year), int(hit[1]), int(hit[2])
    hit = _DASHED.match(text)
    if hit:
        return int(hit[1]), int(hit[2]), int(hit[3])
    hit = _NAMED.match(text)
    if hit and hit[1].lower() in _MONTHS:
        return int(hit[3]), _MONTHS[hit[1].lower()], int(hit[2])
    return None


@functools.lru_cache(maxsize=1_024)
def iso_time(text: str) -> int | None:
    """Nanoseconds UTC of an ISO 8601 time with zone (without one: UTC), or None."""
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        return int(moment.timestamp() * 1_000_000) * 1_000
    except (OverflowError, ValueError):
        return None
