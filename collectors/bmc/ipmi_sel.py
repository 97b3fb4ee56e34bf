"""System Event Logs as ipmitool (``sel list``, ``elist``, csv, ``-v``, ``get``) and FreeIPMI print.

Record ids are hexadecimal in ipmitool and decimal in FreeIPMI. FreeIPMI does not print whether a
state came or went; for thresholds the reading tells (60 is not above 85), for the rest nothing
does, and the severity is then that of its arrival only where FreeIPMI says so itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from collectors.bmc.ipmi_faults import complaint, words_for
from collectors.bmc.ipmi_freeipmi import Table
from collectors.bmc.ipmi_sel_entry import Entry, time_of, to_sample
from collectors.bmc.ipmi_text import TEXT_RECORDS_LIMIT, cells, lines, printable, split_last
from collectors.bmc.ipmi_words import Meaning, meaning, slug, split_type
from collectors.events import CRITICAL, INFO, WARNING, spaced
from collectors.sample import Problem, Sample, clip

PROBLEMS_LIMIT = 200
_ID = re.compile(r"(?:0x)?[0-9a-fA-F]{1,4}\Z")
_DIRECTIONS = {"asserted": True, "deasserted": False}
_STAMP = re.compile(r"[0-9a-fA-F]{8,10}\Z")
_DATE = re.compile(r"\d{1,4}[/-]\d{1,2}[/-]\d{1,4}\Z")
_KEY = re.compile(r" ?(?P<key>[A-Z][A-Za-z /()]{1,40}?)\s*: ?(?P<value>.*)\Z")


class _Events:
    """Samples and problems of one text."""

    def __init__(self, node: str, now_ns: int) -> None:
        self.node = node
        self.now_ns = now_ns
        self.samples: list[Sample] = []
        self.problems: list[Problem] = []

    def lines(self, text: str | bytes) -> Iterator[str]:
        """The lines of ``text`` until there are very many entries."""
        for line in lines(text):
            if len(self.samples) >= TEXT_RECORDS_LIMIT:
                words = f"over the limit of {TEXT_RECORDS_LIMIT} entries: the rest is left out"
                self.problems.append(Problem(words))
                return
            yield line

    def add(self, entry: Entry) -> None:
        self.samples.append(to_sample(entry, self.now_ns))

    def problem(self, words: str, line: str) -> None:
        if len(self.problems) < PROBLEMS_LIMIT:
            self.problems.append(Problem(words, clip(line, 300)))

    def done(self) -> tuple[list[Sample], list[Problem]]:
        return spaced(self.samples), self.problems


# ---- ipmitool ------------------------------------------------------------------------------------


def parse_ipmitool(text: str | bytes, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """``event`` points of kind ``sel`` from any of ipmitool's SEL listings. Never raises."""
    found = _Events(node, now_ns)
    block: dict[str, str] = {}
    last = split_last(text)[1]
    for line in found.lines(text):
        if not line.strip():
            continue
        key = _KEY.match(line)
        if not printable(line):
            found.problem("bytes that no tool prints", line)
        elif "|" in line:
            _listed(found, cells(line, "|"), line, bool(last) and line == last)
        elif key and (key["key"] == "SEL Record ID" or block):
            if key["key"] == "SEL Record ID":
                _block(found, block)
                block = {}
            block.setdefault(key["key"], key["value"].strip())
        elif block and line.lstrip().startswith("["):
            continue  # states of the sensor, below its entry
        elif complaint(line):
            found.problem(words_for(line) or "ipmitool complains", line)
        elif line.count(",") >= 2 and _ID.match(line.split(",", 1)[0].strip()):
            _listed(found, cells(line, ","), line, bool(last) and line == last)
        elif line.startswith(
            (
                "SEL Information",
                "Version ",
                "Entries ",
                "Free Space",
                "Percent Used",
                "Last ",
                "Overflow",
                "Supported Cmds",
                "# of Alloc",
            )
        ):
            found.problem("the SEL's size, not its entries", line)
        else:
            found.problem("not a line of a SEL", line)
    if last and block and "|" not in last:
        found.problem("a SEL entry whose lines do not end: output cut off?", last)
    else:
        _block(found, block)
    return found.done()


