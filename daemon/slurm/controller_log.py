"""slurmctld's own log, as the witness of what happened between a look and a write.

slurmctld logs each node update at its default level (info), under the lock that applies it, so
the order of the lines is the order of the updates (src/slurmctld/node_mgr.c, update_node):

    [2026-11-30T02:51:57.286] update_node: node n3 reason set to: bad DIMM
    [2026-11-30T02:51:57.286] update_node: node n3 state set to DRAINED

Users' words reach that log too, unescaped (a partition that does not exist, say). So a line counts
only where slurmctld begins one, and nothing of it is trusted to be harmless: see writing.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# What can be written between two looks; more than this is not a window but a flood.
READ_LIMIT_BYTES = 8 * 1024 * 1024
# Every LogTimeFormat stands in brackets.
_LINE = re.compile(r"\[[^]]*\] update_node: node (\S+) (reason|state) set to:? ?(.*)\Z", re.DOTALL)
# States of a node that nobody holds back: what was said of it before has been taken back.
_IN_SERVICE = ("IDLE", "ALLOC", "MIX", "COMP")


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the log: the file (by inode) and the byte."""

    inode: int
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class Update:
    """One logged change of a node; ``what`` is ``reason`` or ``state``."""

    node: str
    what: str
    value: str


class ControllerLog:
    """Reads the log where it can; where it cannot, ``position`` is None and says why."""

    def __init__(self, path: Path | None, why: str = "") -> None:
        self.path = path
        self.why = why

    def position(self) -> Position | None:
        """The end of the log now."""
        if self.path is None:
            return None
        try:
            # Of the open file: on NFS a name alone may answer what was so some seconds ago.
            with self.path.open("rb") as stream:
                status = os.fstat(stream.fileno())
        except OSError as error:
            self.why = f"{self.path}: {error.strerror}"
            return None
        self.why = ""
        return Position(status.st_ino, status.st_size)

    def since(self, begin: Position | None) -> list[Update] | None:
        """The updates logged after ``begin``; None where that cannot be known."""
        if begin is None or self.path is None:
            return None
        try:
            with self.path.open("rb") as stream:
                status = self.path.stat()
                if status.st_ino != begin.inode or status.st_size < begin.offset_bytes:
                    self.why = "the log was rotated in between"
                    return None
                stream.seek(begin.offset_bytes)
                text = stream.read(READ_LIMIT_BYTES).decode("utf-8", "replace")
        except OSError as error:
            self.why = f"{self.path}: {error.strerror}"
            return None
        # slurmctld ends a line with "\n" alone: whatever else ends lines is part of a reason.
        return list(_updates(text.split("\n")))


def _updates(lines: Iterable[str]) -> Iterable[Update]:
    for line in lines:
        match = _LINE.match(line)
        if match:
            yield Update(match[1], match[2], match[3].rstrip())


def by_node(updates: Iterable[Update]) -> dict[str, list[Update]]:
    """Each node's updates, in their order."""
    found: dict[str, list[Update]] = {}
    for update in updates:
        found.setdefault(update.node, []).append(update)
    return found


def drained_as(updates: list[Update], node: str, ours: str) -> str:
    """The state in which our drain left ``node``, as logged (``DRAINED``, ``DRAINING*``).

    Empty unless that drain, with the reason ``ours``, is the last that was done to it.
    """
    mine = [update for update in updates if update.node == node][-2:]
    if [update.what for update in mine] != ["reason", "state"] or mine[0].value != ours:
        return ""
    return mine[1].value if mine[1].value.startswith("DRAIN") else ""


@dataclass(frozen=True, slots=True)
class Foreign:
    """What somebody else did to a node in the window, before our write replaced it."""

    reason: str
    drained: bool
    down: bool


def overwritten(
    updates: list[Update], node: str, ours: str, unlogged: bool = False
) -> Foreign | None:
    """The foreign change of ``node`` that our write of ``ours`` replaced, if there was one.

    With ``ours`` empty (an undrain), every change of another's reason before our state change
    counts: the last state line that is not DRAIN is taken for ours. ``unlogged``: slurmctld
    answered ours with an error, and may have made it without a line (UNDRAIN of an UNKNOWN node);
    then everything before the end of ``updates`` may have been replaced.
    """
    mine = [update for update in updates if update.node == node]
    end = _our_write(mine, ours)
    if end is None and unlogged and not ours:
        end = len(mine)
    if end is None:
        return None
    before = _not_taken_back(mine[:end])
    reasons = [
        update.value for update in before if update.what == "reason" and update.value != ours
    ]
    if not reasons or not reasons[-1]:
        return None
    states = [update.value for update in before if update.what == "state"]
    return Foreign(
        reasons[-1],
        drained=any(state.startswith("DRAIN") for state in states) or not states,
        down=any(state.startswith("DOWN") for state in states),
    )


def _not_taken_back(before: list[Update]) -> list[Update]:
    """Those after the last that brought the node back: who lifted a drain wants none of it."""
    for index in range(len(before) - 1, -1, -1):
        if before[index].what == "state" and before[index].value.startswith(_IN_SERVICE):
            return before[index + 1 :]
    return before


def _our_write(mine: list[Update], ours: str) -> int | None:
    for index in range(len(mine) - 1, -1, -1):
        update = mine[index]
        if ours and update.what == "reason" and update.value == ours:
            return index
        if not ours and update.what == "state" and not update.value.startswith(("DRAIN", "DOWN")):
            return index
    return None
