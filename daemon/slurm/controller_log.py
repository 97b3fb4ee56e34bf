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
from typing import BinaryIO

# What can be written between two looks; more than this is not a window but a flood.
READ_LIMIT_BYTES = 8 * 1024 * 1024
# Some lines, times and all: no other file has the same at the same place.
_KNOWN_BY_BYTES = 512
# Every LogTimeFormat stands in brackets.
_LINE = re.compile(r"\[[^]]*\] update_node: node (\S+) (reason|state) set to:? ?(.*)\Z", re.DOTALL)
# States of a node that nobody holds back: what was said of it before has been taken back.
_IN_SERVICE = ("IDLE", "ALLOC", "MIX", "COMP")


@dataclass(frozen=True, slots=True)
class Update:
    """One logged change of a node; ``what`` is ``reason`` or ``state``."""

    node: str
    what: str
    value: str


class ControllerLog:
    """Reads the log where it can. ``why`` says why that was last not so, or is empty."""

    def __init__(self, path: Path | None, why: str = "") -> None:
        self.path = path
        self.why = why

    def readable(self) -> bool:
        """Whether it can be read now."""
        with self.watch() as watch:
            return watch.begun

    def watch(self) -> Watch:
        """Looks at the log from its end on. To be closed: it is used in a ``with``."""
        return Watch(self)


class Watch:
    """The log from the moment on that this was made.

    The file is held open: one that is renamed by a rotation meanwhile is read to its end, and then
    the one that has its name. One that was cut (logrotate's copytruncate) lost what stood in it.
    """

    def __init__(self, log: ControllerLog) -> None:
        self._log = log
        self._stream: BinaryIO | None = None
        self._begin_bytes = 0
        self._before = b""
        if log.path is None:
            return
        try:
            # Of the open file: on NFS a name alone may answer what was so some seconds ago.
            self._stream = log.path.open("rb")
            self._begin_bytes = os.fstat(self._stream.fileno()).st_size
            self._before = _before(self._stream, self._begin_bytes)
        except OSError as error:
            log.why = f"{log.path}: {error.strerror}"
            self.close()
        else:
            log.why = ""

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the file: one that was rotated away would not free its place."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    @property
    def begun(self) -> bool:
        """Whether the log could be read when this was made."""
        return self._stream is not None

    def updates(self) -> list[Update] | None:
        """The updates that were logged since; None where that cannot be known."""
        if self._stream is None or self._log.path is None:
            return None
        parts: list[bytes] = []
        try:
            # Opened anew: what an open file shows on NFS may be some seconds old.
            with self._log.path.open("rb") as now:
                if _same_file(now, self._stream):
                    parts.append(self._rest(now))
                else:
                    parts += [self._rest(self._stream), now.read(READ_LIMIT_BYTES)]
        except FileNotFoundError:  # renamed, and slurmctld still writes to it
            parts.append(self._rest(self._stream))
        except OSError as error:
            self._log.why = f"{self._log.path}: {error.strerror}"
            return None
        except _CutError:
            self._log.why = f"{self._log.path} was cut in between (copytruncate?)"
            return None
        # slurmctld ends a line with "\n" alone: whatever else ends lines is part of a reason.
        return [
            update
            for part in parts
            for update in _updates(part.decode("utf-8", "replace").split("\n"))
        ]

    def _rest(self, stream: BinaryIO) -> bytes:
        """What ``stream`` has behind the place where this began. Raises _CutError, OSError."""
        # One that was cut and has grown past that place again has other words before it.
        if _before(stream, self._begin_bytes) != self._before:
            raise _CutError
        stream.seek(self._begin_bytes)
        return stream.read(READ_LIMIT_BYTES)


class _CutError(Exception):
    """The log is not what it was, continued."""


def _before(stream: BinaryIO, place_bytes: int) -> bytes:
    """The last bytes before a place, by which it is known again."""
    begin_bytes = max(0, place_bytes - _KNOWN_BY_BYTES)
    stream.seek(begin_bytes)
    return stream.read(place_bytes - begin_bytes)


def _same_file(one: BinaryIO, other: BinaryIO) -> bool:
    return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))


def _updates(lines: Iterable[str]) -> Iterable[Update]:
    """Each line of slurmctld's own begins with a time in brackets: what follows one without is the
    rest of a reason of several lines.
    """
    match: re.Match[str] | None = None
    value = ""
    for line in lines:
        if match is not None and not line.startswith("["):
            value += f"\n{line}"
            continue
        if match is not None:
            yield Update(match[1], match[2], value.rstrip())
        match = _LINE.match(line)
        value = match[3] if match else ""
    if match is not None:
        yield Update(match[1], match[2], value.rstrip())


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


def shows(updates: list[Update], node: str, ours: str) -> bool:
    """Whether our drain of ``node`` stands there, or with ``ours`` empty an undrain: slurmctld logs
    each that it says yes to, where it logs at all (also that of a DOWN or UNKNOWN node).
    """
    mine = [update for update in updates if update.node == node]
    if ours:
        return _our_write(mine, ours) is not None
    return any(one.what == "state" and not one.value.startswith("DRAIN") for one in mine)


def _our_write(mine: list[Update], ours: str) -> int | None:
    for index in range(len(mine) - 1, -1, -1):
        update = mine[index]
        if ours and update.what == "reason" and update.value == ours:
            return index
        if not ours and update.what == "state" and not update.value.startswith(("DRAIN", "DOWN")):
            return index
    return None
