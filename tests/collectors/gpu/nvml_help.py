"""What the tests of the ``nvml`` source share."""

from __future__ import annotations

from collectors.sample import Batch, Sample

SECOND = 1_000_000_000
PATIENT = 30.0  # an interpreter starts slowly on a busy machine


def by_gpu(batch: Batch) -> dict[str, Sample]:
    return {one.tag("gpu"): one for one in batch.samples if one.measurement == "gpu"}


def events(batch: Batch, code: str) -> list[Sample]:
    return [one for one in batch.samples if one.tag("code") == code]
