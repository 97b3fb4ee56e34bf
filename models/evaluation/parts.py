"""The scores of a fleet part by part; see models/parts.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.dataset import Progress
from models.evaluation.events import Record, Target, record
from models.evaluation.rivals import Scorer
from models.labels import Labels
from models.parts import Over, Part, in_process, parts_of
from models.telemetry import Telemetry


@dataclass(frozen=True)
class _Record:
    scorers: Sequence[Scorer]
    targets: list[Target]
    labels: Labels
    step_ns: int
    progress: Progress | None

    def __call__(self, part: Part) -> Record:
        telemetry = part.open()
        return record(
            telemetry, self.scorers, self.targets, self.labels, self.step_ns, self.progress
        )


def record_parts(
    telemetry: Telemetry,
    scorers: Sequence[Scorer],
    targets: list[Target],
    labels: Labels,
    step_ns: int,
    progress: Progress | None = None,
    over: Over = in_process,
) -> Record:
    """As :func:`models.evaluation.events.record`, part by part."""
    parts = parts_of(telemetry)
    shown = progress if over is in_process and len(parts) == 1 else None
    found = over(_Record(scorers, targets, labels, step_ns, shown), parts)
    return found[0] if len(found) == 1 else merged(found, targets)


def merged(records: Sequence[Record], targets: list[Target]) -> Record:
    """Records of different nodes as one. At a time that a part has not, it is out of service."""
    times = np.unique(np.concatenate([one.times_ns for one in records]))
    shape = (len(times), sum(len(one.nodes) for one in records))
    scores: dict[str, Any] = {name: np.zeros(shape, np.float32) for name in records[0].scores}
    service = np.zeros(shape, bool)
    first = 0
    for one in records:
        rows = np.searchsorted(times, one.times_ns)
        columns = slice(first, first + len(one.nodes))
        service[rows, columns] = one.service
        for name, matrix in one.scores.items():
            scores[name][rows, columns] = matrix
        first += len(one.nodes)
    names = [node for one in records for node in one.nodes]
    return Record(times, names, scores, service, targets)
