"""What Slurm's past tells of each node: outages with their kind, for labels.

From two places: the ledger, which keeps every drain of others and every return as it saw them
(daemon/reconcile.py), and ``sacct``, whose NODE_FAIL jobs reach back before tocsin was there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from collectors.hostlist import HostlistError, expand
from collectors.slurm_nodes import local_ns
from daemon.store.database import Database

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


class Kind(StrEnum):
    """What a node was taken out for, as far as the words tell."""

    HARDWARE = "hardware"
    SOFTWARE = "software"
    MAINTENANCE = "maintenance"
    UNKNOWN = "unknown"


_HARDWARE = re.compile(
    r"\b(xid|sxid|ecc|gpus?|nvlink|dimms?|memory error|mce|psu|power supply|fans?|disk|ssd|nvme"
    r"|infiniband|ib|hca|cable|transceiver|link down|pcie|bus|overheat\w*|temperature|bmc|rma"
    r"|motherboard|mainboard|cpu fault|hardware|hw|fell off|remap\w*|check_hw\w*|replac\w+)\b",
    re.IGNORECASE,
)
_SOFTWARE = re.compile(
    r"\b(driver|kernel|mount\w*|nfs|lustre|gpfs|beegfs|file ?system|oom|kill task failed|prolog"
    r"|epilog|hung|stuck|daemon|slurmd|software|config\w*|ldap|sssd|munge|check_fs\w*|check_ps\w*)\b",
    re.IGNORECASE,
)
_MAINTENANCE = re.compile(
    r"\b(maint\w*|upgrad\w*|updat\w*|patch\w*|reboot\w*|firmware|bios|reinstall\w*|re-?image\w*"
    r"|downtime|reserved|test(ing)?|burn-?in|benchmark\w*|install\w*|move|decommission\w*)\b",
    re.IGNORECASE,
)


def classify(reason: str) -> Kind:
    """The kind of an outage by its reason. Words for two kinds tell nothing certain.

    Planned work on a part ("firmware update of the HCA") is maintenance: no part had failed.

    >>> classify("ann: GPU 3 fell off the bus"), classify("BIOS update"), classify("ask bob")
    (<Kind.HARDWARE: 'hardware'>, <Kind.MAINTENANCE: 'maintenance'>, <Kind.UNKNOWN: 'unknown'>)
    """
    if reason.startswith("tocsin:"):
        return Kind.UNKNOWN  # our own word is no label: a person's verdict is
    maintenance = bool(_MAINTENANCE.search(reason))
    hardware = bool(_HARDWARE.search(reason))
    software = bool(_SOFTWARE.search(reason))
    if maintenance:
        return Kind.MAINTENANCE
    if hardware and not software:
        return Kind.HARDWARE
    if software and not hardware:
        return Kind.SOFTWARE
    return Kind.UNKNOWN


@dataclass(frozen=True, slots=True)
class Outage:
    """A node out of service. ``end_ns`` is 0 while it lasts; ``by`` a user, or ``Slurm``."""

    node: str
    start_ns: int
    end_ns: int
    kind: Kind
    reason: str
    by: str


def of_ledger(database: Database, since_ns: int = 0) -> list[Outage]:
    """Drains by others that the ledger saw, ended and standing ones, oldest first.

    Our own are left out: their cases have verdicts.
    """
    rows = database.query(
        "SELECT node, since_ns, time_ns, reason, user FROM returns WHERE time_ns >= ? "
        "UNION ALL SELECT node, since_ns, 0, reason, user FROM others ORDER BY 2",
        (since_ns,),
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
