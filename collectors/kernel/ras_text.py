"""Reads what ``ras-mc-ctl --errors`` prints, and rasdaemon's database itself.

``--summary`` has counts without times; they say that errors were, not when, so each line of it is
one event of now with its count. Never raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from collectors.events import spaced
from collectors.gpu.findings import Findings, Text, lines
from collectors.kernel.event import KernelEvent
from collectors.kernel.ras_rows import TABLES, Row, time_of
from collectors.sample import Problem, Sample, clip

if TYPE_CHECKING:
    import sqlite3

DATABASE_MAGIC = b"SQLite format 3\0"
ROWS_MOST = 50_000
_PATIENCE = 20_000  # times 10,000 instructions of SQLite's machine
_DATABASE_BYTES = 64 * 1024 * 1024

_HEADS = {
    "Memory controller events": "mc_event",
    "PCIe AER events": "aer_event",
    "Extlog events": "extlog_event",
    "Extlog records": "extlog_event",
    "Devlink events": "devlink_event",
    "Devlink records": "devlink_event",
    "Disk errors": "disk_errors",
    "Memory failure events": "memory_failure_event",
    "MCE events": "mce_record",
    "MCE records": "mce_record",
    "ARM processor events": "",
}
_HEAD = re.compile(r"(?P<what>[A-Z][A-Za-z ]+?)(?P<summary> summary)?:?")
# Newer versions have sections of more tables (CXL, of single vendors).
_LATER_HEAD = re.compile(r"[A-Z][\w /()-]{1,60} (?:events|errors|records)(?: summary)?:?")
_NONE = re.compile(r"No [\w /()-]+ (?:errors|events)\.")
_ROW = re.compile(
    r"\d{1,18} (?P<timestamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}) (?P<rest>.*)", re.S
)
_MEMORY = re.compile(
    r"(?P<err_count>\d{1,9}) (?P<err_type>\w+) error\(s\): (?P<err_msg>.*?) at (?P<label>.*?) "
    r"location: (?P<mc>-?\d{1,4}):.*",
    re.S,
)
_PCIE = re.compile(r"(?P<dev_name>\S+) (?P<err_type>.+?) error: (?P<err_msg>.*)", re.S)
_MACHINE = re.compile(r"error: (?P<error_msg>.*)", re.S)
_REGISTER = re.compile(r", (status|cpu|bank)=0x([0-9a-f]{1,16})")
_NAMED = re.compile(r"(\w+)=('[^']*'|[^,]*)")
_SEVERITY = {"recoverable": 0, "fatal": 1, "corrected": 2, "informational": 3}
_SUM_MEMORY = re.compile(
    r"(?P<err_type>\w+) on DIMM Label\(s\): '(?P<label>.*?)' location: (?P<mc>-?\d{1,4}):\S* "
    r"errors: (?P<count>\d{1,9})"
)
_SUM_PCIE = re.compile(r"(?P<count>\d{1,9}) (?P<err_type>.+?) errors: (?P<err_msg>.*)")
_SUM_MACHINE = re.compile(r"(?P<count>\d{1,9}) (?P<error_msg>.+?) errors")
_SUM_DEVICE = re.compile(r"(?P<dev>\S+) has (?P<count>\d{1,9}) errors")
_SUM_FAILURE = re.compile(r"(?P<action_result>\S+) errors: (?P<count>\d{1,9})")


def parse(text: Text, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """The events in rasdaemon's database or in what ras-mc-ctl prints of it."""
    if isinstance(text, bytes) and text.startswith(DATABASE_MAGIC):
        return _of_database(text, node, now_ns)
    findings = Findings()
    table, summary, known = "", False, False
    for line, whole in lines(text, findings):
        stripped = line.strip()
        if not stripped:
            continue
        head = _HEAD.fullmatch(stripped)
        if head is not None and head["what"] in _HEADS:
            table, summary, known = _HEADS[head["what"]], bool(head["summary"]), True
            continue
        if known and _LATER_HEAD.fullmatch(stripped):
            findings.problem(f"{stripped.rstrip(':')}: a section that is not read")
            table = ""
            continue
        if _NONE.fullmatch(stripped):
            table, known = "", True
            continue
        if not table:
            if not known:
                findings.problem("not a line that ras-mc-ctl prints", line, once=True)
            continue
        row = _summary_row(table, stripped) if summary else _row(table, stripped)
        event = TABLES[table](row) if row is not None else None
        if event is None or not whole:
            findings.problem(f"a line of {table} that can't be read", line)
            continue
        findings.add(_sample(event, row or {}, node, now_ns))
    samples, problems = findings.close()
    if not samples and not problems and not known:
        problems.append(Problem("nothing in it that ras-mc-ctl would print"))
    return samples, problems


