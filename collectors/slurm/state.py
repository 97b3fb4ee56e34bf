"""NodeState: one node as slurmctld sees it, and the words in which Slurm writes states.

State words: slurm.h ``enum node_states`` and ``NODE_STATE_*``; signs behind them: sinfo(1),
"NODE STATE CODES"; gres strings: slurm.conf(5), "Gres".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from collectors.sample import Problem
from collectors.slurm.hostlist import HostlistError, expand

SECOND_NS = 1_000_000_000

BASES = frozenset({"unknown", "down", "idle", "allocated", "error", "mixed", "future"})

# The same flag under the names that versions and tools give it.
FLAG_ALIASES = {
    "DRAINING": "DRAIN",
    "DRAINED": "DRAIN",
    "FAILING": "FAIL",
    "NO_RESPOND": "NOT_RESPONDING",
    "NO_RESPONDING": "NOT_RESPONDING",
    "NORESP": "NOT_RESPONDING",
    "RES": "RESERVED",
    "MAINT": "MAINTENANCE",
    "POWER_SAVE": "POWERED_DOWN",
    "POWER_UP": "POWERING_UP",
    "REBOOT": "REBOOT_REQUESTED",
    "INVAL": "INVALID_REG",
}

# The signs that sinfo(1) puts behind a state word.
SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}

# Longest free text that is kept of one node.
TEXT_LIMIT_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node as slurmctld sees it.

    ``base`` is one of BASES; ``flags`` are slurm.h's words without their prefix (``DRAIN``,
    ``NOT_RESPONDING``, ``MAINTENANCE``, ``REBOOT_REQUESTED`` ...). Times are UTC ns, 0 where
    Slurm has none. ``jobs`` are ids of jobs that hold the node, if they were asked for.
    ``uncertain`` is set where the text did not give this node a record of its own.
    """

    name: str
    base: str = "unknown"
    flags: frozenset[str] = frozenset()
    reason: str = ""
    reason_user: str = ""
    reason_time_ns: int = 0
    partitions: tuple[str, ...] = ()
    gpus_configured: int = 0
    gpus_allocated: int = 0
    boot_time_ns: int = 0
    slurmd_start_time_ns: int = 0
    comment: str = ""
    extra: str = ""
    reservation: str = ""
    features: tuple[str, ...] = ()
    address: str = ""
    version: str = ""
    next_state: str = ""
    cpus: int = 0
    cpus_allocated: int = 0
    weight: int = 0
    jobs: tuple[str, ...] = ()
    uncertain: bool = False

    @property
    def words(self) -> str:
        """The state as scontrol writes it: ``IDLE+DRAIN``."""
        return "+".join([self.base.upper(), *sorted(self.flags)])

    @property
    def drain(self) -> bool:
        """Whether the node takes no new job because somebody drained it."""
        return "DRAIN" in self.flags

    @property
    def draining(self) -> bool:
        """Drained by somebody, and jobs still run or complete on it."""
        return self.drain and self.busy

    @property
    def drained(self) -> bool:
        """Drained by somebody, and empty."""
        return self.drain and not self.busy

    @property
    def busy(self) -> bool:
        """Whether jobs run or complete on it."""
        return self.base in ("allocated", "mixed") or "COMPLETING" in self.flags

    @property
    def down(self) -> bool:
        """DOWN: slurmctld gave it up or a person took it down."""
        return self.base == "down"

    @property
    def failed(self) -> bool:
        """A person or a program set FAIL."""
        return "FAIL" in self.flags or self.base == "error"

    @property
    def responding(self) -> bool:
        """Whether slurmctld gets answers from its slurmd."""
        return "NOT_RESPONDING" not in self.flags

    @property
    def powered(self) -> bool:
        """Whether power saving leaves it on and has no change of power under way."""
        return not self.flags & {"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN"}

    @property
    def registered(self) -> bool:
        """Whether slurmd has registered and works: the states in which a node can be judged."""
        return (
            self.base in ("idle", "mixed", "allocated")
            and self.responding
            and self.powered
            and "INVALID_REG" not in self.flags
            and "REBOOT_ISSUED" not in self.flags
        )

    @property
    def maintenance(self) -> bool:
        """Whether it stands in a maintenance reservation."""
        return "MAINTENANCE" in self.flags

    @property
    def rebooting(self) -> bool:
        """Whether ``scontrol reboot`` has been asked for or is under way."""
        return bool(self.flags & {"REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT_CANCEL"})


Nodes = dict[str, NodeState]


