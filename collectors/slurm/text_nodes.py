"""Reads ``scontrol show nodes`` as text, with or without ``-o`` and ``-d``.

The text is ambiguous where people write free text (Reason, Comment, Extra): JSON is preferred
wherever scontrol speaks it. ``clear`` tells whether a text can be read in one way only. Times stand
in local time without a zone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import lru_cache

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
_LOOKED_AT = frozenset(
    {
        "NodeName", "State", "AllocTRES", "Gres", "GresUsed", "Partitions", "BootTime",
        "SlurmdStartTime", "ReservationName", "ActiveFeatures", "NodeAddr", "Version", "NextState",
        "CPUTot", "CPUAlloc", "Weight",
    }
)  # fmt: skip
# What stands behind the free texts (slurm_sprint_node_table, 22.05 to 26.11). None holds a blank.
_BEHIND = ("InstanceId", "InstanceType", "ReservationName", "Topology", "Parameters")
# What ends a reason: who set it and when.
_STAMP = re.compile(
    r" \[([^\s@\[\]]*)@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|[A-Z][A-Za-z0-9:. -]{0,30})\]"
)
_SET_BY = re.compile(_STAMP.pattern + rf"(?=$| (?:Comment|Extra|Reservation|{'|'.join(_BEHIND)})=)")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)")
_AFTER_FREE = re.compile(rf" ({'|'.join(_BEHIND)})=(\S*)")


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


def clear(text: str) -> bool:
    """Whether ``scontrol --oneliner show nodes`` can be read in one way only.

    Not so where a text that people or nodes set holds what looks like a field, a line of its own or
    the stamp behind a reason: then only JSON tells which is which.
    """
    names = set()
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines:
        name = line[9 : line.find(" ", 9)]
        if not line.startswith("NodeName=") or name in names:
            return False
        if line.count(" State=") != 1 or line.count(" CfgTRES=") != 1:
            return False
        names.add(name)
        # The one text of a node's own: what its slurmd says of its kernel.
        system = line[line.find(" OS=") + 4 : line.find(" RealMemory=")] if " OS=" in line else ""
        if "=" in system:
            return False
        free = _FREE.search(line)
        if free is not None and not _clear_tail(line[free.start() :]):
            return False
    return bool(lines)


_NOT_FOUND = re.compile(r"(?:slurm_load_node error: )?Node \S+ not found")


def clear_of_some(text: str) -> bool:
    """:func:`clear` of an answer about some nodes, of which not all may exist."""
    kept = [line for line in text.splitlines() if not _NOT_FOUND.fullmatch(line.strip())]
    return clear("\n".join(kept)) or not any(line.strip() for line in kept)


def first_record(text: str) -> str:
    """What an answer about one node says of it: more that looks like a node stands behind its own
    record, in somebody's Comment or Extra of several lines.
    """
    return next(_records(text), "")


def _clear_tail(tail: str) -> bool:
    """The same for what stands from the first free text on."""
    reasons, comments = tail.count(" Reason="), tail.count(" Comment=")
    stamps = len(_STAMP.findall(tail))
    comments += tail.count(" Extra=")
    behind = [tail.count(f" {word}=") for word in _BEHIND]
    if tail.count(" State=") or max(behind) > 1:
        return False
    # Behind a comment nothing may follow: it could be the comment's own words.
    alone = comments + sum(behind) <= 1 if comments else True
    if reasons:
        # A reason ends at its stamp; what follows it is the comment, or what Slurm adds.
        return (reasons, stamps) == (1, 1) and alone and _ends_before(tail, behind)
    return comments == 1 and stamps == 0 and alone


def _ends_before(tail: str, behind: list[int]) -> bool:
    """Whether all that stands behind the free texts stands behind the reason's stamp as well."""
    stamp = _STAMP.search(tail)
    rest = tail[stamp.end() :] if stamp else ""
    return behind == [rest.count(f" {word}=") for word in _BEHIND]


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
    base, flags = _state(fields.get("State", ""), name, problems)
    reason, user, time_ns, rest = _reason(tail)
    comment, extra = _comments(rest)
    after = dict(_AFTER_FREE.findall(rest))
    tres = re.search(r"(?:^|,)gres/gpu=(\d{1,6})", fields.get("AllocTRES", ""))
    used = _gpus(fields.get("GresUsed", ""))
    return NodeState(
        name=name,
        base=base,
        flags=flags,
        reason=text_of(reason),
        reason_user=user,
        reason_time_ns=time_ns,
        partitions=_names(fields.get("Partitions", "")),
        gpus_configured=_gpus(fields.get("Gres", "")),
        gpus_allocated=used or (int(tres[1]) if tres else 0),
        boot_time_ns=local_ns(fields.get("BootTime", "")),
        slurmd_start_time_ns=local_ns(fields.get("SlurmdStartTime", "")),
        comment=text_of(comment),
        extra=text_of(extra),
        reservation=after.get("ReservationName") or fields.get("ReservationName", ""),
        features=_names(fields.get("ActiveFeatures", "").replace("(null)", "")),
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
    """The fields that are looked at: none of them holds a blank. The first one counts."""
    fields: dict[str, str] = {}
    for word in plain.split(" "):
        key, _, value = word.partition("=")
        if key in _LOOKED_AT and key not in fields:
            fields[key] = value
    return fields


# A fleet has few different words for these, and ten thousand nodes say them again and again.
_gpus = lru_cache(4096)(gpu_count)


@lru_cache(4096)
def _names(text: str) -> tuple[str, ...]:
    return names_of(text)


@lru_cache(4096)
def _known_state(text: str) -> tuple[str, frozenset[str]] | None:
    """A state that is read without a problem."""
    problems: list[Problem] = []
    found = read_state(words_of(text), "", problems)
    return None if problems else found


def _state(text: str, name: str, problems: list[Problem]) -> tuple[str, frozenset[str]]:
    known = _known_state(text)
    return known if known is not None else read_state(words_of(text), name, problems)


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
    return _local_ns(text) if len(text) == 19 else 0


@lru_cache(16_384)
def _local_ns(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        return 0
    year, month, day, hour, minute, second = map(int, match.groups())
    if not (0 < month < 13 and 0 < day < 32 and hour < 24 and minute < 60 and second < 62):
        return 0
    try:
        seconds = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
        return max(0, int(seconds)) * SECOND_NS
    except (ValueError, OverflowError):
        return 0