def _sample(event: KernelEvent, row: Row, node: str, now_ns: int) -> Sample:
    at_ns = time_of(row)
    return event.sample(node, min(at_ns, now_ns) if at_ns and at_ns > 0 else now_ns)


def _row(table: str, line: str) -> Row | None:
    """A line of ``--errors`` as the row that it was printed from."""
    found = _ROW.fullmatch(line)
    if found is None:
        return None
    stamp, rest = {"timestamp": found["timestamp"]}, found["rest"]
    if table == "mc_event":
        inner = _MEMORY.fullmatch(rest)
    elif table == "aer_event":
        inner = _PCIE.fullmatch(rest)
    elif table == "mce_record":
        inner = _MACHINE.fullmatch(rest)
        if inner is None:
            return None
        registers = {name: f"0x{value}" for name, value in _REGISTER.findall(rest)}
        return {**stamp, **inner.groupdict(), **registers}
    else:
        named = {name: value.strip("' ") for name, value in _NAMED.findall(rest)}
        if not named:
            return None
        renamed = {"msg": named.get("message", ""), **named}
        severity = named.get("severity", "").lower()
        if table == "extlog_event":
            return {**renamed, **stamp, "severity": _SEVERITY.get(severity, -1)}
        return {**renamed, **stamp}
    return None if inner is None else {**stamp, **inner.groupdict()}


def _summary_row(table: str, line: str) -> Row | None:
    """A line of ``--summary`` as a row that stands for all that it counts."""
    pattern = {
        "mc_event": _SUM_MEMORY,
        "aer_event": _SUM_PCIE,
        "mce_record": _SUM_MACHINE,
        "disk_errors": _SUM_DEVICE,
        "devlink_event": _SUM_DEVICE,
        "memory_failure_event": _SUM_FAILURE,
        "extlog_event": _SUM_MACHINE,
    }[table]
    found = pattern.fullmatch(line)
    if found is None:
        return None
    row: dict[str, object] = dict(found.groupdict())
    row["err_count"] = row["count"]
    row.setdefault("dev_name", row.get("dev", ""))
    if table == "extlog_event":
        words = str(row["error_msg"]).lower()
        row["severity"] = next((n for word, n in _SEVERITY.items() if words.endswith(word)), -1)
    return row


def _of_database(body: bytes, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    import sqlite3  # on use: most agents read no rasdaemon

    if len(body) > _DATABASE_BYTES:
        return [], [Problem(f"a database of {len(body)} bytes is too large to be read whole")]
    found: list[Sample] = []
    problems: list[Problem] = []
    try:
        with closing(sqlite3.connect(":memory:")) as database:
            database.deserialize(body)
            for table, _, row in rows_after(database, {}, ROWS_MOST):
                event = TABLES[table](row)
                if event is not None:
                    found.append(_sample(event, row, node, now_ns))
    except (sqlite3.Error, MemoryError, OverflowError) as error:
        problems.append(Problem(f"rasdaemon's database can't be read: {clip(str(error), 200)}"))
    return spaced(found), problems


def rows_after(
    database: sqlite3.Connection, last: dict[str, int], limit_rows: int
) -> Iterator[tuple[str, int, Row]]:
    """(table, id, row) of the rows with an id above ``last`` of their table, in their order.

    Which columns there are differs from version to version: all are taken, by name. A table whose
    newest id is below ``last`` was begun anew. Raises sqlite3.Error.
    """
    import sqlite3  # on use: most agents read no rasdaemon

    try:
        yield from _rows_after(database, last, limit_rows)
    except UnicodeDecodeError as error:  # the name of a column, in a damaged file
        raise sqlite3.DataError(f"a name that is no text: {error}") from error


def _rows_after(
    database: sqlite3.Connection, last: dict[str, int], limit_rows: int
) -> Iterator[tuple[str, int, Row]]:
    present = {
        str(name)
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    # A file that somebody made to keep us busy is given up on.
    rounds = iter(range(_PATIENCE))
    database.set_progress_handler(lambda: next(rounds, None) is None, 10_000)
    for table in TABLES:
        if table not in present:
            continue
        # The names come from TABLES alone.
        (newest,) = database.execute(f"SELECT max(id) FROM {table}").fetchone()  # noqa: S608
        since = last.get(table, 0)
        if not isinstance(newest, int):
            continue
        if newest < since:
            since = 0
        cursor = database.execute(
            f"SELECT * FROM {table} WHERE id > ? ORDER BY id LIMIT ?",  # noqa: S608
            (since, limit_rows),
        )
        names = [column[0] for column in cursor.description]
        for values in cursor:
            row = dict(zip(names, values, strict=True))
            number = row.get("id")
            if isinstance(number, int):
                yield table, number, row
