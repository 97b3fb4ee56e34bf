"""What a node was taken out of service for, by the words that stood at it."""

from __future__ import annotations

import re
from enum import StrEnum


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
