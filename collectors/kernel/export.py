"""``journalctl -o export``: entries of fields, each ``NAME=text`` or, for bytes, with its length.

A field whose value holds a line end or other control characters is written as its name on a line,
eight bytes of length (little endian), that many bytes, and a line end. An empty line ends an entry.

``-o verbose`` has the same fields for people: an entry begins with its date and cursor, each field
is indented by four blanks, further lines of its text by more.

Source: systemd's Journal Export Format, https://systemd.io/JOURNAL_EXPORT_FORMATS/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from collectors.kernel.records import LINE_LIMIT, Record, journal_entry
from collectors.kernel.stamps import dated
from collectors.sample import Problem

_NAME = re.compile(rb"[A-Z_][A-Z0-9_]{0,63}")
_FIRST = re.compile(rb"\s*(?:__CURSOR|__REALTIME_TIMESTAMP|__SEQNUM|_BOOT_ID|MESSAGE)[=\n]")
_VERBOSE = re.compile(rb"^[A-Z][^\n\[]{9,80} \[s=[0-9a-f]{32};i=[0-9a-f]{1,16};", re.M)
_LINE = re.compile(rb"[^\n]+")
# The fields that an entry is made of here; others (stack traces, core dumps) are passed over.
_WANTED = frozenset(
    {
        "MESSAGE", "_TRANSPORT", "SYSLOG_FACILITY", "_BOOT_ID", "_HOSTNAME", "__CURSOR",
        "__REALTIME_TIMESTAMP", "_SOURCE_MONOTONIC_TIMESTAMP",
    }
)  # fmt: skip


def is_export(body: bytes) -> bool:
    """Whether ``body`` begins as an export of the journal does."""
    return _FIRST.match(body) is not None and b"\n__REALTIME_TIMESTAMP=" in b"\n" + body[:65_536]


def records(body: bytes) -> Iterator[tuple[Record | None, Problem | None]]:
    """Every entry. One that is cut off is left out and said; so is what is no field at all."""
    entry: dict[str, str] = {}
    at, size = 0, len(body)
    while at < size:
        end = body.find(b"\n", at)
        if end < 0:
            yield None, Problem("the last field is cut off; its entry is left out")
            return
        line, at = body[at:end], end + 1
        if not line:
            yield from _ended(entry)
            entry = {}
            continue
        raw_name, equals, text = line[:65].partition(b"=")
        name = raw_name.decode("ascii", "replace")
        if equals and _NAME.fullmatch(raw_name):
            if name in _WANTED:
                entry.setdefault(name, line[len(raw_name) + 1 :][:LINE_LIMIT].decode(
                    "utf-8", "replace"))  # fmt: skip
            continue
        if not _NAME.fullmatch(line):
            yield None, Problem("not a field of a journal export", repr(text or line[:100]))
            # What follows may be bytes of any kind: go on after the next empty line.
            entry = {}
            gap = body.find(b"\n\n", end)
            at = size if gap < 0 else gap + 2
            continue
        length = int.from_bytes(body[at : at + 8], "little")
        if size - at < 8 + length + 1 or body[at + 8 + length : at + 9 + length] != b"\n":
            yield None, Problem(f"the bytes of {name} are cut off; the rest is left out")
            return
        if name in _WANTED:
            value = body[at + 8 : at + 8 + min(length, LINE_LIMIT)]
            entry.setdefault(name, value.decode("utf-8", "replace"))
        at += 9 + length
    yield from _ended(entry)


def is_verbose(body: bytes) -> bool:
    """Whether ``body`` begins as what ``journalctl -o verbose`` prints."""
    lines = body[:4_096].split(b"\n")[:5]  # some versions say first when the journal begins
    first = next((line for line in lines if line.strip() and not line.startswith(b"-- ")), b"")
    return _VERBOSE.match(first) is not None


def verbose_records(body: bytes, now_ns: int) -> Iterator[tuple[Record | None, Problem | None]]:
    """Every entry of ``-o verbose``; what is neither a field nor an entry's beginning is passed."""
    entry: dict[str, str] = {}
    for found in _LINE.finditer(body):
        line = body[found.start() : min(found.end(), found.start() + LINE_LIMIT)]
        if _VERBOSE.match(line):
            yield from _ended(entry)
            stamp, _ = dated(line[:100].decode("ascii", "replace"), now_ns)
            entry = {} if stamp.time_ns is None else {
                "__REALTIME_TIMESTAMP": str(stamp.time_ns // 1000)
            }  # fmt: skip
            continue
        name, equals, text = line[4:].partition(b"=")
        if equals and line[:4] == b"    " and _NAME.fullmatch(name):
            key = name.decode("ascii")
            if key in _WANTED:
                entry.setdefault(key, text.decode("utf-8", "replace"))
    yield from _ended(entry)


def _ended(entry: Mapping[str, str]) -> Iterator[tuple[Record | None, Problem | None]]:
    record = journal_entry(entry)
    if record is not None:
        yield record, None
