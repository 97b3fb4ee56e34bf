"""Labels: which part failed when, mined from events, Slurm and operators' words.

What counts: hardware XIDs, a lost GPU, an uncorrected memory error, a node that Slurm lost
unplanned (in accounting: NODE_FAIL), a drain that a person set for a fault. What never counts:
XIDs that a program causes, planned reboots, outages whose reason speaks of software, our own
drains, and *fleet events* (many nodes down within minutes have one common cause, and no part of
them failed).

A failure lasts from its onset until the node is back. Readings of that time are neither
good nor bad examples: nobody predicts what has happened. The time after one of *our* drains
is censored as well: without the drain the node might have failed or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from collectors.sample import Sample
from models.features.arrays import Times
from models.features.catalogue import HARDWARE_XIDS
from models.features.engine import address, disk_of, slurm_failure
from models.reasons import Kind, classify
from models.verdicts import KIND as VERDICT
from models.verdicts import Verdict, newest, part_named, verdict_of
from models.voices import Entity

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS

FLEET_WINDOW_NS = 600 * SECOND_NS  # nodes that go down within 10 minutes of each other ...
FLEET_LEAST_NODES = 3  # ... and are this many ...
FLEET_LEAST_SHARE = 0.05  # ... and this share of all nodes, have one cause
UNKNOWN_REPAIR_NS = 24 * HOUR_NS
OPERATOR_LAG_NS = 24 * HOUR_NS  # people notice about a day late (GWDG: median one day)

_PLANNED = re.compile(
    r"plan|maint|reboot|upgrade|update|kernel|firmware|reserv|test|move|burn|install", re.I
)
_OURS = "tocsin:"
_INVENTORY_GPU = re.compile(r"\bgpu=(\d+)")


@dataclass(frozen=True, slots=True)
class Failure:
    """``entity`` failed at ``onset_ns`` and was back at ``end_ns``. ``cause`` in few words."""

    entity: Entity
    onset_ns: int
    end_ns: int
    cause: str


@dataclass(frozen=True, slots=True)
class Away:
    """A node was out of service, or in our hands, from ``begin_ns`` to ``end_ns``."""

    node: str
    begin_ns: int
    end_ns: int
    why: str


@dataclass(frozen=True)
class Labels:
    """Failures by onset, times that are no examples, and what was set aside as fleet events."""

    failures: tuple[Failure, ...] = ()
    away: tuple[Away, ...] = ()
    fleet_events: tuple[tuple[int, tuple[str, ...]], ...] = ()

    def onsets(self, kind: str) -> dict[Entity, Times]:
        """Sorted onsets of each entity of a kind that failed."""
        found: dict[Entity, list[int]] = {}
        for one in self.failures:
            if one.entity.kind == kind:
                found.setdefault(one.entity, []).append(one.onset_ns)
        return {entity: np.array(sorted(times), np.int64) for entity, times in found.items()}

    def onsets_of_nodes(self) -> dict[Entity, Times]:
        """As ``onsets("node")``, with the failures of parts that are no GPU among them."""
        found: dict[Entity, list[int]] = {}
        for one in self.failures:
            if one.entity.kind != "gpu":
                found.setdefault(Entity("node", one.entity.node), []).append(one.onset_ns)
        return {entity: np.array(sorted(times), np.int64) for entity, times in found.items()}

    def node_onsets(self) -> dict[str, Times]:
        """Sorted onsets of all failures of each node, whatever the part."""
        found: dict[str, list[int]] = {}
        for one in self.failures:
            found.setdefault(one.entity.node, []).append(one.onset_ns)
        return {node: np.array(sorted(times), np.int64) for node, times in found.items()}

    def spans(self) -> dict[str, list[tuple[int, int]]]:
        """Per node the times that are no examples: failed, planned away, or ours."""
        found: dict[str, list[tuple[int, int]]] = {}
        for failure in self.failures:
            span = (failure.onset_ns, failure.end_ns)
            found.setdefault(failure.entity.node, []).append(span)
        for one in self.away:
            found.setdefault(one.node, []).append((one.begin_ns, one.end_ns))
        return found


@dataclass
class _Raw:
    entity: Entity
    time_ns: int
    cause: str


@dataclass
class LabelMiner:
    """Takes samples of any kind in order of time; :meth:`labels` gives what they mean.

    An operator's word (event ``verdict``) that a case was right is a failure at its onset; that
    a fact was wrong takes back failures of that node within a day of it. That a risk was wrong
    takes nothing back: that no failure follows says it already.
    """

    nodes: set[str] = field(default_factory=set)
    _raw: list[_Raw] = field(default_factory=list)
    _back: dict[str, list[int]] = field(default_factory=dict)
    _away: list[tuple[str, int, str]] = field(default_factory=list)
    _gpu_at: dict[tuple[str, str], str] = field(default_factory=dict)
    _verdicts: list[Verdict] = field(default_factory=list)

    def observe(self, one: Sample) -> None:
        """Looks at one sample; only ``event`` and ``slurm_event`` matter."""
        node = one.tag("node")
        if not node:
            return
        self.nodes.add(node)
        if one.measurement == "event":
            self._event(one, node)
        elif one.measurement == "slurm_event":
            self._slurm(one, node)

    def _event(self, one: Sample, node: str) -> None:
        kind, code, device = one.tag("kind"), one.tag("code"), one.text("device")
        if kind == "inventory":
            found = _INVENTORY_GPU.search(one.text("text"))
            if found:
                self._gpu_at[node, address(device)] = f"gpu{int(found.group(1))}"
        elif kind == "gpu_lost" or (kind == "xid" and code in HARDWARE_XIDS):
            gpu = device if device.startswith("gpu") else self._gpu_at.get((node, address(device)))
            entity = Entity("gpu", node, gpu) if gpu else Entity("node", node)
            self._raw.append(_Raw(entity, one.time_ns, f"{kind} {code}"))
        elif kind in ("mce", "edac") and code in ("uncorrected", "ue"):
            self._raw.append(_Raw(Entity("memory", node), one.time_ns, f"{kind} {code}"))
        elif kind == "link" and code == "down":
            self._raw.append(_Raw(part_named(node, device), one.time_ns, "link down"))
        elif kind == "sel" and (one.number("severity") or 0.0) >= 2:
            part = "supply" if code == "power_supply_failure" else code.partition("_")[0]
            if part in ("fan", "supply"):
                self._raw.append(_Raw(Entity("chassis", node), one.time_ns, part))
        elif kind == "filesystem" and code == "readonly":
            disk = part_named(node, disk_of(device))
            self._raw.append(_Raw(disk, one.time_ns, "file system read-only"))
        elif kind == VERDICT:
            self._verdicts += [said for said in [verdict_of(one)] if said is not None]
        elif kind == "reboot":
            self._back.setdefault(node, []).append(one.time_ns)

    def _slurm(self, one: Sample, node: str) -> None:
        code, reason = one.tag("code"), one.text("reason")
        meaning = slurm_failure(one)
        if code == "node_fail" or (meaning and meaning[0] == "slurm_fail"):
            self._raw.append(_Raw(Entity("node", node), one.time_ns, "node down"))
        elif meaning:
            self._back.setdefault(node, []).append(one.time_ns)
        elif reason.startswith(_OURS):
            self._away.append((node, one.time_ns, "ours"))
        elif code in ("reboot", "maintenance", "powered_down") or _PLANNED.search(reason):
            self._away.append((node, one.time_ns, "planned"))
        elif code in ("drain", "down", "fail") and classify(reason) is Kind.SOFTWARE:
            self._away.append((node, one.time_ns, "software"))
        elif (code == "drain" and reason) or (
            code in ("down", "fail") and classify(reason) is Kind.HARDWARE
        ):
            self._raw.append(_Raw(Entity("node", node), one.time_ns, "drained by a person"))

    def labels(self) -> Labels:
        """Everything seen so far, as labels."""
        said = newest(self._verdicts)
        told = [_Raw(one.entity, one.onset_ns, "called right") for one in said if one.right]
        raw = sorted([*self._raw, *told], key=lambda one: (one.time_ns, one.entity))
        fleet, kept = _fleet_events(raw, len(self.nodes))
        ours = [(node, at_ns) for node, at_ns, why in self._away if why == "ours"]
        failures: list[Failure] = []
        open_until: dict[str, int] = {}
        for one in kept:
            node = one.entity.node
            if one.time_ns < open_until.get(node, 0):
                continue  # the node has already failed and is not yet back
            end_ns = self._end(node, one.time_ns)
            open_until[node] = end_ns
            drained = one.cause == "drained by a person"
            if drained and any(n == node and 0 <= one.time_ns - t < HOUR_NS for n, t in ours):
                continue  # it is our own drain, relabelled
            failures.append(Failure(one.entity, one.time_ns, end_ns, one.cause))
        away = [Away(n, at_ns, self._end(n, at_ns), why) for n, at_ns, why in self._away]
        # When a person drained, the fault began before: that time is no good example.
        away += [
            Away(one.entity.node, one.onset_ns - OPERATOR_LAG_NS, one.onset_ns, "lag")
            for one in failures
            if one.cause == "drained by a person"
        ]
        for at_ns, nodes in fleet:
            away += [Away(node, at_ns, self._end(node, at_ns), "fleet event") for node in nodes]
        found = Labels(tuple(failures), tuple(away), tuple(fleet))
        for word in said:
            if not word.right and word.voice == "fact":
                found = corrected(found, {word.entity.node: word.onset_ns})
        return found

    def _end(self, node: str, onset_ns: int) -> int:
        """When the node was back after ``onset_ns``."""
        times = [at_ns for at_ns in self._back.get(node, ()) if at_ns > onset_ns]
        return min(times) if times else onset_ns + UNKNOWN_REPAIR_NS


def _fleet_events(
    raw: list[_Raw], nodes: int
) -> tuple[list[tuple[int, tuple[str, ...]]], list[_Raw]]:
    """Splits node losses with one common cause from the rest."""
    downs = [one for one in raw if one.cause == "node down"]
    least = max(FLEET_LEAST_NODES, FLEET_LEAST_SHARE * nodes)
    fleet: list[tuple[int, tuple[str, ...]]] = []
    common: set[int] = set()
    first = 0
    while first < len(downs):
        last = first
        while (
            last + 1 < len(downs)
            and downs[last + 1].time_ns - downs[last].time_ns <= FLEET_WINDOW_NS
        ):
            last += 1
        group = downs[first : last + 1]
        names = tuple(sorted({one.entity.node for one in group}))
        if len(names) >= least:
            fleet.append((group[0].time_ns, names))
            common |= {id(one) for one in group}
        first = last + 1
    return fleet, [one for one in raw if id(one) not in common]


def mine(samples: Iterable[Sample]) -> Labels:
    """Labels of a history."""
    miner = LabelMiner()
    for one in samples:
        miner.observe(one)
    return miner.labels()


def corrected(labels: Labels, wrong_drains: Mapping[str, int]) -> Labels:
    """``labels`` after operators' verdicts: node -> time of a drain that was called wrong.

    A failure of that node in the day before the drain, or within it, is taken back.
    """
    kept = tuple(
        one
        for one in labels.failures
        if not (
            one.entity.node in wrong_drains
            and -OPERATOR_LAG_NS <= one.onset_ns - wrong_drains[one.entity.node] <= OPERATOR_LAG_NS
        )
    )
    return replace(labels, failures=kept)


def follows(onsets: Times, now_ns: int, least_ns: int, most_ns: int) -> bool:
    """Whether one of the sorted ``onsets`` lies in (now + least, now + most]."""
    low = int(np.searchsorted(onsets, now_ns + least_ns, side="right"))
    return low < len(onsets) and bool(onsets[low] <= now_ns + most_ns)
