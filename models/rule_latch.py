"""What events do to a node's facts: latch one, take one back, name a GPU, start afresh.

Plain functions over :class:`models.rule_state.Node`; all times are UTC nanoseconds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from collectors.sample import Sample
from models.rule_state import Active, Gpu, Node, fact_of
from models.rulebook import Finding
from models.voices import Entity, Remedy

# How many facts, GPUs, addresses of one node are kept: what sends nonsense costs no more.
KEYS_LIMIT = 256
_FORCE = {Remedy.NONE: 0, Remedy.ALERT: 1, Remedy.DRAIN: 2}

Key = tuple[str, str, str]


def latch(
    node: Node,
    key: Key,
    finding: Finding,
    entity: Entity,
    onset_ns: int,
    arrival_ns: int,
    evidence: tuple[str, ...],
) -> None:
    """Makes ``finding`` a fact from ``onset_ns`` on, which holds until something ends it.

    One that holds already keeps its onset (its case is known by it) and gains evidence; only one
    that asks for more takes its place.
    """
    one = node.active.get(key)
    told_ns = min(node.head_time(onset_ns), arrival_ns)
    if one is not None:
        one.again_ns = max(one.again_ns, told_ns)
    if one is not None and _FORCE[one.fact.remedy] >= _FORCE[finding.remedy]:
        one.latched = True
        for text in evidence:
            one.add_evidence(text)
        return
    fact = fact_of(finding, entity, onset_ns, evidence)
    if one is None and len(node.active) >= KEYS_LIMIT:
        return
    node.active[key] = Active(fact, True, arrival_ns, again_ns=told_ns)


def begun_again(node: Node, one: Active, at_ns: int) -> bool:
    """Whether a latched fact was told once more after ``at_ns``, when the node came back: then it
    is one of then, with what was told last for its evidence."""
    if one.again_ns <= at_ns:
        return False
    fact = one.fact
    one.fact = replace(fact, onset_ns=one.again_ns - node.skew_ns, evidence=fact.evidence[-1:])
    one.seen_ns = one.again_ns
    return True


def taken_back(node: Node, key: Key, time_ns: int) -> None:
    """Whoever told the fact says at ``time_ns`` that it is over; it can't be told again."""
    one = node.active.get(key)
    if one is not None and time_ns >= one.fact.onset_ns:
        node.over[key] = max(node.over.get(key, 0), time_ns)
        trim(node.over)
        del node.active[key]


def inventory(node: Node, sample: Sample) -> None:
    """Learns which GPU sits at which PCI address, from an ``event``
    inventory/gpu, and from inventory/count how many GPUs the driver lists."""
    if sample.tag("code") == "count":
        number = sample.text("text").removeprefix("gpus=")
        if number.isdecimal() and len(number) < 6:
            node.listed = int(number)
        return
    pci = sample.text("device")
    words = dict(part.split("=", 1) for part in sample.text("text").split() if "=" in part)
    index = words.get("gpu", "")
    if not pci or not index.isdecimal() or len(index) > 5:
        return
    label = f"gpu{int(index)}"
    if node.inventory.get(pci, ("", 0))[0] == label:
        node.inventory[pci] = (label, max(node.inventory[pci][1], sample.time_ns))
        return
    # An index names one GPU: what stood there before has moved or gone.
    for other, (known, at_ns) in list(node.inventory.items()):
        if known == label and at_ns <= sample.time_ns:
            del node.inventory[other]
    node.inventory[pci] = (label, sample.time_ns)
    trim(node.inventory)
    # Facts that knew only the address keep their name (their case is known by it) and
    # are found by the index from now on.
    for key in [key for key in node.active if key[2] == pci]:
        node.active.setdefault((key[0], key[1], label), node.active[key])
        del node.active[key]


def reboot(node: Node, boot_ns: int) -> None:
    """The node started at ``boot_ns``: what was before is over."""
    if boot_ns <= node.boot_ns:
        return
    node.boot_ns = boot_ns
    node.gpu_since_ns = 0
    for key in [key for key, one in node.active.items() if one.fact.onset_ns < boot_ns]:
        del node.active[key]
    node.gpus = {
        name: Gpu(uuid=gpu.uuid, interval_ns=gpu.interval_ns, had=gpu.had)
        for name, gpu in node.gpus.items()
        if gpu.time_ns < boot_ns
    } | {name: gpu for name, gpu in node.gpus.items() if gpu.time_ns >= boot_ns}
    for source in node.sources.values():
        if source.time_ns < boot_ns:
            source.since_ns = 0


def trim(table: dict[Any, Any]) -> None:
    """Bounds what a node that sends nonsense can make us keep: the oldest entry goes."""
    while len(table) > KEYS_LIMIT:
        del table[next(iter(table))]
