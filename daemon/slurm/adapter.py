"""What tocsin asks of Slurm, whichever way it is asked.

Every write follows one order, in every adapter:

1. look: read the nodes that are to be written, from slurmctld and not from a cache;
2. check: hand each to the caller's ``Check``, which answers why it must *not* be written;
3. write the rest at once, one request for all nodes that get the same reason;
4. read back, and answer what slurmctld now says; of a drain its log may say it.

Slurm has no conditional update: between 1 and 3 a person may set a reason of their own. An
adapter keeps that window as small as it can, looks whether something happened in it, and puts
back what it overwrote (``Outcome.restored``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from collectors.slurm.nodes import Nodes, NodeState

REASON_LIMIT_CHARACTERS = 200

# Given the node as slurmctld shows it now: why it must not be written, or "" if it may be.
Check = Callable[[NodeState], str]


class SlurmError(Exception):
    """Slurm could not be used. ``kind`` is a word of collectors.slurm.faults.

    ``not_sent``: nothing was asked of slurmctld, or it said no. Else it may have been done.
    """

    def __init__(self, text: str, kind: str = "", not_sent: bool = False) -> None:
        self.kind = kind
        self.not_sent = not_sent
        super().__init__(text)


class SlurmUnavailable(SlurmError):
    """slurmctld did not answer, and nothing was written."""


class SlurmRefused(SlurmError):
    """slurmctld said no (rights, mostly), and nothing was written."""


class SlurmUnknownOutcome(SlurmError):
    """A write was sent and its answer never came: it may take effect, now or later."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one drain or undrain came to, node by node. Every node asked for is in one of them.

    ``done``: read back as wanted. ``skipped``: not written, and why. ``unknown``: perhaps
    written, and why that is not known; the caller reconciles. ``restored``: somebody's reason
    was set between our look and our write; it was overwritten and has been put back, and the
    node is theirs. ``lost``: the same, but it could not be put back (the text says what it was).
    ``window_seconds`` bounds the time between look and write. ``said``: slurmctld's words where
    it answered with an error and yet did it (``done``). ``unwatched``: nodes that were written
    though slurmctld's log, which can be read, did not tell what had been set in between, and why.
    """

    done: Mapping[str, NodeState] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    restored: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    window_seconds: float = 0.0
    said: Mapping[str, str] = field(default_factory=dict)
    unwatched: Mapping[str, str] = field(default_factory=dict)


class SlurmAdapter(Protocol):
    """One way to Slurm. Calls block; every one of them ends by its deadline."""

    name: str

    def nodes(self, names: Iterable[str] | None = None) -> Nodes:
        """All nodes, or those of ``names`` that exist. Raises SlurmUnavailable."""
        ...

    def drain(self, reasons: Mapping[str, str], check: Check) -> Outcome:
        """Drains each node of ``reasons`` with its reason, where ``check`` allows it.

        Raises SlurmUnavailable or SlurmRefused when nothing at all was written.
        """
        ...

    def undrain(self, names: Iterable[str], check: Check) -> Outcome:
        """Lifts the drain of each node that ``check`` allows. Never RESUME: a DOWN stays."""
        ...

    def comment(self, comments: Mapping[str, str], check: Check) -> Outcome:
        """Sets the node's Comment, where ``check`` allows it."""
        ...

    def controller_start_ns(self) -> int:
        """When the slurmctld that answers was started, UTC ns. Raises SlurmUnavailable."""
        ...

    def topology(self) -> str:
        """Slurm's topology as text, empty where it has none. Raises SlurmUnavailable."""
        ...

    def describe(self) -> list[str]:
        """Lines for ``tocsin check``: what is used, and how an overwritten reason is noticed."""
        ...

    def close(self) -> None:
        """Lets go of processes. May be called twice."""
        ...


# Quotes and the backslash mean something to scontrol's own parser.
_UNSAFE = re.compile(r"[^ -~]|[\"'`\\]")


def plain_text(text: str, limit_characters: int = REASON_LIMIT_CHARACTERS) -> str:
    """``text`` as it may stand in a reason: printable ASCII, no quotes, blanks joined, bounded.

    >>> plain_text('fell off  the "bus"\\n')
    'fell off the bus'
    """
    ascii_text = _UNSAFE.sub(lambda match: " " if match[0].isspace() else "", text)
    return " ".join(ascii_text.split())[:limit_characters].rstrip()


def groups_of(values: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Nodes with one value together, in a stable order: one request a group."""
    groups: dict[str, list[str]] = {}
    for name in sorted(values):
        groups.setdefault(values[name], []).append(name)
    return list(groups.items())


_APPENDED = re.compile(
    r"(?: ?: ?(?:reboot (?:issued|requested|complete|timed out|cancell?ed|asap|failed)"
    r"|power(?:ed|ing) (?:up|down)(?: (?:after|by) \w+)?|(?:node )?not responding"
    r"|resumetimeout reached))+\Z",
    re.IGNORECASE,
)


def same_reason(shown: str, ours: str) -> bool:
    """Whether the reason that Slurm shows is the one we wrote.

    Slurm itself appends words to a reason when a node is rebooted or powered through it (for
    example ``... : reboot issued``); anything else that differs was written by somebody else, also
    when it begins alike (``; power supply swap, ann``).
    """
    if not ours:
        return False
    if shown == ours:
        return True
    return shown.startswith(ours) and bool(_APPENDED.match(shown[len(ours) :]))
