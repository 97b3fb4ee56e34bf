"""The write that every adapter makes the same way: look, check, write, look what fell in between.

An adapter gives a ``Channel``, its own way to look at nodes and to change them; the order, what
counts as done, and how a reason that a person set in the window is put back stand here once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from collectors.slurm.faults import HUNG, REFUSED, trouble_of_text
from collectors.slurm.hostlist import valid_name
from collectors.slurm.nodes import Nodes, NodeState
from daemon.slurm.adapter import (
    Check,
    Outcome,
    SlurmError,
    SlurmRefused,
    SlurmUnavailable,
    groups_of,
    plain_text,
    same_reason,
)
from daemon.slurm.controller_log import (
    ControllerLog,
    Foreign,
    Update,
    Watch,
    by_node,
    drained_as,
    overwritten,
    shows,
)

# Nodes named in one request; scontrol takes lines far longer, slurmctld too.
NAMES_PER_WRITE = 2000
# Groups that are looked at together at most.
ROUND_LIMIT = 50

# A value (a reason) and the nodes that get it.
_Group = tuple[str, list[str]]


class ChannelBroken(Exception):
    """The channel ended or did not answer: a change that was under way may be made, or not."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one request sets on all its nodes. Empty: left as it is; a comment of "" clears it."""

    state: str = ""
    reason: str = ""
    comment: str | None = None


class Channel(Protocol):
    """One adapter's way to slurmctld, for the time of one write."""

    def look(self, names: list[str]) -> Nodes:
        """Those of ``names`` that exist, from slurmctld itself. Raises SlurmUnavailable."""
        ...

    def change(self, names: list[str], change: Change) -> str:
        """One request. Raises SlurmRefused or SlurmUnavailable when certainly nothing was
        written, ChannelBroken when it may have been. Empty: slurmctld said yes. Any other words
        of it settle nothing: the nodes are read back.
        """
        ...


def no_window() -> None:
    """What happens between look and write: nothing, outside of tests."""