def with_jobs(nodes: Nodes, jobs: Mapping[str, tuple[str, ...]]) -> Nodes:
    """``nodes`` with the ids of the jobs that hold each."""
    return {
        name: replace(node, jobs=jobs[name]) if name in jobs else node
        for name, node in nodes.items()
    }


# With any of these a reason still says something about the node.
_REASONED = frozenset(
    {"DRAIN", "FAIL", "INVALID_REG", "REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT_CANCEL",
     "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN"}
)  # fmt: skip


def left_over(node: NodeState, returned_reason: str) -> bool:
    """Whether its reason is only left from the drain that it last came back from.

    ``returned_reason`` is that drain's. Slurm 23.11 to 25.11 without accounting keeps the reason
    of a node that was resumed or undrained until its next job starts; every other Slurm clears
    it at once (``clusteracct_storage_g_node_up`` in src/interfaces/accounting_storage.c).
    """
    in_service = node.base in ("idle", "mixed", "allocated") and not node.flags & _REASONED
    return in_service and bool(node.reason) and node.reason == returned_reason


def gpu_count(gres: str) -> int:
    """GPUs in a gres string: ``gpu:h200:8(S:0-1)``, ``gpu:2,shard:4``, ``gpu:a:1(IDX:0),gpu:b:2``.

    >>> gpu_count("gpu:h200:3(IDX:0-2),gpu:a100:1(IDX:3),shard:8")
    4
    """
    total = 0
    for item in re.sub(r"\([^()]*\)", "", gres).split(","):
        parts = item.strip().split(":")
        if parts[0].removeprefix("gres/") != "gpu" or len(parts) < 2:
            continue
        number = next((part for part in reversed(parts[1:]) if part[:1].isdecimal()), "")
        match = re.fullmatch(r"(\d{1,6})([kK]?)", number)
        if match:
            total += int(match[1]) * (1024 if match[2] else 1)
    return total


def read_state(
    words: Iterable[str], name: str, problems: list[Problem]
) -> tuple[str, frozenset[str]]:
    """The base state and the flags in a list of words."""
    base = ""
    flags: set[str] = set()
    for word in words:
        word, found = _suffixed(word.strip().upper())
        flags |= found
        if not word or word == "?":
            continue
        if word.lower() in BASES or word in ("ALLOC", "MIX", "UNK", "FUTR"):
            base = base or _base(word)
        elif word in ("DRAINING", "DRAINED", "DRNG"):
            # A compact word says base and flag in one.
            base = base or ("mixed" if word != "DRAINED" else "idle")
            flags.add("DRAIN")
        elif re.fullmatch(r"[A-Z][A-Z0-9_]{0,40}", word):
            flags.add(FLAG_ALIASES.get(word, word))
        else:
            problems.append(Problem(f"node {name}: no such state word", word[:80]))
    flags.discard("INVALID")
    return base or "unknown", frozenset(flags)


def _suffixed(word: str) -> tuple[str, set[str]]:
    flags: set[str] = set()
    while word and word[-1] in SUFFIXES:
        flags.add(SUFFIXES[word[-1]])
        word = word[:-1]
    return word, flags


def _base(word: str) -> str:
    short = {"ALLOC": "allocated", "MIX": "mixed", "UNK": "unknown", "FUTR": "future"}
    return short.get(word, word.lower())


def list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def dict_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def text_of(value: Any) -> str:
    return value[:TEXT_LIMIT_CHARACTERS] if isinstance(value, str) and value != "(null)" else ""


def words_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [part for part in re.split(r"[+,\s]+", value) if part]
    return [item for item in list_of(value) if isinstance(item, str)]


def names_of(value: Any) -> tuple[str, ...]:
    """A list of names, or a comma list or host list as text."""
    if isinstance(value, str):
        if "[" in value:
            try:
                return tuple(expand(value))
            except HostlistError:
                return ()
        value = value.split(",")
    return tuple(item.strip() for item in list_of(value) if isinstance(item, str) and item.strip())


def int_of(value: Any) -> int:
    """A number, plain or as ``{"set": true, "infinite": false, "number": 7}``; 0 where unset."""
    if isinstance(value, dict):
        if value.get("set") is False or value.get("infinite") is True:
            return 0
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    if isinstance(value, float) and not math.isfinite(value):
        return 0
    number = int(value)
    return number if 0 <= number < 2**53 else 0


def time_ns_of(value: Any) -> int:
    """Seconds since the epoch as ns; 0 for none and for values no clock can show."""
    seconds = int_of(value)
    return seconds * SECOND_NS if 0 < seconds < 2**33 else 0
