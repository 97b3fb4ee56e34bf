"""From the kernel's words to events. Pure: text in, events out, nothing else touched.

Two ways in. :func:`classify` looks at one message alone. :class:`Lines` takes one message
after the other and also joins what the kernel says over several lines (a lost GPU, a
firmware error record). :func:`parse` is ``tocsin parse kernel-log``: a whole text in any of the
forms that ``kernel_records`` knows.

A line counts only if the kernel wrote it and only from its first word on: a program that prints a
copy of an Xid line does not make an Xid, nor does one that bears such a line as its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from collectors.events import spaced
from collectors.kernel import export as kernel_export
from collectors.kernel import hardware as kernel_hardware
from collectors.kernel import nvidia as kernel_nvidia
from collectors.kernel import system as kernel_system
from collectors.kernel.event import KernelEvent
from collectors.kernel.programs import of_program
from collectors.kernel.records import (
    LINE_LIMIT,
    Record,
    journal_record,
    kmsg_record,
    text_record,
    without_uptime,
)
from collectors.node.pci import ADDRESS
from collectors.sample import Problem, Sample, clip

MATCHERS: tuple[Callable[[str], KernelEvent | None], ...] = (
    *kernel_nvidia.MATCHERS,
    *kernel_hardware.MATCHERS,
    *kernel_system.MATCHERS,
)

# One look that dismisses nearly every line; each matcher needs one of these words.
_TRIGGER = re.compile(
    r"NVRM|SXid|nvidia|AER|PCIe Bus Error|DPC|pciehp|Hardware Error|achine [Cc]heck|EDAC"
    r"|Memory failure|temperature|blocked |lockup|LOCKUP|stall|panic|BUG|Oops|[Kk]ill"
    r"|EXT4-fs|XFS|BTRFS|read-?only|error, dev|I/O error|nfs: server|Lustre|nvme |mlx5_core"
    r"|inaccessible|giving up|Unable to handle kernel|Internal error|SError"
)
_TRIGGER_BYTES = re.compile(_TRIGGER.pattern.encode())
_XID_LIKE = re.compile(r"(?:NVRM:\s+Xid|nvidia-nvswitch\d+: SXid)\b")
# rsyslog with RepeatedMsgReduction: "message repeated 3 times: [ NVRM: Xid ...]"
_REPEATED = re.compile(r"message repeated (?P<times>\d{1,9}) times?: \[\s?(?P<text>.*)\]", re.S)
_LOST_HEAD = re.compile(rf"NVRM: The NVIDIA GPU {ADDRESS}")
_LOST_TAIL = re.compile(r"NVRM:\s+(?:\(PCI ID|installed in|fallen off)")
_INDENTED = (b" ", b"\t")
# The lines of one message may be mixed with those of other processors.
_JOIN_LINES = 16
_PROBLEM_LIMIT = 100
_HOSTS_LIMIT = 16
# A log with more events than this is left at that: nobody reads on, and memory is bounded.
_EVENT_LIMIT = 100_000


def classify(text: str) -> KernelEvent | None:
    """The event that one kernel message is, None if it is none that we know.

    >>> classify("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.").code
    '79'
    """
    if not _TRIGGER.search(text) or of_program(text):
        return None
    for match in MATCHERS:
        event = match(text)
        if event is not None:
            return event
    return None


def unreadable(text: str) -> bool:
    """Whether ``text`` claims to be an Xid or SXid and still can't be read: a new format, or
    a line that was cut off."""
    return bool(_XID_LIKE.match(text))


def of_interest(raw: bytes) -> bool:
    """Whether a line of a log may be an event: a quick look that dismisses nearly all lines."""
    return raw[:1] == b"{" or _TRIGGER_BYTES.search(raw) is not None


class Lines:
    """Takes kernel messages one by one and gives their events; joins what spans lines."""

    def __init__(self) -> None:
        self._ghes = kernel_hardware.Ghes()
        self._head = ""
        self._lines_left = 0

    def feed(self, text: str) -> list[KernelEvent]:
        """The events that this message completes: mostly none, at most two."""
        repeated = _REPEATED.match(text) if text.startswith("message rep") else None
        if repeated:
            times = int(repeated["times"])
            inner = without_uptime(repeated["text"])
            return [replace(one, count=times * one.count) for one in self._feed(inner)]
        return self._feed(text)

    def _feed(self, text: str) -> list[KernelEvent]:
        events: list[KernelEvent] = []
        if "[Hardware Error]" in text or self._ghes.busy:
            of_record, ended = self._ghes.feed(text)
            if ended is not None:
                events.append(ended)
            if of_record:
                return events
        event = classify(self._joined(text))
        if event is not None:
            events.append(event)
        return events

    def flush(self) -> list[KernelEvent]:
        """What is still held: to be asked for when no line came for a while, or at the end."""
        ended = self._ghes.flush()
        return [] if ended is None else [ended]

    def _joined(self, text: str) -> str:
        """``text``, or with the head of its message before it if it is such a message's tail."""
        if not text.startswith("NVRM"):
            self._lines_left -= 1
            return text
        if _LOST_HEAD.match(text) and "fallen off" not in text:
            self._head, self._lines_left = text, _JOIN_LINES
            return text
        if self._head and self._lines_left > 0 and _LOST_TAIL.match(text):
            joined = f"{self._head} {text}"
            self._head = "" if "fallen off" in text else joined
            return joined
        self._lines_left -= 1
        return text