@dataclass
class _Tally:
    looked: dict[str, NodeState] = field(default_factory=dict)
    done: dict[str, NodeState] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    restored: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    window_seconds: float = 0.0
    unwatched: dict[str, str] = field(default_factory=dict)

    def rest(self, names: Iterable[str], why: str) -> None:
        """Every name not told of yet: written if it stands in ``unknown``, else not."""
        for name in names:
            if not any(
                name in told
                for told in (self.done, self.skipped, self.unknown, self.restored, self.lost)
            ):
                self.skipped[name] = why

    def outcome(self) -> Outcome:
        return Outcome(
            self.done, self.skipped, self.unknown, self.restored, self.lost, self.window_seconds,
            {name: words for name, words in self.said.items() if name in self.done},
            self.unwatched,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Write:
    """One kind of write: what it changes, when a node counts as written, and whether a reason
    of somebody else's can be replaced by it. ``logged``: the node after it, as far as slurmctld's
    log tells that of a node that was looked at before; None where the node must be read back.
    """

    verb: str
    change: Callable[[str], Change]
    wanted: Callable[[NodeState, str], bool]
    replaces: bool = True
    logged: Callable[[NodeState, str, list[Update]], NodeState | None] | None = None


def _drained_by_the_log(node: NodeState, reason: str, updates: list[Update]) -> NodeState | None:
    """``node`` with our drain, where the log's last words of it are that drain and nothing else
    about it has changed since it was looked at.
    """
    state = "DRAINING" if node.busy else "DRAINED"
    state += "*" if "NOT_RESPONDING" in node.flags else ""
    if drained_as(updates, node.name, reason) != state:
        return None
    flags = node.flags | {"DRAIN"}
    return replace(node, flags=flags, reason=reason, reason_user="", reason_time_ns=0)


DRAIN = Write(
    "drain",
    lambda reason: Change(state="DRAIN", reason=reason),
    lambda node, reason: node.drain and same_reason(node.reason, reason),
    logged=_drained_by_the_log,
)
UNDRAIN = Write("undrain", lambda _: Change(state="UNDRAIN"), lambda node, _: not node.drain)
COMMENT = Write(
    "comment",
    lambda text: Change(comment=text),
    lambda node, text: node.comment == text,
    replaces=False,
)


def checked_reasons(reasons: Mapping[str, str]) -> dict[str, str]:
    """Reasons as they may be written. Raises ValueError where one is empty."""
    clean = {name: plain_text(reason) for name, reason in reasons.items()}
    empty = [name for name, reason in clean.items() if not reason]
    if empty:
        raise ValueError(f"no reason for {empty[0]}")
    return clean


def checked_names(names: Iterable[str]) -> None:
    """Raises ValueError where one is no name of a single node."""
    for name in names:
        if not valid_name(name):
            raise ValueError(f"no node name: {name!r}")


class Writer:
    """One write over one channel. ``window`` is called between look and write; tests act there."""

    def __init__(
        self,
        channel: Channel,
        log: ControllerLog,
        window: Callable[[], None] = no_window,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel = channel
        self._log = log
        self._window = window
        self._monotonic = monotonic

    def write(self, write: Write, values: Mapping[str, str], check: Check) -> Outcome:
        """Each node of ``values`` gets its value, where ``check`` allows it.

        Raises SlurmUnavailable or SlurmRefused when nothing at all was written.
        """
        tally = _Tally()
        try:
            written = self._rounds(write, _split(values), check, tally)
            left = {name: value for name, value in written.items() if name not in tally.done}
            if left:
                self._read_back(write, left, tally)
        except ChannelBroken as error:
            if not (tally.done or tally.unknown or tally.skipped or tally.restored):
                raise SlurmUnavailable(str(error), HUNG) from error
            tally.rest(values, f"the way to Slurm broke: {error}")
        except (SlurmUnavailable, SlurmRefused) as error:
            # What was looked at or written before is told; nothing of the rest was written.
            if not (tally.done or tally.unknown or tally.restored or tally.lost):
                raise
            tally.rest(values, str(error))
        return tally.outcome()

    def _rounds(
        self, write: Write, groups: list[_Group], check: Check, tally: _Tally
    ) -> dict[str, str]:
        """Looks and writes, round after round. Answers what was written, perhaps.

        A look costs slurmctld its whole node table, whatever is asked for. On a large cluster
        that is a hundred times a write, so a round takes as many groups as can be written in
        the time that the look took: the window at most doubles. On a small one it is one.
        """
        written: dict[str, str] = {}
        at = 0
        size = 1
        while at < len(groups):
            some = groups[at : at + size]
            at += size
            started = self._monotonic()
            with self._log.watch() as watch:
                allowed = self._allowed(some, check, tally)
                looked = self._monotonic()
                if allowed:
                    self._window()
                sent: list[_Group] = []
                try:
                    for value, names in allowed:
                        self._send(write, value, names, tally)
                        sent.append((value, names))
                        passed = self._monotonic() - started
                        tally.window_seconds = max(tally.window_seconds, passed)
                        written.update(dict.fromkeys(names, value))
                    if allowed:
                        write_seconds = max(1e-4, (self._monotonic() - looked) / len(allowed))
                        size = min(ROUND_LIMIT, max(1, int((looked - started) / write_seconds)))
                finally:
                    # Where a later group was not taken, the earlier ones replaced what they did.
                    self._witnessed(write, sent, watch, tally)
        return written

    def _witnessed(self, write: Write, sent: list[_Group], watch: Watch, tally: _Tally) -> None:
        """What slurmctld's log tells of the groups that it answered in this round."""
        if not write.replaces or not sent or not watch.begun:
            return
        updates = watch.updates()
        if updates is None:
            tally.unwatched.update((name, self._log.why) for _, names in sent for name in names)
            return
        told = by_node(updates)
        for value, names in sent:
            self._mend(told, value, names, tally)
            _believe(write, told, value, names, tally)
            # It said yes to what its log does not show: that is the log of another, or silent.
            if not any(
                name in tally.said or shows(told.get(name, []), name, value) for name in names
            ):
                words = f"{self._log.path} does not show what slurmctld has just done"
                tally.unwatched.update(dict.fromkeys(names, words))

    def _allowed(self, groups: list[_Group], check: Check, tally: _Tally) -> list[_Group]:
        """Looks, and leaves what the caller's check lets pass."""
        nodes = self._channel.look([name for _, names in groups for name in names])
        allowed: list[_Group] = []
        for value, names in groups:
            passed: list[str] = []
            for name in names:
                node = nodes.get(name)
                why = "Slurm does not know this node" if node is None else check(node)
                if why:
                    tally.skipped[name] = why
                elif node is not None:
                    tally.looked[name] = node
                    passed.append(name)
            if passed:
                allowed.append((value, passed))
        return allowed

    def _send(self, write: Write, value: str, names: list[str], tally: _Tally) -> None:
        """Sends one request. From here on it may have happened, until we know better."""
        tally.unknown.update(dict.fromkeys(names, f"the {write.verb} was sent, no answer came"))
        try:
            said = self._channel.change(names, write.change(value))
        except (SlurmRefused, SlurmUnavailable):
            for name in names:
                del tally.unknown[name]
            raise
        if said:
            tally.said.update(dict.fromkeys(names, said))

    def _read_back(self, write: Write, written: Mapping[str, str], tally: _Tally) -> None:
        nodes: Nodes | None
        try:
            nodes = self._channel.look(sorted(written))
        except SlurmError as error:
            for name in written:
                tally.unknown[name] = f"written, and not read back: {error}"
            nodes = None
        for name, value in written.items():
            if name in tally.restored or name in tally.lost:
                tally.unknown.pop(name, None)
                continue
            if nodes is None:
                continue
            node = nodes.get(name)
            if node is not None and write.wanted(node, value):
                del tally.unknown[name]
                tally.done[name] = node
            else:
                shown = f"{node.words}, reason {node.reason!r}" if node else "no such node"
                said = f"{tally.said[name]!r} was the answer to it" if name in tally.said else ""
                words = [f"{write.verb} was written", said, f"Slurm shows {shown}"]
                tally.unknown[name] = ", ".join(word for word in words if word)

    # ---- what happened in the window --------------------------------------------------------

    def _mend(
        self, told: Mapping[str, list[Update]], ours: str, names: list[str], tally: _Tally
    ) -> None:
        """Puts back the reasons that our write replaced, as slurmctld's log tells them."""
        for name in names:
            foreign = overwritten(told.get(name, []), name, ours, unlogged=name in tally.said)
            if foreign is None:
                continue
            tally.unknown.pop(name, None)
            if self._put_back(name, ours, foreign):
                tally.restored[name] = foreign.reason
            else:
                tally.lost[name] = foreign.reason

    def _put_back(self, name: str, ours: str, foreign: Foreign) -> bool:
        """Gives ``name`` back to whoever set ``foreign``, unless it has changed again since."""
        try:
            node = self._channel.look([name]).get(name)
            if node is None:
                return False
            if not same_reason(node.reason, ours) if ours else node.drain:
                return True  # relabelled or drained again: it is theirs as it stands
            theirs = _harmless(foreign.reason)
            if not theirs:
                return False
            if ours and foreign.down and not foreign.drained:
                self._channel.change([name], Change(state="UNDRAIN"))
            state = "" if ours else "DRAIN"
            self._channel.change([name], Change(state=state, reason=theirs))
            node = self._channel.look([name]).get(name)
        except (ChannelBroken, SlurmError):
            return False
        return node is not None and node.reason == theirs


def _harmless(reason: str) -> str:
    """A reason from the log as it may be written: word for word, but for what is no letter.

    Keys that a readline obeys (Ctrl-U, Ctrl-O) would make a command of a reason, and anybody's
    words may stand in that log; line ends would make a line of Slurm's own of it; bytes that are
    no text were lost when it was read. Each becomes a blank.
    """
    return "".join(one if one.isprintable() and one != "\ufffd" else " " for one in reason).strip()


def _believe(
    write: Write, told: Mapping[str, list[Update]], value: str, names: list[str], tally: _Tally
) -> None:
    """Counts as done what slurmctld answered with yes and logged: each look costs it its whole
    node table, and the partitions beside it.
    """
    if write.logged is None:
        return
    for name in names:
        if name in tally.restored or name in tally.lost or name in tally.said:
            continue
        node = write.logged(tally.looked[name], value, told.get(name, []))
        if node is not None:
            tally.unknown.pop(name, None)
            tally.done[name] = node


def _split(values: Mapping[str, str]) -> list[_Group]:
    """One group a value, none longer than one command may be."""
    return [
        (value, names[begin : begin + NAMES_PER_WRITE])
        for value, names in groups_of(values)
        for begin in range(0, len(names), NAMES_PER_WRITE)
    ]


def raise_if_not_written(said: str, who: str) -> None:
    """Raises where what was said to a change rules out that slurmctld made it.

    "receive failure", "timed out" and a connection that broke do not: the request was sent. Nor
    does an answer that cannot be authenticated: slurmctld had understood what it answers.
    """
    error = trouble_of_text(said, who)
    if error.not_sent:
        kind = SlurmRefused if error.kind == REFUSED else SlurmUnavailable
        raise kind(str(error), error.kind, not_sent=True)
