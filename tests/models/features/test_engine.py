"""The engine as a whole: exact restart, no trace of batching, no trace of asking."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.sample import Sample, sample
from models.features import FeatureEngine, FeatureFrame, features
from models.features.catalogue import CATALOGUE
from models.simulate import Fleet
from models.voices import Entity

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def history(ticks: int = 60, seconds: int = 300) -> list[tuple[int, list[Sample]]]:
    fleet = Fleet(5, 4, seed=4, start_ns=START, operator=True)
    fleet.sicken("n2", 1, "heat", lead_seconds=4 * 3600)
    fleet.sicken("n3", 0, "hbm", lead_seconds=3 * 3600)
    fleet.sicken("n4", 2, "nvlink", lead_seconds=2 * 3600)
    fleet.sicken("n1", None, "dimm", lead_seconds=2 * 3600)
    return [
        (fleet.now_ns + seconds * SECOND, fleet.tick(fleet.now_ns + seconds * SECOND))
        for _ in range(ticks)
    ]


HISTORY = history()


def same(left: FeatureFrame, right: FeatureFrame) -> bool:
    assert left.kinds.keys() == right.kinds.keys()
    for kind, frame in left.kinds.items():
        other = right.kinds[kind]
        assert frame.entities == other.entities
        assert frame.names == other.names
        assert frame.values.tobytes() == other.values.tobytes()
    return True


def run(engine: FeatureEngine, some: list[tuple[int, list[Sample]]]) -> FeatureEngine:
    for now_ns, samples in some:
        engine.observe(samples, now_ns)
    return engine


END = HISTORY[-1][0]
ENGINE = run(FeatureEngine(), HISTORY)
WHOLE = ENGINE.frame(END)
WHOLE_DUMP = ENGINE.dump()
# The first two and a half hours, two of the four faults in them, for what is tried many times.
FIRST = HISTORY[:30]
FIRST_FRAME = run(FeatureEngine(), FIRST).frame(FIRST[-1][0])


@settings(max_examples=12, deadline=None)
@given(st.integers(0, len(HISTORY)))
def test_restart_in_the_middle_is_bit_equal(cut: int) -> None:
    before = run(FeatureEngine(), HISTORY[:cut])
    after = FeatureEngine()
    after.load(before.dump())
    run(after, HISTORY[cut:])
    assert same(after.frame(END), WHOLE)
    assert after.dump() == WHOLE_DUMP


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_cutting_of_calls_leaves_no_trace(data: st.DataObject) -> None:
    engine = FeatureEngine()
    for now_ns, samples in FIRST:
        by_node: dict[str, list[Sample]] = defaultdict(list)
        for one in samples:
            by_node[one.tag("node")].append(one)
        for node in data.draw(st.permutations(sorted(by_node))):
            engine.observe(by_node[node], now_ns)
            if data.draw(st.booleans()):
                engine.flush()
    mine = engine.frame(FIRST[-1][0])
    for kind, frame in mine.kinds.items():
        other = FIRST_FRAME.kinds[kind]
        order = {entity: row for row, entity in enumerate(other.entities)}
        rows = [order[entity] for entity in frame.entities]
        assert frame.values.tobytes() == other.values[rows].tobytes()


def test_asking_leaves_no_trace() -> None:
    engine = FeatureEngine()
    for now_ns, samples in HISTORY:
        engine.observe(samples, now_ns)
        engine.frame(now_ns)
        engine.dump()
    assert same(engine.frame(END), WHOLE)
    assert same(engine.frame(END), WHOLE)


def test_columns_give_what_samples_give() -> None:
    by_sample, by_column = FeatureEngine(), FeatureEngine()
    for now_ns, samples in HISTORY:
        gpus = [one for one in samples if one.measurement == "gpu"]
        by_sample.observe(gpus, now_ns)
        names = sorted({name for one in gpus for name in one.fields})
        fields = {
            name: np.array([one.fields.get(name, np.nan) for one in gpus], float) for name in names
        }
        times = np.array([one.time_ns for one in gpus])
        by_column.observe_columns(
            "gpu", [one.tags for one in gpus], np.arange(len(gpus)), times, fields
        )
    assert same(by_sample.frame(END), by_column.frame(END))


def test_columns_of_a_whole_history_in_one_call() -> None:
    gpus = [one for _, samples in HISTORY for one in samples if one.measurement == "gpu"]
    one_call, many = FeatureEngine(), FeatureEngine()
    fields = {
        name: np.array([one.fields.get(name, np.nan) for one in gpus], float)
        for name in sorted({name for one in gpus for name in one.fields})
    }
    times = np.array([one.time_ns for one in gpus])
    one_call.observe_columns("gpu", [one.tags for one in gpus], np.arange(len(gpus)), times, fields)
    for now_ns, samples in HISTORY:
        many.observe([one for one in samples if one.measurement == "gpu"], now_ns)
    assert same(one_call.frame(END), many.frame(END))


def test_every_feature_is_in_the_registry_with_words() -> None:
    for spec in CATALOGUE:
        described = features(spec.kind)
        assert len({one.name for one in described}) == len(described)
        for one in described:
            assert one.unit
            assert len(one.meaning) > 5
            assert "{" not in one.meaning + one.unit
    for kind, frame in WHOLE.kinds.items():
        assert frame.names == tuple(one.name for one in features(kind))


def test_neither_names_nor_the_clock_are_features() -> None:
    """The same history under other names, 200 days and 7 hours later, gives the same."""
    later = 200 * 86400 * SECOND + 7 * 3600 * SECOND
    moved = FeatureEngine()
    for now_ns, samples in HISTORY:
        renamed = []
        for one in samples:
            tags = tuple((k, f"x{v}" if k == "node" else v) for k, v in one.tags)
            fields = dict(one.fields)
            if "boot_time_seconds" in fields:
                fields["boot_time_seconds"] = float(fields["boot_time_seconds"]) + later / 1e9
            renamed.append(Sample(one.measurement, tags, fields, one.time_ns + later))
        moved.observe(renamed, now_ns + later)
    frame = moved.frame(END + later)
    for kind, one in frame.kinds.items():
        np.testing.assert_allclose(one.values, WHOLE.kinds[kind].values, rtol=1e-5, equal_nan=True)


def test_unknown_text_and_nonsense_cost_nothing() -> None:
    engine = FeatureEngine()
    engine.observe(
        [
            sample("gpu", 1, {"temperature_celsius": "hot"}, node="n1", gpu="0", uuid="u"),
            sample("gpu", 1, {"temperature_celsius": 40.0}, gpu="0"),
            sample("gpu", 2, {"temperature_celsius": 40.0}, node="n1"),
            sample("what", 1, {"x": 1.0}, node="n1"),
            sample("event", 1, {"text": "x", "severity": 1.0}, kind="xid", code="79"),
            sample("host", 1, {}, node="n1"),
        ],
        1,
    )
    frame = engine.frame(2)
    assert [one for one in frame.entities if one.kind == "gpu"] == [Entity("gpu", "n1", "gpu0")]


@pytest.mark.parametrize("cut", [0, 10, 300, -40, -1])
def test_damaged_checkpoint_is_refused(cut: int) -> None:
    engine = run(FeatureEngine(), HISTORY[:3])
    saved = engine.dump()
    fresh = FeatureEngine()
    with pytest.raises(ValueError, match="checkpoint"):
        fresh.load(saved[:cut])
    assert fresh.frame(END).entities == []


def test_checkpoint_of_other_statistics_is_refused() -> None:
    engine = run(FeatureEngine(), HISTORY[:3])
    engine.tables["gpu"].arrays.add("new", (), 0.0)
    with pytest.raises(ValueError, match="other statistics"):
        FeatureEngine().load(engine.dump())


def test_memory_does_not_grow_with_readings() -> None:
    """A memory module has a row once an event names it: that is a part more, and bounded."""
    engine = run(FeatureEngine(), HISTORY[:5])
    engine.flush()
    tables = [table for kind, table in engine.tables.items() if kind != "dimm"]
    before = [(len(table), table.arrays.capacity) for table in tables]
    run(engine, HISTORY[5:])
    engine.flush()
    assert [(len(table), table.arrays.capacity) for table in tables] == before


def test_two_parts_that_claim_one_slot_in_one_call_are_survived() -> None:
    engine = FeatureEngine()
    for uuid in ("a", "b", "a"):
        one = sample("gpu", 1, {"power_watts": 1.0}, node="n1", gpu="0", uuid=uuid)
        two = sample("gpu", 1, {"power_watts": 2.0}, node="n1", gpu="0", uuid="c")
        engine.observe([one, two], 1)
    assert len(engine.frame(2).entities) == 1
