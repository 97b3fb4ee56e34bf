"""Clocks that ran ahead and were set right: nothing stays unheard until they have come so far."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from collectors.events import event
from collectors.sample import Sample, sample, source_reading
from models.features import FeatureEngine
from models.rules import Rules
from models.silence import SilenceTracker
from models.voices import Entity
from models.watch import Watch

SECOND = 10**9
HOUR = 3600 * SECOND
NOW = 1_796_000_000 * SECOND
AHEAD = 2 * HOUR
GPU = Entity("gpu", "n1", "gpu0")


def gpu(time_ns: int, celsius: float, errors: float = 5.0) -> Sample:
    fields = {"temperature_celsius": celsius, "ecc_corrected_total": errors}
    return sample("gpu", time_ns, fields, node="n1", gpu="0", uuid="GPU-a")


def run(
    engine: FeatureEngine, begin_ns: int, seconds: int, ahead_ns: int, celsius: float = 50.0
) -> int:
    """Readings each ten seconds, for so long, of a clock that is so far ahead; the end."""
    for at_ns in range(begin_ns, begin_ns + seconds * SECOND, 10 * SECOND):
        engine.observe([gpu(at_ns + ahead_ns, celsius)], at_ns)
    engine.flush()
    return begin_ns + seconds * SECOND


def about(engine: FeatureEngine, now_ns: int, entity: Entity = GPU) -> dict[str, float]:
    return engine.frame(now_ns).about(entity)


def test_a_node_whose_clock_is_set_right_is_heard_at_once() -> None:
    engine = FeatureEngine()
    now_ns = run(engine, NOW, 3600, 0)
    now_ns = run(engine, now_ns, 600, AHEAD)
    now_ns = run(engine, now_ns, 600, 0, celsius=70.0)
    found = about(engine, now_ns)
    assert found["temperature.now"] == 70.0
    assert 50 + 20 * (1 - np.exp(-1)) == pytest.approx(found["temperature.mean_10m"], abs=0.5)
    assert found["presence.silent_seconds"] == 10.0
    assert found["ecc_corrected.count_ever"] == 0
    assert engine.late_readings == 0


def test_an_event_after_it_is_an_episode_of_its_own() -> None:
    engine = FeatureEngine()
    now_ns = run(engine, NOW, 60, AHEAD)
    pci = "0000:9b:00"
    listed = event("n1", "inventory", "gpu", now_ns, text="gpu=0", severity=0, device=pci)
    early = event("n1", "xid", "48", now_ns + AHEAD, text="x", severity=3, device=pci)
    engine.observe([listed, early], now_ns)
    now_ns = run(engine, now_ns, 4000, 0)
    again = event("n1", "xid", "48", now_ns, text="x", severity=3, device=pci)
    engine.observe([again], now_ns)
    assert about(engine, now_ns)["failure.episodes_ever"] == 2


def test_a_clock_that_stays_ahead_is_believed_and_its_spool_sets_nothing_back() -> None:
    engine = FeatureEngine()
    now_ns = run(engine, NOW, 3600, AHEAD)
    before = about(engine, now_ns)
    engine.observe([gpu(now_ns + AHEAD - 600 * SECOND, 90.0, 1.0)], now_ns)
    assert about(engine, now_ns) == before
    assert engine.late_readings == 1


def test_a_spool_of_a_clock_that_is_right_sets_nothing_back() -> None:
    engine = FeatureEngine()
    now_ns = run(engine, NOW, 3600, 0)
    before = about(engine, now_ns)
    for late_ns in range(600 * SECOND, 0, -10 * SECOND):
        engine.observe([gpu(now_ns - 10 * SECOND - late_ns, 90.0, 1.0)], now_ns)
    assert about(engine, now_ns) == before
    assert engine.late_readings == 60


def chassis(engine: FeatureEngine, at_ns: int, celsius: float) -> None:
    fields = {"value": celsius, "present": 1.0, "critical": 0.0}
    reading = sample("bmc", at_ns, fields, node="n1", sensor="Inlet Temp", kind="celsius")
    engine.observe([reading], at_ns)


def restarted(engine: FeatureEngine) -> FeatureEngine:
    fresh = FeatureEngine()
    fresh.load(engine.dump())
    return fresh


def running(engine: FeatureEngine) -> FeatureEngine:
    return engine


@pytest.mark.parametrize("then", [running, restarted])
def test_what_the_head_reads_itself_is_heard_when_its_clock_is_set_back(
    then: Callable[[FeatureEngine], FeatureEngine],
) -> None:
    """Its readings were never ahead of its own clock: the judgement tells."""
    watch = Watch(Rules(), SilenceTracker(), FeatureEngine())
    for at_ns in range(NOW + AHEAD, NOW + AHEAD + 600 * SECOND, 10 * SECOND):
        chassis(watch.features, at_ns, 24.0)
        watch.judge(at_ns, {"n1": 1})
    watch = Watch(Rules(), SilenceTracker(), then(watch.features))
    now_ns = NOW + 700 * SECOND
    watch.judge(now_ns, {"n1": 1})
    chassis(watch.features, now_ns + 10 * SECOND, 35.0)
    watch.judge(now_ns + 10 * SECOND, {"n1": 1})
    found = about(watch.features, now_ns + 10 * SECOND, Entity("sensor", "n1", "Inlet Temp"))
    assert found["sensor.now"] == 35.0
    assert found["presence.silent_seconds"] == 0


def test_a_judgement_of_a_steady_clock_changes_nothing() -> None:
    asked, left = FeatureEngine(), FeatureEngine()
    for at_ns in range(NOW, NOW + 600 * SECOND, 10 * SECOND):
        for engine in (asked, left):
            engine.observe([gpu(at_ns, 50.0 + at_ns % 7)], at_ns)
        asked.nothing_later(at_ns + SECOND)
    assert about(asked, NOW + HOUR) == about(left, NOW + HOUR)


def nvml(at_ns: int, *, up: bool) -> Sample:
    return source_reading("n1", "nvml", at_ns, up=up, duration_seconds=0.1, age_seconds=0.0)


def test_a_late_reading_of_a_source_leaves_its_means_alone() -> None:
    engine = FeatureEngine()
    host = {"load_1m": 1.0}
    for at_ns in range(NOW, NOW + 600 * SECOND, 10 * SECOND):
        engine.observe([nvml(at_ns, up=True)], at_ns)
        engine.observe([sample("host", at_ns, host, node="n1")], at_ns)
    node = Entity("node", "n1")
    before = about(engine, NOW + HOUR, node)
    late = nvml(NOW - 48 * HOUR, up=False)
    engine.observe([late], NOW + 600 * SECOND)
    assert about(engine, NOW + HOUR, node) == before
    assert engine.late_readings == 1
