"""Slurm's own topology as groups: which nodes hang on one leaf switch, or stand in one block.

Reads what ``scontrol show topology`` prints and what topology.conf(5) holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from collectors.slurm.hostlist import HostlistError, expand

# A group of one is none.
GROUP_NODES_MIN = 2

_FIELD = re.compile(r"(?:^|\s)([A-Za-z]+)=(\S+)")


def leaf_switches(text: str) -> dict[str, list[str]]:
    """Leaf switches and blocks to their nodes, from either form of the text.

    Switches above the leaves stand for half of the cluster and are left out; so is a line that
    cannot be read.

    >>> leaf_switches("SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]")
    {'leaf s1': ['n1', 'n2']}
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        fields = {key.lower(): value for key, value in _FIELD.findall(line.partition("#")[0])}
        name = fields.get("switchname") or fields.get("blockname")
        nodes = fields.get("nodes")
        if not name or not nodes or fields.get("level", "0") != "0" or "switches" in fields:
            continue
        kind = "leaf" if "switchname" in fields else "block"
        try:
            found[f"{kind} {name}"] = expand(nodes)
        except HostlistError:
            continue
    return found


def of_topology(text: str, nodes: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Node to its leaf switch and block, for ``daemon.policy.groups.joined``.

    Names that are no nodes are left out, and so is a group that is the whole cluster: it tells
    no cause from another.
    """
    known = set(nodes)
    found: dict[str, list[str]] = {}
    for label, members in leaf_switches(text).items():
        inside = known.intersection(members)
        if GROUP_NODES_MIN <= len(inside) < len(known):
            for name in inside:
                found.setdefault(name, []).append(label)
    return {name: tuple(sorted(labels)) for name, labels in found.items()}
