"""Which nodes share a rack, a leaf switch, a power feed: from the configuration and the fabric.

A group's name says its kind first: ``rack r07``, ``pdu a3``, ``leaf leaf-0-0``. Policy counts in
groups (common causes, caps), and what happens to a whole group is told once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from collectors.slurm.hostlist import HostlistError, expand

Groups = Mapping[str, tuple[str, ...]]


def configured(sections: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Node -> its groups, from ``[groups.KIND] NAME = "host list"``. Raises ValueError.

    >>> configured({"rack": {"r1": "n[1-2]"}})
    {'n1': ('rack r1',), 'n2': ('rack r1',)}
    """
    found: dict[str, list[str]] = {}
    for kind, groups in sections.items():
        for name, hosts in groups.items():
            try:
                nodes = expand(hosts)
            except HostlistError as error:
                raise ValueError(f"{kind}.{name}: {error}") from error
            for node in nodes:
                found.setdefault(node, []).append(f"{kind} {name}")
    return {node: tuple(groups) for node, groups in found.items()}


def joined(*parts: Groups) -> dict[str, tuple[str, ...]]:
    """All groups of each node, each once, in the order of the parts."""
    found: dict[str, dict[str, None]] = {}
    for part in parts:
        for node, groups in part.items():
            found.setdefault(node, {}).update(dict.fromkeys(groups))
    return {node: tuple(groups) for node, groups in found.items()}


def of_features(features: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Node -> its rack, where a Slurm feature names one (``rack07``)."""
    found: dict[str, tuple[str, ...]] = {}
    for node, names in features.items():
        racks = tuple(f"rack {name}" for name in names if name.startswith("rack"))
        if racks:
            found[node] = racks
    return found


def of_reservations(reserved: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Node -> the reservation that it stands in, tocsin's own (proofs, soft steps) left out.

    >>> of_reservations({"n1": "course", "n2": "", "n3": "tocsin_soft_1"})
    {'n1': ('reservation course',)}
    """
    return {
        node: (f"reservation {name}",)
        for node, name in reserved.items()
        if name and not name.startswith("tocsin_")
    }
