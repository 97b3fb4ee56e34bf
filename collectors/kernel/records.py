"""The forms in which a kernel message reaches us, read into one: :class:`Record`.

/dev/kmsg records, journald's JSON, and lines of dmesg, journalctl and syslog, with or without
stamps. A record also says whether the kernel itself wrote it: programs copy kernel lines into
their own logs, and root can write into /dev/kmsg, and neither makes a GPU sick.

Formats: Linux ``Documentation/ABI/testing/dev-kmsg``, ``systemd.journal-fields(7)``, ``dmesg(1)``,
RFC 3164 and RFC 5424.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from collectors.kernel.stamps import Stamp, dated, relative

# printk cuts at 1 KiB (2 KiB in fact, with escapes up to 8); whatever is longer is no line.
LINE_LIMIT = 64 * 1024

_KMSG = re.compile(
    r"(?P<prefix>\d{1,6}),(?P<sequence>\d{1,19}),(?P<us>\d{1,18}),[^;\n]*;(?P<text>.*)", re.S
)
_KMSG_ESCAPE = re.compile(r"((?:\\x[0-9a-fA-F]{2})+)")
_PRI = re.compile(r"<(\d{1,6})>")
_RFC5424 = re.compile(
    r"1 (?P<time>\S+) (?P<host>\S+) (?P<app>\S+) \S+ \S+ "
    r"(?:-|(?:\[(?:\\.|[^\]\\])*\])+)(?: (?P<text>.*))?",
    re.S,
)
_DECODED = re.compile(
    r"(?P<facility>kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local[0-7])"
    r" *:(?P<level>emerg|alert|crit|err|warn|notice|info|debug) *: (?P<text>.*)",
    re.S,
)
_BRACKET = re.compile(r"\[([^\]\[]{1,40})\]\s?")
_CALLER = re.compile(r"\s*[TC]\d+\s*")
_KERNEL_TAG = re.compile(r"(?:(?P<host>[^\s\[:]\S{0,254}) )?kernel(?:\[\d+\])?:(?:\s|$)")
# Some syslog daemons take the driver's own prefix for the program's name.
_DRIVER_TAG = re.compile(r"(?P<host>[^\s\[:]{1,255}) (?=(?:NVRM|nvidia-nvswitch\d+): )")
_OTHER_TAG = re.compile(r"(?P<host>\S{1,255}) [^\s:\[\]]{1,128}(?:\[\d+\])?:\s")
# Words with which the kernel's own messages begin; after a date, such a line has no host.
_KERNEL_WORDS = re.compile(
    r"(?:NVRM:|nvidia|mlx5_core|pcieport|EDAC |mce:|INFO: |EXT4-fs|XFS |nvme )"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_PROPERTY = re.compile(r" [A-Z_0-9]+=")


@dataclass(frozen=True, slots=True)
class Record:
    """One kernel message. ``time_ns`` is UTC, ``uptime_ns`` counts from boot; either may be
    unknown. ``kernel`` is False for what only passed through a kernel log. ``host`` is the machine
    that the line names, empty where it names none."""

    text: str
    kernel: bool = True
    time_ns: int | None = None
    uptime_ns: int | None = None
    sequence: int | None = None
    boot_id: str = ""
    cursor: str = ""
    host: str = ""


def kmsg_record(text: str) -> Record | None:
    """One record of /dev/kmsg: ``4,1895,1843308171,-;NVRM: Xid ...``, None if it is none.

    The number before the first comma is priority and facility; a facility other than 0 means
    that a program wrote the line into /dev/kmsg. Lines after the first are its properties.
    """
    found = _KMSG.match(text)
    if found is None:
        return None
    message = found["text"].split("\n", 1)[0]
    return Record(
        _KMSG_ESCAPE.sub(_unescape, message).rstrip(),
        kernel=int(found["prefix"]) >> 3 == 0,
        uptime_ns=int(found["us"]) * 1000,
        sequence=int(found["sequence"]),
    )


def _unescape(found: re.Match[str]) -> str:
    return bytes.fromhex(found[1].replace("\\x", "")).decode("utf-8", "replace")


def journal_record(line: str | bytes) -> Record | None:
    """One line of ``journalctl -o json``, None if it is no journal entry.

    MESSAGE is text, or a list of byte values where it is not UTF-8, or null where journalctl
    left it out for its size.
    """
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return journal_entry(entry) if isinstance(entry, dict) else None


def journal_entry(entry: Mapping[str, Any]) -> Record | None:
    """The fields of one entry as a Record, None if it says nothing."""
    if "MESSAGE" not in entry:
        return None
    stamp = _integer(entry.get("__REALTIME_TIMESTAMP"))
    monotonic = _integer(entry.get("_SOURCE_MONOTONIC_TIMESTAMP"))
    facility = _first(entry.get("SYSLOG_FACILITY"))
    transport = _first(entry.get("_TRANSPORT"))
    return Record(
        _message(entry["MESSAGE"]),
        kernel=transport == "kernel" and facility in ("", "0"),
        time_ns=None if stamp is None else stamp * 1000,
        uptime_ns=None if monotonic is None else monotonic * 1000,
        boot_id=_first(entry.get("_BOOT_ID")),
        cursor=_first(entry.get("__CURSOR")),
        host=_first(entry.get("_HOSTNAME")),
    )


def _message(value: Any) -> str:
    if isinstance(value, list):
        if value and all(isinstance(one, int) for one in value):
            try:
                return bytes(value[:LINE_LIMIT]).decode("utf-8", "replace").rstrip("\n\0")
            except ValueError:
                return ""
        return _message(value[0]) if value else ""
    return value.rstrip("\n\0") if isinstance(value, str) else ""


def _first(value: Any) -> str:
    if isinstance(value, list):
        value = value[0] if value else ""
    return value if isinstance(value, str) else ""


def _integer(value: Any) -> int | None:
    text = _first(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def text_record(line: str, now_ns: int, before: Record | None = None) -> Record | None:
    """One line of dmesg, journalctl or syslog, in any of their forms; None for an empty one.

    ``now_ns`` fills in the year that syslog leaves out; ``before`` is the record of the line
    before, whose stamp an indented line shares.
    """
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    if not line.strip():
        return None
    if line[0] in " \t" and before is not None:
        if _PROPERTY.match(line):
            return None
        return replace(before, text=line.strip(), sequence=None, cursor="")
    kernel = True
    pri = _PRI.match(line)
    if pri:
        line = line[pri.end() :]
        kernel = int(pri[1]) >> 3 == 0
    structured = _RFC5424.match(line)
    if structured:
        ours = structured["app"] == "kernel"
        stamp, _ = dated(structured["time"], now_ns)
        inner = _stamped(structured["text"] or "", Stamp(stamp.time_ns), now_ns, before)
        return replace(inner, kernel=kernel and ours, host=structured["host"])
    decoded = _DECODED.match(line)
    if decoded:
        kernel = kernel and decoded["facility"] == "kern"
        line = decoded["text"]
    record = _stamped(line, Stamp(), now_ns, before)
    return replace(record, kernel=kernel and record.kernel)


def without_uptime(text: str) -> str:
    """``text`` without a kernel's stamp ``[  12.345678]`` before it."""
    bracket = _BRACKET.match(text)
    return text[bracket.end() :] if bracket and relative(bracket[1], 0, None) else text