@dataclass(frozen=True, slots=True)
class _Found:
    event: KernelEvent
    record: Record


def parse(text: str | bytes, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """Every event in a kernel log of any form. Never raises.

    A line that tells only its uptime gets a time by the newest such line, which is taken to
    be of ``now_ns``; a line without any stamp is of ``now_ns``.
    """
    lines = Lines()
    found: list[_Found] = []
    problems: list[Problem] = []
    newest_uptime_ns = 0
    hosts: dict[str, None] = {}
    last = Record("")
    for record, problem in _records(text, now_ns):
        if problem is not None:
            if len(problems) < _PROBLEM_LIMIT:
                problems.append(problem)
            continue
        if record is None:
            continue
        newest_uptime_ns = max(newest_uptime_ns, record.uptime_ns or 0)
        if not record.kernel:
            continue
        last = record
        if len(hosts) < _HOSTS_LIMIT:
            hosts[record.host] = None
        events = lines.feed(record.text)
        if len(found) >= _EVENT_LIMIT:
            problems.append(Problem(f"more than {_EVENT_LIMIT} events: the rest is left out"))
            break
        found.extend(_Found(event, record) for event in events)
        if not events and unreadable(record.text) and len(problems) < _PROBLEM_LIMIT:
            problems.append(Problem("an Xid line that can't be read", clip(record.text, 400)))
    found.extend(_Found(event, last) for event in lines.flush())
    named = [clip(host, 60) for host in hosts if host]
    if len(named) > 1:
        who = f"{', '.join(named[:3])}{', ...' if len(named) > 3 else ''}"
        problems.append(Problem(f"lines of several hosts ({who}): all are told as of {node}"))
    boot_ns = now_ns - newest_uptime_ns
    return spaced(
        one.event.sample(node, _time_ns(one.record, boot_ns, now_ns)) for one in found
    ), problems


def _time_ns(record: Record, boot_ns: int, now_ns: int) -> int:
    if record.time_ns is not None and record.time_ns > 0:
        return record.time_ns
    if record.uptime_ns is not None:
        return max(1, boot_ns + record.uptime_ns)
    return now_ns


def _records(text: str | bytes, now_ns: int) -> Iterator[tuple[Record | None, Problem | None]]:
    body = text.encode("utf-8", "replace") if isinstance(text, str) else text
    body = body.removeprefix(b"\xef\xbb\xbf")
    if body[:2] in (b"\xff\xfe", b"\xfe\xff"):
        yield None, Problem("this is UTF-16 text; give it as UTF-8", "")
        return
    if body[:200].lstrip().startswith(b"{") and b'"dmesg"' in body[:200]:
        yield from _dmesg_json(body)
        return
    if kernel_export.is_export(body):
        yield from kernel_export.records(body)
        return
    if kernel_export.is_verbose(body):
        yield from kernel_export.verbose_records(body, now_ns)
        return
    before: Record | None = None
    if body.startswith((b"{\n", b"{\r\n")):
        body = _one_per_line(body)
    # Nearly all lines say nothing to us: jump to those that may, unless every line counts
    # (JSON may spell its message in numbers; "[  +0.1]" is time since the line before).
    jump = b'"MESSAGE"' not in body and b"[  +" not in body
    # Empty lines at the end are none; the one line end that may follow the last line counts.
    last = len(body.rstrip(b"\n"))
    start, size = 0, min(len(body), last + 1)
    while start < size:
        if jump:
            start, before = _next_of_interest(body, start, last, now_ns, before)
        end = body.find(b"\n", start)
        whole = end >= 0
        end = end if whole else size
        if end - start > LINE_LIMIT:
            cut = body[start : start + 200].decode("utf-8", "replace")
            yield None, Problem(f"a line of {end - start} bytes is left out", clip(cut, 200))
        else:
            raw = body[start:end].rstrip(b"\r\0")
            record, problem = _record(raw, now_ns, before, whole)
            before = record or before
            yield record, problem
        start = end + 1


def _next_of_interest(
    body: bytes, start: int, last: int, now_ns: int, before: Record | None
) -> tuple[int, Record | None]:
    """Where the next line begins that may be an event (or the last line, for its time), and
    the record of the line before it where an indented line needs its stamp."""
    hit = _TRIGGER_BYTES.search(body, start)
    at = last if hit is None else hit.start()
    here = max(start, body.rfind(b"\n", start, at) + 1)
    if here > start and body[here : here + 1] in _INDENTED:
        end = here - 1
        above = max(start, body.rfind(b"\n", start, end) + 1)
        # The message's first line tells who wrote it: further ones above may be indented as well.
        while above > start and body[above : above + 1] in _INDENTED and here - above <= LINE_LIMIT:
            end = above - 1
            above = max(start, body.rfind(b"\n", start, end) + 1)
        if here - above <= LINE_LIMIT:
            before = _record(body[above:end].rstrip(b"\r\0"), now_ns, before, True)[0]
    return here, before


def _record(
    raw: bytes, now_ns: int, before: Record | None, whole: bool
) -> tuple[Record | None, Problem | None]:
    line = raw.decode("utf-8", "replace").lstrip("\x1e")
    if line.startswith(("{", "data: {")):
        record = journal_record(line.removeprefix("data: "))
        if record is None and '"MESSAGE"' in line:
            return None, Problem("a journal entry that can't be read", clip(line, 400))
        return record, None
    record = kmsg_record(line)
    if record is None:
        record = text_record(line, now_ns, before)
    if record is not None and record.kernel and not whole and _maybe_cut(record.text):
        # "79" may have been cut down to "7": a wrong code is worse than none.
        return None, Problem("the last line is cut off in its code", clip(record.text, 400))
    return record, None


def _one_per_line(body: bytes) -> bytes:
    """``journalctl -o json-pretty``: entries over many lines, brought onto one line each.

    Text inside of JSON holds no raw line breaks, so every line break is between tokens.
    """
    return b"\n{".join(
        b" ".join(entry.splitlines()) for entry in re.split(rb"(?<=\n\})\r?\n\{", body)
    )


def _maybe_cut(text: str) -> bool:
    line = kernel_nvidia.xid_line(text)
    return line is not None and not line.whole


def _dmesg_json(body: bytes) -> Iterator[tuple[Record | None, Problem | None]]:
    """``dmesg --json``: {"dmesg": [{"pri": 4, "time": 12.5, "msg": "..."}]}."""
    try:
        entries = json.loads(body)["dmesg"]
        if not isinstance(entries, list):
            raise TypeError("no list")
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        yield None, Problem(f"dmesg's JSON can't be read: {type(error).__name__}", "")
        return
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("msg"), str):
            continue
        record = Record(entry["msg"])
        facility = entry.get("fac")
        pri = entry.get("pri")
        if isinstance(facility, str):
            record = replace(record, kernel=facility == "kern")
        elif isinstance(pri, int):
            record = replace(record, kernel=pri >> 3 == 0)
        uptime = entry.get("time")
        if isinstance(uptime, int | float) and 0 <= uptime < 1e10:
            record = replace(record, uptime_ns=int(uptime * 1e9))
        yield record, None