def _listed(found: _Events, row: list[str], line: str, cut: bool) -> None:
    """One line of ``sel list`` or ``elist``, split at its bars or commas."""
    if len(row) < 3 or not _ID.match(row[0]):
        found.problem("a SEL line without record id or columns", line)
        return
    record_id, rest = int(row[0], 16), row[1:]
    time_ns, clock = None, ""
    while rest and not rest[0]:
        rest = rest[1:]  # the csv form leaves date and time of an untimed entry empty
    if rest and rest[0].lower().startswith("pre-init"):
        clock, rest = "before the BMC knew the time", rest[1:]
        if rest and _STAMP.match(rest[0]):
            clock, rest = f"{clock}: {rest[0].lstrip('0') or '0'} s after its start", rest[1:]
    elif len(rest) >= 2 and _DATE.match(rest[0]):
        time_ns = time_of(rest[0], rest[1])
        if time_ns is None:
            found.problem("a date and time that cannot be read", line)
            return
        rest = rest[2:]
    if not rest:
        found.problem("a SEL line that ends too early", line)
    elif rest[0].startswith("OEM record"):
        data = [cell for cell in rest[1:] if cell]
        if cut or not data or not all(re.fullmatch(r"[0-9a-fA-F]+", cell) for cell in data):
            found.problem("an OEM record without its data", line)
            return
        words = f"{rest[0]} {' '.join(data)}"
        found.add(_entry(found, record_id, "", "", words, None, "", time_ns, clock, _OEM))
    elif len(rest) >= 3 and rest[2].lower() in _DIRECTIONS:
        kind, sensor = split_type(rest[0])
        detail = ", ".join(cell for cell in rest[3:] if cell)
        asserted = _DIRECTIONS[rest[2].lower()]
        found.add(_entry(found, record_id, kind, sensor, rest[1], asserted, detail, time_ns, clock))
    elif len(rest) == 2 and not cut:
        # Before 1.8.12 ipmitool did not print the direction.
        kind, sensor = split_type(rest[0])
        found.add(_entry(found, record_id, kind, sensor, rest[1], True, "", time_ns, clock))
    else:
        found.problem("a SEL line that ends too early", line)


_OEM = Meaning("oem", INFO)


def _entry(
    found: _Events,
    record_id: int,
    kind: str,
    sensor: str,
    words: str,
    asserted: bool | None,
    detail: str,
    time_ns: int | None,
    clock: str,
    known: Meaning | None = None,
) -> Entry:
    words = " ".join(words.split())
    return Entry(
        found.node, record_id, kind, sensor, words, asserted, detail, time_ns, clock, known
    )


def _block(found: _Events, block: dict[str, str]) -> None:
    """One entry as ``-v`` or ``sel get`` prints it: key and value on each line."""
    if not block:
        return
    record, described = block.get("SEL Record ID", ""), block.get("Description", "")
    if not _ID.match(record):
        found.problem("a SEL entry without record id", record)
        return
    record_id = int(record, 16)
    stamp = block.get("Timestamp", "").split()
    time_ns = time_of(stamp[0], " ".join(stamp[1:])) if len(stamp) >= 2 else None
    clock = ""
    if time_ns is None:
        # 1.8.19 prints the date twice where the time of day should stand.
        clock = f"BMC says {' '.join(stamp[:1])}" if stamp else "no time given"
    kind = block.get("Sensor Type", "")
    direction = block.get("Event Direction", "").lower()
    if not described or not direction:
        oem = block.get("OEM Defined") or block.get("Manufacturer ID") or block.get("Record Type")
        if described or not oem or block.get("Record Type") in (None, "", "02"):
            found.problem("a SEL entry that ends too early", f"record {record}")
            return
        found.add(_entry(found, record_id, "", "", f"OEM {oem}", None, "", time_ns, clock, _OEM))
        return
    sensor = re.sub(r"\s*\(0x[0-9a-fA-F]+\)\Z", "", block.get("Sensor ID", ""))
    sensor = sensor or f"#0x{block.get('Sensor Number', '').lower()}"
    asserted = not direction.startswith("deassert")
    found.add(_entry(found, record_id, kind, sensor, described, asserted, "", time_ns, clock))


