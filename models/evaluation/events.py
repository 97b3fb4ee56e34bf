"""What there was to find: failures, time in service, and what a scorer said when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from models.dataset import Progress, frames
from models.evaluation.rivals import Scorer
from models.features.arrays import Floats, Times
from models.labels import UNKNOWN_REPAIR_NS, Labels
from models.simulate.faults import Truth
from models.telemetry import Telemetry

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Target:
    """One failure of one node that could have been told."""

    node: str
    onset_ns: int
    end_ns: int
    fault_class: str
    predictable: bool | None  # None: nobody knows


def from_truth(truths: Sequence[Truth]) -> list[Target]:
    """Targets of a truth.csv. A failure of a node that has already failed is not another one."""
    found: list[Target] = []
    until: dict[str, int] = {}
    for one in sorted(truths, key=lambda one: one.onset_ns):
        end_ns = one.repaired_ns or one.onset_ns + UNKNOWN_REPAIR_NS
        if one.onset_ns >= until.get(one.node, 0):
            found.append(Target(one.node, one.onset_ns, end_ns, one.fault_class, one.predictable))
        until[one.node] = max(until.get(one.node, 0), end_ns)
    return found


def from_labels(labels: Labels) -> list[Target]:
    """Targets of mined labels, where no truth is known."""
    return [
        Target(one.entity.node, one.onset_ns, one.end_ns, one.cause, None)
        for one in labels.failures
    ]


@dataclass
class Record:
    """Scores of every scorer at every step: ``scores[name]`` [times, nodes]."""

    times_ns: Times
    nodes: list[str]
    scores: dict[str, Floats]
    service: Mask  # [times, nodes]: in service, heard of, and so open to an alarm
    targets: list[Target] = field(default_factory=list)

    def onsets(self) -> dict[int, list[Target]]:
        """Targets by node number, by onset."""
        place = {name: i for i, name in enumerate(self.nodes)}
        found: dict[int, list[Target]] = {}
        for one in sorted(self.targets, key=lambda one: one.onset_ns):
            if one.node in place:
                found.setdefault(place[one.node], []).append(one)
        return found

    def coming(self, least_ns: int, most_ns: int) -> Mask:
        """[times, nodes]: a target lies in (time + least, time + most]."""
        result = np.zeros(self.service.shape, bool)
        for node, targets in self.onsets().items():
            for one in targets:
                gap = one.onset_ns - self.times_ns
                result[(gap > least_ns) & (gap <= most_ns), node] = True
        return result


def record(
    telemetry: Telemetry,
    scorers: Sequence[Scorer],
    targets: list[Target],
    labels: Labels,
    step_ns: int,
    progress: Progress | None = None,
) -> Record:
    """One pass over the directory; every scorer looks at the same frames."""
    times: list[int] = []
    place: dict[str, int] = {}
    rows: dict[str, list[tuple[NDArray[np.int64], Floats]]] = {one.name: [] for one in scorers}
    heard: list[NDArray[np.int64]] = []
    looked_at = {kind for one in scorers for kind in getattr(one, "kinds", ())}
    kinds = tuple(sorted({"gpu", "node"} | looked_at))
    for now_ns, frame in frames(telemetry, step_ns, kinds, progress):
        times.append(now_ns)
        names = {name for part in frame.kinds.values() for name in part.nodes}
        for name in sorted(names):
            place.setdefault(name, len(place))
        heard.append(np.array([place[name] for name in names], np.int64))
        for scorer in scorers:
            listed, scores = scorer.nodes(frame)
            at = np.array([place[name] for name in listed], np.int64)
            rows[scorer.name].append((at, np.asarray(scores, np.float64)))
    shape = (len(times), len(place))
    matrices: dict[str, Floats] = {}
    for name, parts in rows.items():
        matrix = np.zeros(shape, np.float32)
        for step, (at, scores) in enumerate(parts):
            matrix[step, at] = scores
        matrices[name] = matrix
    service = np.zeros(shape, bool)
    for step, at in enumerate(heard):
        service[step, at] = True
    result = Record(np.array(times, np.int64), list(place), matrices, service, targets)
    _take_out(result, labels)
    return result


def _take_out(result: Record, labels: Labels) -> None:
    """Nodes that have failed, or are away by plan or by us, are not open to an alarm."""
    place = {name: i for i, name in enumerate(result.nodes)}
    spans = [(one.node, one.onset_ns, one.end_ns) for one in result.targets]
    # Planned absence is known to the scheduler; what people noticed late is not.
    spans += [(o.node, o.begin_ns, o.end_ns) for o in labels.away if o.why in ("planned", "ours")]
    for node, begin_ns, end_ns in spans:
        if node in place:
            inside = (result.times_ns >= begin_ns) & (result.times_ns < end_ns)
            result.service[inside, place[node]] = False
