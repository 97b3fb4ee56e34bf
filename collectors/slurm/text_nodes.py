"""Reads ``scontrol show nodes`` as text, with or without ``-o`` and ``-d``.

The text is ambiguous where people write free text (Reason, Comment, Extra): JSON is preferred
wherever Slurm speaks it. Times stand in local time without a zone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from collectors.sample import Problem
from collectors.slurm.hostlist import valid_name
from collectors.slurm.json_nodes import keep
from collectors.slurm.state import (
    SECOND_NS,
    Nodes,
    NodeState,
    gpu_count,
    names_of,
    read_state,
    text_of,
    words_of,
)

# The fields whose values are free text. They stand behind all others, in this order.
_FREE = re.compile(r" (Reason|Comment|Extra)=")
_KEY = re.compile(r"(?:^| )([A-Z][A-Za-z0-9_]*)=")
# What ends a reason: who set it and when.
_SET_BY = re.compile(
    r" \[([^\s@\[\]]*)@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|[A-Z][A-Za-z0-9:. -]{0,30})\]"
    r"(?=$| (?:Comment|Extra|InstanceId|InstanceType|ReservationName|Reservation)=)"
)
_AFTER_FREE = re.compile(r" (InstanceId|InstanceType|ReservationName)=(\S*)")


def from_text(text: str, problems: list[Problem]) -> Nodes:
    nodes: Nodes = {}
    found = False
    for record in _records(text):
        if not record.startswith("NodeName="):
            if record.strip():
                problems.append(Problem("no node record", record[:200]))
            continue
        found = True
        keep(nodes, _text_node(record, problems), problems)
    if not found and not problems:
        problems.append(Problem("no node in this text", text[:200]))
    return nodes


def _records(text: str) -> Iterator[str]:
    """One record a node: the lines that do not begin with a blank, with those that do."""
    lines: list[str] = []
    for line in text.splitlines():
        if line[:1] in (" ", "\t") and lines:
            lines.append(line.strip())
            continue
        if lines:
            yield " ".join(lines)
        lines = [line.rstrip()] if line.strip() else []
    if lines:
        yield " ".join(lines)


def _text_node(record: str, problems: list[Problem]) -> NodeState | None:
    free = _FREE.search(record)
    plain, tail = (record[: free.start()], record[free.start() :]) if free else (record, "")
    fields = _fields(plain)
    name = fields.get("NodeName", "")
    if not valid_name(name):
        problems.append(Problem("a node without a usable name", record[:200]))
        return None
    if "State" not in fields:
        problems.append(Problem(f"node {name} has no state", record[:200]))
    base, flags = read_state(words_of(fields.get("State", "")), name, problems)
    reason, user, time_ns, rest = _reason(tail)
    comment, extra = _comments(rest)
    after = dict(_AFTER_FREE.findall(rest))
    tres = re.search(r"(?:^|,)gres/gpu=(\d{1,6})", fields.get("AllocTRES", ""))
    used = gpu_count(fields.get("GresUsed", ""))
    return NodeState(
        name=name,
        base=base,
        flags=flags,
        reason=text_of(reason),
        reason_user=user,
        reason_time_ns=time_ns,
        partitions=names_of(fields.get("Partitions", "")),
        gpus_configured=gpu_count(fields.get("Gres", "")),
        gpus_allocated=used or (int(tres[1]) if tres else 0),
        boot_time_ns=local_ns(fields.get("BootTime", "")),
        slurmd_start_time_ns=local_ns(fields.get("SlurmdStartTime", "")),
        comment=text_of(comment),
        extra=text_of(extra),
        reservation=after.get("ReservationName") or fields.get("ReservationName", ""),
        features=names_of(fields.get("ActiveFeatures", "").replace("(null)", "")),
        address=fields.get("NodeAddr", ""),
        version=fields.get("Version", ""),
        next_state=fields.get("NextState", "")
        if fields.get("NextState") in ("RESUME", "DOWN")
        else "",
        cpus=_number(fields.get("CPUTot", "")),
        cpus_allocated=_number(fields.get("CPUAlloc", "")),
        weight=_number(fields.get("Weight", "")),
    )


def _fields(plain: str) -> dict[str, str]:
    """``Key=value`` pairs; a value (OS=Linux 6.1 #1 SMP) may hold blanks. The first one counts."""
    fields: dict[str, str] = {}
    matches = list(_KEY.finditer(plain))
    for match, following in zip(matches, [*matches[1:], None], strict=True):
        end = following.start() if following else len(plain)
        fields.setdefault(match[1], plain[match.end() : end].strip())
    return fields


def _reason(tail: str) -> tuple[str, str, int, str]:
    """Reason, who set it, when, and what stands behind it."""
    if not tail.startswith(" Reason="):
        return "", "", 0, tail
    body = tail[len(" Reason=") :]
    stamp = _SET_BY.search(body)
    if stamp is None:
        cut = re.search(r" (?:Comment|Extra)=", body)
        end = cut.start() if cut else len(body)
        return body[:end].strip(), "", 0, body[end:]
    return body[: stamp.start()], stamp[1], local_ns(stamp[2]), body[stamp.end() :]


def _comments(rest: str) -> tuple[str, str]:
    comment, extra = "", ""
    after = _AFTER_FREE.search(rest)
    if after:
        rest = rest[: after.start()]
    if rest.startswith(" Comment="):
        comment, mark, extra = rest[len(" Comment=") :].rpartition(" Extra=")
        if not mark:
            comment, extra = extra, ""
    elif rest.startswith(" Extra="):
        extra = rest[len(" Extra=") :]
    return comment, extra


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 16 else 0


def local_ns(text: str) -> int:
    """Slurm's own time format, which is local time without a zone, as UTC ns; 0 for None."""
    try:
        parts = time.strptime(text, "%Y-%m-%dT%H:%M:%S")
        return max(0, int(time.mktime(parts))) * SECOND_NS
    except (ValueError, OverflowError):
        return 0
