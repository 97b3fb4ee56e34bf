"""The many ways in which logs write a time, read into nanoseconds.

A date without a zone is local time, as syslog and ``dmesg -T`` write it. Syslog also leaves
out the year: the one is taken that puts the line nearest to now without lying in the future.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# With the time since the line before: "12.5 <    0.000012>" of dmesg -d, "... <    0.000012 >" of
# journalctl -o short-delta, with an asterisk where the clock was set.
_UPTIME = re.compile(r"\s*(\d{1,12})\.(\d{1,9})(?:\s*<[\s\d.*]{1,30}>)?\s*")
_DELTA = re.compile(r"\s*\+(\d{1,9})\.(\d{1,9})\s*")
_DELTA_ONLY = re.compile(r"<[\s\d.*]{1,30}>")
# [Sun Feb 23 16:24:18 2025], as dmesg -T and ctime(3) write it
_CTIME = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2})\s+(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})")
# [Nov30 02:41], the first of each minute in dmesg -e
_RELTIME = re.compile(r"([A-Z][a-z]{2})\s?(\d{1,2}) (\d\d):(\d\d)")
_ISO = re.compile(
    r"(?:[A-Z][a-z]{2} )?(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r"\s?(Z|UTC|GMT|[+-]\d\d:?\d\d)?(?:\s+|$)"
)
_SYSLOG = re.compile(
    r"([A-Z][a-z]{2})\s{1,2}(\d{1,2}) (?:(\d{4}) )?(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r"(?: (\d{4}))?\s+"
)
_UNIX = re.compile(r"(\d{9,11})\.(\d{6}) ")


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a line was written: UTC, or since boot, or both, or unknown."""

    time_ns: int | None = None
    uptime_ns: int | None = None

    def joined(self, other: Stamp | None) -> Stamp:
        """This stamp, with what it lacks taken from ``other``."""
        if other is None:
            return self
        return Stamp(
            other.time_ns if self.time_ns is None else self.time_ns,
            other.uptime_ns if self.uptime_ns is None else self.uptime_ns,
        )


def relative(inside: str, now_ns: int, before_ns: int | None) -> Stamp | None:
    """What stands in brackets before a message, None if it is no time.

    >>> relative(" 1200.000001", 0, None)
    Stamp(time_ns=None, uptime_ns=1200000001000)
    """
    found = _UPTIME.fullmatch(inside)
    if found:
        return Stamp(None, int(found[1]) * SECOND_NS + _fraction(found[2]))
    found = _DELTA.fullmatch(inside)
    if found:
        step = int(found[1]) * SECOND_NS + _fraction(found[2])
        return Stamp(None if before_ns is None else before_ns + step)
    if _DELTA_ONLY.fullmatch(inside.strip()):
        return Stamp()
    found = _CTIME.fullmatch(inside)
    if found:
        month, day, hour, minute, second, year = found.groups()
        return Stamp(_local(int(year), month, int(day), int(hour), int(minute), int(second)))
    found = _RELTIME.fullmatch(inside)
    if found:
        month, day, hour, minute = found.groups()
        return Stamp(_yearless(now_ns, month, int(day), int(hour), int(minute), 0))
    return None


def dated(line: str, now_ns: int) -> tuple[Stamp, int]:
    """(the date at the front of ``line``, how many characters it takes); 0 if none is there."""
    found = _ISO.match(line)
    if found:
        return Stamp(_iso(found)), found.end()
    found = _SYSLOG.match(line)
    if found and found[1].lower() in _MONTHS:
        month, day, hour, minute, second = found[1], *(int(found[n]) for n in (2, 4, 5, 6))
        year = found[3] or found[8]
        time_ns = (
            _local(int(year), month, day, hour, minute, second)
            if year
            else _yearless(now_ns, month, day, hour, minute, second)
        )
        if time_ns is not None:
            time_ns += _fraction(found[7] or "0")
        return Stamp(time_ns), found.end()
    found = _UNIX.match(line)
    if found:
        return Stamp(int(found[1]) * SECOND_NS + int(found[2]) * 1000), found.end()
    return Stamp(), 0


def _iso(found: re.Match[str]) -> int | None:
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    zone = found[8]
    try:
        if zone is None:
            time_ns = _local(year, _MONTHS[month - 1], day, hour, minute, second)
        else:
            offset = timedelta()
            if zone[0] in "+-":
                digits = zone[1:].replace(":", "")
                offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
                offset = -offset if zone[0] == "-" else offset
            at = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=timezone(offset))
            time_ns = int(at.timestamp()) * SECOND_NS
    except (ValueError, OverflowError, IndexError):
        return None
    return None if time_ns is None else time_ns + _fraction(found[7] or "0")


def _fraction(digits: str) -> int:
    return int(digits.ljust(9, "0")[:9])


def _local(year: int, month: str, day: int, hour: int, minute: int, second: int) -> int | None:
    if month.lower() not in _MONTHS:
        return None
    number = _MONTHS.index(month.lower()) + 1
    try:
        datetime(year, number, day, hour, minute, min(second, 59), tzinfo=UTC)
        at = time.mktime((year, number, day, hour, minute, second, 0, 0, -1))
    except (ValueError, OverflowError):
        return None
    return int(at) * SECOND_NS if at > 0 else None


def _yearless(now_ns: int, month: str, day: int, hour: int, minute: int, second: int) -> int | None:
    this_year = time.localtime(now_ns // SECOND_NS).tm_year
    for year in (this_year + 1, this_year, this_year - 1, this_year - 2, this_year - 3):
        at = _local(year, month, day, hour, minute, second)
        if at is not None and at <= now_ns + DAY_NS:
            return at
    return None