def _stamped(line: str, stamp: Stamp, now_ns: int, before: Record | None) -> Record:
    """Takes stamps and names off the front of ``line`` until the message stands there."""
    kernel, host = True, ""
    for _ in range(4):  # at most: date, host and tag, uptime, caller
        bracket = _BRACKET.match(line)
        if bracket:
            inside = relative(bracket[1], now_ns, None if before is None else before.time_ns)
            if inside is None and not _CALLER.fullmatch(bracket[1]):
                break
            stamp = stamp.joined(inside)
            line = line[bracket.end() :]
            continue
        date, length = dated(line, now_ns)
        if length:
            stamp = date.joined(stamp)
            line = line[length:]
            driver = _DRIVER_TAG.match(line)
            if driver:
                line, host = line[driver.end() :], driver["host"]
            elif not _KERNEL_WORDS.match(line) and not _KERNEL_TAG.match(line):
                other = _OTHER_TAG.match(line)
                kernel, host = other is None, other["host"] if other else host
            continue
        tag = _KERNEL_TAG.match(line)
        if tag is None:
            break
        line, host = line[tag.end() :], tag["host"] or host
    known = "" if before is None or host else before.host
    if known and line.startswith(f"{known} ") and _OTHER_TAG.match(line):
        kernel, host = False, known  # journalctl -o short-monotonic: a program of this host
    return Record(line.strip(), kernel, stamp.time_ns, stamp.uptime_ns, host=host)
