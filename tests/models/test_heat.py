"""A GPU hotter than its siblings at like power is told to people, and never drained for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from collectors.sample import Sample, sample
from models.features import FeatureEngine
from models.heat import CALM_CELSIUS, HOT_CELSIUS, Heat
from models.rival import Rival
from models.rules import Rules
from models.silence import SilenceTracker
from models.simulate import Fleet
from models.voices import Entity, Fact, Remedy
from models.watch import Watch

MINUTE = 60_000_000_000
GPUS = 8


def readings(
    now_ns: int, temperatures: Callable[[int], float], watts: Callable[[int], float]
) -> list[Sample]:
    return [
        sample(
            "gpu",
            now_ns,
            {"temperature_celsius": temperatures(gpu), "power_watts": watts(gpu)},
            node="n1",
            gpu=str(gpu),
            uuid=f"u{gpu}",
        )
        for gpu in range(GPUS)
    ]


def heard(
    heat: Heat,
    minutes: range,
    excess: float,
    engine: FeatureEngine,
    watts: Callable[[int], float] = lambda gpu: 500.0,
) -> list[Fact]:
    """The facts at the last of ``minutes``; gpu3 is ``excess`` above its siblings."""
    found: list[Fact] = []
    for minute in minutes:
        now_ns = minute * MINUTE
        wobble = 0.1 * (minute % 3)
        batch = readings(now_ns, lambda gpu, w=wobble: 60 + w + excess * (gpu == 3), watts)  # type: ignore[misc]
        engine.observe(batch, now_ns)
        found = heat.facts(engine.frame(now_ns, ("gpu",)))
    return found


def test_gpu_20_above_its_siblings_is_told_within_a_quarter_of_an_hour() -> None:
    (fact,) = heard(Heat(), range(1, 16), 20.0, FeatureEngine())
    assert fact.entity == Entity("gpu", "n1", "gpu3")
    assert fact.remedy is Remedy.ALERT
    assert "gpu3" not in fact.text  # who shows it puts the GPU's name before it
    assert "20 celsius above" in fact.evidence[0]


@pytest.mark.parametrize("excess", [0.0, 5.0, HOT_CELSIUS - 1])
def test_warm_card_is_not_told(excess: float) -> None:
    assert heard(Heat(), range(1, 120), excess, FeatureEngine()) == []


def test_two_hot_minutes_are_a_job_that_began() -> None:
    engine, heat = FeatureEngine(), Heat()
    heard(heat, range(1, 60), 0.0, engine)
    assert heard(heat, range(60, 62), 40.0, engine) == []
    assert heard(heat, range(62, 90), 0.0, engine) == []


def test_more_power_than_its_siblings_explains_the_heat() -> None:
    watts = lambda gpu: 700.0 if gpu == 3 else 300.0  # noqa: E731
    assert heard(Heat(), range(1, 60), 30.0, FeatureEngine(), watts) == []


def test_it_is_told_with_the_onset_it_had_until_it_was_calm_for_half_a_day() -> None:
    engine, heat = FeatureEngine(), Heat()
    (first,) = heard(heat, range(1, 30), 20.0, engine)
    (later,) = heard(heat, range(30, 120), (HOT_CELSIUS + CALM_CELSIUS) / 2, engine)
    assert later.onset_ns == first.onset_ns
    (calm,) = heard(heat, range(120, 240), CALM_CELSIUS - 2, engine)
    assert calm.onset_ns == first.onset_ns
    assert heard(heat, range(240, 120 + 13 * 60), CALM_CELSIUS - 2, engine) == []
    (anew,) = heard(heat, range(900, 930), 20.0, engine)
    assert anew.onset_ns > 890 * MINUTE


def test_a_card_that_is_hot_in_each_job_is_one_case() -> None:
    """83 alerts of two GPUs in 19 days, one for each job, is what people stop reading."""
    engine, heat = FeatureEngine(), Heat()
    onsets = set()
    for job in range(5):
        begin = 1 + job * 240
        (fact,) = heard(heat, range(begin, begin + 60), 20.0, engine)
        onsets.add(fact.onset_ns)
        (fact,) = heard(heat, range(begin + 60, begin + 240), 0.0, engine)
        onsets.add(fact.onset_ns)
    assert len(onsets) == 1


def test_what_is_no_longer_read_is_not_told_for_longer_than_what_is_calm() -> None:
    engine, heat = FeatureEngine(), Heat()
    assert heard(heat, range(1, 30), 20.0, engine)
    assert heat.facts(engine.frame((29 + 12 * 60 - 1) * MINUTE, ("gpu",)))
    assert heat.facts(engine.frame((29 + 12 * 60 + 1) * MINUTE, ("gpu",))) == []


def test_what_was_never_told_is_forgotten_at_once() -> None:
    engine, heat = FeatureEngine(), Heat()
    assert heard(heat, range(1, 6), 20.0, engine) == []
    assert heat.hot
    assert heat.facts(engine.frame(200 * MINUTE, ("gpu",))) == []
    assert not heat.hot


def test_the_state_of_before_is_read() -> None:
    heat = Heat()
    heat.load([["n1", "gpu3", 5]])
    assert heat.hot[Entity("gpu", "n1", "gpu3")].since_ns == 5


def test_restart_keeps_what_was_hot() -> None:
    engine, heat = FeatureEngine(), Heat()
    (fact,) = heard(heat, range(1, 30), 20.0, engine)
    again = Heat()
    again.load(heat.dump())
    (same,) = again.facts(engine.frame(30 * MINUTE, ("gpu",)))
    assert same.onset_ns == fact.onset_ns
    again.clear("n1")
    assert again.dump() == []


def test_watch_tells_of_a_card_whose_cooling_fails_before_it_is_lost() -> None:
    fleet = Fleet(4, 8, seed=3, start_ns=0, background=False)
    fleet.sicken("n2", 5, "heat", lead_seconds=3600.0 * 6, strength=2.5)
    watch = Watch(Rules(), SilenceTracker(), FeatureEngine(), [Rival()])
    told: dict[int, set[tuple[str, str]]] = {}
    for minute in range(2, 6 * 60, 2):
        now_ns = minute * MINUTE
        watch.ingest(fleet.tick(now_ns), now_ns)
        facts = watch.judge(now_ns, {f"n{i}": 8 for i in range(1, 5)}).facts
        told[minute] = {(one.entity.node, one.entity.device) for one in facts}
    assert {one for some in told.values() for one in some} == {("n2", "gpu5")}
    assert min(minute for minute, some in told.items() if some) < 5 * 60
