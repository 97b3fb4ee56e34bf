"""What Slurm's past tells of each node: outages with their kind, for labels.

From two places: the ledger, which keeps every drain of others and every return as it saw them
(daemon/drains/reconcile.py), and ``sacct``, whose NODE_FAIL jobs reach back before tocsin was
there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from collectors.slurm.hostlist import HostlistError, expand
from collectors.slurm.nodes import local_ns
from daemon.store.database import Database
from models.reasons import Kind, classify

# sacct's arguments for ``parse_sacct``; a start time is to be added.
SACCT = (
    "--allusers", "--allocations", "--duplicates", "--noheader", "--parsable2",
    "--state=NODE_FAIL", "--format=JobIDRaw,State,Start,End,NodeList",
)  # fmt: skip
# slurmctld's own words where a node stops answering; nobody judged anything then.
_SLURMS_OWN = re.compile(
    r"^(not responding|node unexpectedly rebooted|low (realmemory|cpus|tmpdisk|socket\*core)"
    r"|gres/gpu count|batch job complete failure|kill task failed|prolog error|epilog error)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Outage:
    """A node out of service. ``end_ns`` is 0 while it lasts; ``by`` a user, or ``Slurm``."""

    node: str
    start_ns: int
    end_ns: int
    kind: Kind
    reason: str
    by: str


def of_ledger(database: Database, since_ns: int = 0, node: str = "") -> list[Outage]:
    """Drains by others that the ledger saw, ended and standing ones, oldest first.

    Our own are left out: their cases have verdicts. ``node``: of this one alone.
    """
    rows = database.query(
        "SELECT node, since_ns, time_ns, reason, user FROM returns WHERE time_ns >= :since "
        "AND (:node = '' OR node = :node) "
        "UNION ALL SELECT node, since_ns, 0, reason, user FROM others "
        "WHERE :node = '' OR node = :node ORDER BY 2",
        {"since": since_ns, "node": node},
    )
    return [
        Outage(
            row["node"], row["since_ns"], row["time_ns"], classify(row["reason"]),
            row["reason"], "Slurm" if _SLURMS_OWN.match(row["reason"]) else row["user"],
        )
        for row in rows
        if not row["reason"].startswith("tocsin:")
    ]  # fmt: skip


def parse_sacct(text: str) -> list[tuple[str, int]]:
    """Node and time (UTC ns) of each failure that ended a job, in the order of time.

    A NODE_FAIL of a job on many nodes does not say which of them failed, and is left out.
    """
    found = set()
    for line in text.splitlines():
        parts = line.strip().split("|")
        if len(parts) != 5 or not parts[1].startswith("NODE_FAIL"):
            continue
        try:
            nodes = expand(parts[4])
        except HostlistError:
            continue
        end_ns = local_ns(parts[3])
        if len(nodes) == 1 and end_ns:
            found.add((end_ns, nodes[0]))
    return [(node, end_ns) for end_ns, node in sorted(found)]


def counts(outages: Iterable[Outage]) -> Mapping[str, dict[Kind, int]]:
    """How often each node was out, by kind."""
    told: dict[str, dict[Kind, int]] = {}
    for one in outages:
        kinds = told.setdefault(one.node, dict.fromkeys(Kind, 0))
        kinds[one.kind] += 1
    return told


def in_words(outages: Sequence[Outage]) -> str:
    """One node's outages by others in a sentence; empty where there were none.

    >>> in_words([Outage("n1", 1, 2, Kind.HARDWARE, "bad DIMM", "ann")])
    "Others took it out of service 1 time (1 hardware), last for 'bad DIMM' by ann."
    """
    if not outages:
        return ""
    kinds = next(iter(counts(outages).values()))
    told = ", ".join(f"{number} {kind.value}" for kind, number in kinds.items() if number)
    last = max(outages, key=lambda one: one.start_ns)
    by = f" by {last.by}" if last.by else ""
    times = f"{len(outages)} time{'s' * (len(outages) != 1)}"
    return f"Others took it out of service {times} ({told}), last for {last.reason!r}{by}."
