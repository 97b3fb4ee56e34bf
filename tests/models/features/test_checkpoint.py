"""Names that did not change are not made JSON again, and a picture stays as it was taken."""

from __future__ import annotations

import io

import pytest

from collectors.events import event
from collectors.sample import Sample, sample
from models.features import FeatureEngine
from models.features.checkpoint import Picture, Room, Writer

NOW_NS = 1_795_000_000_000_000_000
STEP_NS = 30_000_000_000


def readings(now_ns: int, uuid: str = "GPU-1") -> list[Sample]:
    told = {"node": "n1", "gpu": "0", "uuid": uuid}
    return [
        sample("gpu", now_ns, {"temperature_celsius": 40.0, "power_watts": 300.0}, **told),
        sample("host", now_ns, {"load_1m": 1.0}, node="n1"),
    ]


def taken_of(engine: FeatureEngine) -> Picture:
    return engine.take(Room(engine.size_bytes()))


def written(writer: Writer, taken: Picture) -> bytes:
    file = io.BytesIO()
    writer.write(taken, file)
    return file.getvalue()


def test_only_what_changed_is_made_json_again_and_the_file_is_the_same() -> None:
    engine, writer = FeatureEngine(), Writer()
    engine.observe(readings(NOW_NS), NOW_NS)
    assert written(writer, taken_of(engine)) == engine.dump()
    first = writer.made
    engine.observe(readings(NOW_NS + STEP_NS), NOW_NS + STEP_NS)
    assert written(writer, taken_of(engine)) == engine.dump()
    assert writer.made == first
    # A replaced GPU changes its identity and its tags; an event, what was heard.
    engine.observe(readings(NOW_NS + 2 * STEP_NS, "GPU-2"), NOW_NS + 2 * STEP_NS)
    engine.observe([event("n1", "xid", "79", NOW_NS, text="x", severity=3.0)], NOW_NS)
    assert written(writer, taken_of(engine)) == engine.dump()
    assert first < writer.made <= first + 3
    again = FeatureEngine()
    again.load(written(writer, taken_of(engine)))
    assert again.dump() == engine.dump()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_picture_does_not_change_with_later_readings(share: float) -> None:
    """Also where the room is too small: the fleet has grown since it was measured."""
    engine = FeatureEngine()
    engine.observe(readings(NOW_NS), NOW_NS)
    before = engine.dump()
    taken = engine.take(Room(int(share * engine.size_bytes())))
    engine.observe(readings(NOW_NS + STEP_NS, "GPU-2"), NOW_NS + STEP_NS)
    engine.observe([event("n2", "xid", "79", NOW_NS, text="x", severity=3.0)], NOW_NS)
    engine.flush()
    assert written(Writer(), taken) == before
    assert engine.dump() != before
