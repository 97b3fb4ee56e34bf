"""Which nodes run other versions than their peers: driver, VBIOS, firmware, kernel.

Peers are parts of one model: a GPU's VBIOS is compared with those of the same GPU model, a network
card's firmware with cards of the same board, driver and kernel with nodes of the same GPUs, the
BIOS with machines of the same product. Where a site declares which versions are good, these are the
measure instead of the majority. Pure: what was told in, groups out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

# What is good: by the code of a version, patterns of models, each with patterns of versions.
Declared = Mapping[str, Mapping[str, tuple[str, ...]]]

# What a version is compared within: the code of the reading that names the model, by device
# or for the whole node.
_PEERS = {"vbios": "model", "nic_firmware": "nic_board", "bios": "product"}
_MODELS = frozenset(_PEERS.values())
VERSION_KINDS = ("driver", "nvml", "vbios", "kernel", "bios", "nic_firmware", "topology")
# Told at least daily: what was not told for so long beside its like is a part that is gone.
_GONE_NS = 50 * 3600 * 10**9


@dataclass(frozen=True, slots=True)
class Reading:
    """A version as it is now. ``since_ns`` is when it was first told, ``before`` what was told
    before it (empty: nothing else was ever seen)."""

    node: str
    code: str
    device: str
    text: str
    since_ns: int
    seen_ns: int
    before: str = ""


@dataclass(frozen=True, slots=True)
class Other:
    """A version that is not the usual one of its group, and who runs it since when (the newest
    of them)."""

    text: str
    nodes: tuple[str, ...]
    parts: int
    since_ns: int
    before: str


@dataclass(frozen=True, slots=True)
class Group:
    """One kind of version among parts of one ``model``. ``usual`` is what most of the parts run;
    without a ``clear`` majority it is only the commonest. With ``declared`` versions ``usual`` is
    the commonest of these, or says which they are, and ``others`` are all that are not."""

    code: str
    model: str
    usual: str
    nodes: int
    parts: int
    usual_parts: int
    clear: bool
    others: tuple[Other, ...]
    declared: tuple[str, ...] = ()


def groups(
    readings: Iterable[Reading],
    nodes: Iterable[str] | None = None,
    declared: Declared | None = None,
) -> list[Group]:
    """Every kind of version by model, those with differences first. ``nodes``: only of these."""
    known = None if nodes is None else frozenset(nodes)
    current = _current(one for one in readings if known is None or one.node in known)
    models = {(one.node, one.code, one.device): one.text for one in current if one.code in _MODELS}
    by_node = _gpus_of_nodes(models)
    members: dict[tuple[str, str], list[Reading]] = {}
    for one in current:
        if one.code not in _MODELS:
            members.setdefault((one.code, _model(one, models, by_node)), []).append(one)
    found = [
        _group(code, model, parts, _good(code, model, declared or {}))
        for (code, model), parts in members.items()
    ]
    return sorted(found, key=lambda one: (not one.others, one.code, one.model))


def _current(readings: Iterable[Reading]) -> list[Reading]:
    """Without parts that are gone: others of the same node and kind were told long after them."""
    every = list(readings)
    newest: dict[tuple[str, str], int] = {}
    for one in every:
        key = (one.node, one.code)
        newest[key] = max(newest.get(key, 0), one.seen_ns)
    return [one for one in every if newest[one.node, one.code] - one.seen_ns <= _GONE_NS]


def _gpus_of_nodes(models: Mapping[tuple[str, str, str], str]) -> dict[str, str]:
    """Node -> the GPU models in it, in words."""
    found: dict[str, set[str]] = {}
    for (node, code, _), text in models.items():
        if code == "model":
            found.setdefault(node, set()).add(text)
    return {node: " + ".join(sorted(names)) for node, names in found.items()}


def _model(
    one: Reading, models: Mapping[tuple[str, str, str], str], by_node: Mapping[str, str]
) -> str:
    peers = _PEERS.get(one.code)
    if peers is None:
        return by_node.get(one.node, "no GPU")
    return models.get((one.node, peers, one.device), "unknown model")


def _good(code: str, model: str, declared: Declared) -> tuple[str, ...]:
    """The patterns of good versions of ``model``: those of the first pattern that it matches."""
    rows = declared.get(code, {})
    return next((good for pattern, good in rows.items() if fnmatchcase(model, pattern)), ())


def _group(code: str, model: str, parts: list[Reading], declared: tuple[str, ...]) -> Group:
    counts = Counter(one.text for one in parts)
    # Of equally common ones the one that stands longest: the newcomers are the change.
    first_ns: dict[str, int] = {}
    for one in parts:
        first_ns[one.text] = min(first_ns.get(one.text, one.since_ns), one.since_ns)
    good = {text for text in counts if any(fnmatchcase(text, one) for one in declared)}
    commonest = sorted(counts, key=lambda text: (-counts[text], first_ns[text], text))
    usual = next((text for text in commonest if text in good or not declared), "")
    good = good or {usual}
    others = []
    for text in sorted(counts, key=lambda text: (-counts[text], text)):
        if text in good:
            continue
        differ = [one for one in parts if one.text == text]
        newest = max(differ, key=lambda one: (one.since_ns, one.node))
        names = tuple(sorted({one.node for one in differ}))
        others.append(Other(text, names, len(differ), newest.since_ns, newest.before))
    return Group(
        code,
        model,
        usual or " or ".join(declared),
        len({one.node for one in parts}),
        len(parts),
        sum(counts[text] for text in good),
        bool(declared) or counts[usual] * 2 > len(parts),
        tuple(others),
        declared,
    )
