"""An operator's verdict on a case, as the reading that training takes for a label."""

from __future__ import annotations

from collectors.sample import Sample
from daemon.policy.cases import Case
from models.verdicts import Verdict, sample_of
from models.voices import Entity


def word_samples(case: Case, right: bool, now_ns: int) -> list[Sample]:
    """The word on ``case``, said at ``now_ns``; none for a case of the whole fleet."""
    if not case.node:
        return []
    kind = "gpu" if case.device.startswith("gpu") else "node"
    entity = Entity(kind, case.node, case.device)
    return [sample_of(Verdict(case.id, entity, case.voice, case.onset_ns, right, now_ns))]