# ---- FreeIPMI ------------------------------------------------------------------------------------

_SEL_COLUMNS: dict[int, tuple[str, ...]] = {
    6: ("ID", "Date", "Time", "Name", "Type", "Event"),
    7: ("ID", "Date", "Time", "Name", "Type", "State", "Event"),
}
_SEVERITY = {"nominal": INFO, "warning": WARNING, "critical": CRITICAL}
_READING = re.compile(
    r"Sensor Reading = (?P<reading>-?[\d.]+) .*?Threshold = (?P<threshold>-?[\d.]+)"
)


def parse_freeipmi(text: str | bytes, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """``event`` points of kind ``sel`` from FreeIPMI's ``ipmi-sel``. Never raises."""
    found = _Events(node, now_ns)
    table = Table(node, plain=_SEL_COLUMNS)
    last = split_last(text)[1].strip()
    for line in found.lines(text):
        if not line.strip():
            continue
        if not printable(line):
            found.problem("bytes that no tool prints", line)
            continue
        answer = table.row(line.strip())
        if answer is None:
            said = words_for(line)
            if said or complaint(line):
                found.problem(said or "FreeIPMI complains", line)
            else:
                found.problem("not a line of a SEL", line)
        elif answer[1]:
            _freeipmi(found, answer[0], answer[1], line, bool(last) and line.strip() == last)
    return found.done()


def _freeipmi(found: _Events, node: str, row: dict[str, str], line: str, cut: bool) -> None:
    if not {"Date", "Time", "Name", "Event"} <= row.keys() or not row["Event"] or cut:
        found.problem("a SEL line that ends too early", line)
        return
    time_ns, clock = None, ""
    if row["Date"] == "PostInit" or row["Time"] == "PostInit":
        clock = "before the BMC knew the time"
    elif row["Date"] != "N/A":
        time_ns = time_of(row["Date"], row["Time"])
        if time_ns is None:
            found.problem("a date and time that cannot be read", line)
            return
    words, _, detail = row["Event"].partition(" ; ")
    kind = row.get("Type", "").replace("N/A", "")
    sensor = row["Name"].replace("N/A", "").replace("Sensor #", "#")
    asserted = _asserted(row, words, detail)
    known: Meaning | None = None
    state = row.get("State", "").lower()
    if words.startswith("OEM defined"):
        known = _OEM
    elif asserted is None and state in _SEVERITY:
        known = _with_state(kind, words, state)
    record_id = int(row["ID"])
    found.add(Entry(node, record_id, kind, sensor, words, asserted, detail, time_ns, clock, known))


def _with_state(kind: str, words: str, state: str) -> Meaning:
    """Our meaning, but what FreeIPMI calls nominal is no fault; and its word where we have none."""
    ours = meaning(kind, words)
    if state == "nominal":
        return Meaning(ours.code, INFO)
    return Meaning(ours.code, _SEVERITY[state]) if ours.code == slug(kind) else ours


def _asserted(row: dict[str, str], words: str, detail: str) -> bool | None:
    """Whether the state came (True), went (False), or cannot be told (None)."""
    direction = row.get("Event Direction", row.get("Direction", "")).lower()
    if direction:
        return not direction.startswith("deassert")
    hit = _READING.search(detail)
    if hit is None:
        return None
    try:
        reading, threshold = float(hit["reading"]), float(hit["threshold"])
    except ValueError:
        return None
    if words.startswith("Upper"):
        return reading >= threshold
    if words.startswith("Lower"):
        return reading <= threshold
    return None
