"""Readings of which no entity is kept cost nothing, also before the first entity is known."""

from __future__ import annotations

import pytest

from collectors.sample import sample
from models.features import FeatureEngine
from models.features.catalogue import CATALOGUE

STREAMS = [
    (spec.kind, stream) for spec in CATALOGUE for stream in spec.streams if stream.only is not None
]


@pytest.mark.parametrize(("kind", "stream"), STREAMS, ids=lambda one: getattr(one, "name", one))
def test_readings_that_a_stream_passes_over_do_no_harm(kind: str, stream) -> None:  # type: ignore[no-untyped-def]
    engine = FeatureEngine()
    tags = {"node": "n1", **dict.fromkeys(stream.device_tags, "x"), stream.only[0]: "another"}
    engine.observe([sample(stream.measurement, 1_000, {"up": 1.0, "value": 3.0}, **tags)], 1_000)
    frame = engine.frame(2_000)
    assert frame.of(kind) is None or kind == "node"
