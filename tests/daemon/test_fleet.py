import random
from bisect import bisect_right
from collections.abc import Iterable

import numpy as np
import pytest

from collectors.sample import Sample, Value, sample
from daemon.fleet import METRICS, WATCHED, fleet_points
from daemon.latest import Latest

NOW_NS = 1_780_000_000_000_000_000


def heard(*writes: Iterable[Sample]) -> Latest:
    latest = Latest()
    for samples in writes:
        latest.observe(samples, NOW_NS)
    return latest


def gpu(number: int, celsius: float, seconds: float = 0.0, **more: float) -> Sample:
    fields = {"temperature_celsius": celsius, **more}
    time_ns = NOW_NS + int(seconds * 1e9)
    return sample(
        "gpu", time_ns, fields, node=f"n{number // 8}", gpu=str(number % 8), uuid=str(number)
    )


def of(points: list[Sample], measurement: str, metric: str) -> list[Sample]:
    return [p for p in points if p.measurement == measurement and p.tag("metric") == metric]


def test_the_summary_is_that_of_the_newest_values() -> None:
    latest = heard(
        (gpu(n, 99.0, -30) for n in range(100)),
        (gpu(n, float(n)) for n in range(100)),
        [gpu(5, 77.0, -10)],  # late: the newer reading stays
    )
    (point,) = of(fleet_points(latest, NOW_NS), "fleet", "gpu.temperature_celsius")
    assert point.fields["count"] == 100.0
    assert point.fields["mean"] == 49.5
    assert point.fields["sum"] == 4950.0
    assert (point.fields["minimum"], point.fields["maximum"]) == (0.0, 99.0)
    assert point.fields["p50"] == np.quantile(np.arange(100), 0.5)
    assert point.time_ns == NOW_NS


def test_the_worst_are_named_with_node_and_gpu() -> None:
    latest = heard(gpu(n, float(n), utilization_ratio=n / 100) for n in range(40))
    points = fleet_points(latest, NOW_NS, top=3)
    hot = of(points, "fleet_top", "gpu.temperature_celsius")
    assert [(p.tag("node"), p.tag("device"), p.number("value")) for p in hot] == [
        ("n4", "gpu7", 39.0),
        ("n4", "gpu6", 38.0),
        ("n4", "gpu5", 37.0),
    ]
    idle = of(points, "fleet_top", "gpu.utilization_ratio:low")
    assert [p.number("value") for p in idle] == [0.0, 0.01, 0.02]


def test_every_part_is_in_one_step_of_the_histogram() -> None:
    latest = heard(
        gpu(n, celsius) for n, celsius in enumerate([-5.0, 19.9, 20.0, 24.9, 99.0, 500.0])
    )
    steps = of(fleet_points(latest, NOW_NS), "fleet_histogram", "gpu.temperature_celsius")
    counts = {p.tag("below"): p.number("count") for p in steps}
    assert sum(count or 0 for count in counts.values()) == 6
    assert (counts["20"], counts["25"], counts["100"], counts["inf"]) == (2.0, 2.0, 1.0, 1.0)


def test_what_is_not_heard_or_not_read_does_not_count() -> None:
    latest = heard(
        [gpu(0, 30.0, -120), gpu(1, 40.0), gpu(2, float("nan")), gpu(3, 41.0, -60)],
        [sample("gpu", NOW_NS, {"power_watts": 70.0}, node="n9", gpu="0", uuid="u")],
        [sample("host", NOW_NS - 61 * 10**9, {"load_1m": 3.0}, node="n9")],
    )
    points = fleet_points(latest, NOW_NS, stale_ns=60 * 10**9)
    (point,) = of(points, "fleet", "gpu.temperature_celsius")
    assert point.fields["count"] == 2.0
    assert of(points, "fleet", "gpu.power_watts")[0].fields["sum"] == 70.0
    assert of(points, "fleet", "host.load_1m") == []
    assert fleet_points(Latest(), NOW_NS) == []


def test_every_field_is_declared_and_no_two_points_are_the_same() -> None:
    latest = heard(
        (gpu(n, float(n), power_watts=1.0, sm_clock_hertz=1e9) for n in range(100)),
        (sample("host", NOW_NS, {"load_1m": 3.0}, node=f"n{n}") for n in range(10)),
    )
    points = fleet_points(latest, NOW_NS)
    declared = {(m.measurement, m.name) for m in METRICS}
    assert {(p.measurement, name) for p in points for name in p.fields} == declared
    assert len({(p.measurement, p.tags) for p in points}) == len(points)
    assert len(points) < 40 * len(WATCHED), "a few points, whatever the size"


def test_a_reading_of_which_all_is_sane_counts_as_one_with_text_and_absurd_numbers() -> None:
    names = [one.field for one in WATCHED if one.measurement == "gpu"]
    for odd in names:
        for wrong in (1e300, -1e300, float("inf"), float("nan"), "text"):
            sane: dict[str, Value] = dict.fromkeys(names, 40.0)
            latest = heard(
                [sample("gpu", NOW_NS, sane, node="n1", gpu="0")],
                [sample("gpu", NOW_NS, {**sane, odd: wrong}, node="n1", gpu="1")],
            )
            points = fleet_points(latest, NOW_NS)
            for name in names:
                (point,) = of(points, "fleet", f"gpu.{name}")
                assert point.fields["count"] == (1.0 if name == odd else 2.0)
                assert point.fields["mean"] == 40.0


def write(rng: random.Random, node: str) -> list[Sample]:
    """What a node sends at once; now and then out of a spool, with gaps, absurd or not."""
    time_ns = NOW_NS - rng.choice([0, 5, 40, 100, 170, 179, 181, 400]) * 10**9 + rng.randint(0, 9)
    found = []
    for number in range(4):
        fields: dict[str, Value] = {
            one.field: rng.choice([rng.uniform(*one.steps[:: len(one.steps) - 1]), 0.0, 1e16])
            for one in WATCHED
            if one.measurement == "gpu" and rng.random() < 0.9
        }
        tags = {"node": node, "gpu": str(number), "uuid": f"GPU-{node}-{number}"}
        found.append(sample("gpu", time_ns, fields, **tags))
    if rng.random() < 0.7:
        load: dict[str, Value] = {"load_1m": rng.uniform(0, 300)} if rng.random() < 0.9 else {}
        found.append(sample("host", time_ns, load, node=node))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_the_points_are_those_of_each_parts_newest_reading(seed: int) -> None:
    rng = random.Random(seed)
    writes = [write(rng, f"n{rng.randint(1, 30)}") for _ in range(150)]
    points = fleet_points(heard(*writes), NOW_NS)
    newest: dict[tuple[str, str, str], Sample] = {}
    for one in [one for some in writes for one in some]:
        part = one.measurement, one.tag("node"), one.tag("gpu")
        if part not in newest or one.time_ns >= newest[part].time_ns:
            newest[part] = one
    for own in WATCHED:
        there = [
            (value, one.tag("node"), f"gpu{one.tag('gpu')}" if one.tag("gpu") else "")
            for one in newest.values()
            if one.measurement == own.measurement and NOW_NS - one.time_ns <= 180 * 10**9
            if (value := one.number(own.field)) is not None and abs(value) < 1e15
        ]
        values = [value for value, *_ in there]
        assert len(values) > 5
        (point,) = of(points, "fleet", own.name)
        assert point.fields["count"] == len(values)
        assert point.fields["sum"] == pytest.approx(sum(values))
        assert point.fields["mean"] == pytest.approx(sum(values) / len(values))
        for name, at in {"minimum": 0, "p05": 5, "p50": 50, "p95": 95, "maximum": 100}.items():
            assert point.fields[name] == np.percentile(values, at)
        high = own.worst == "high"
        told = of(points, "fleet_top", own.name if high else f"{own.name}:low")
        assert [one.number("value") for one in told] == sorted(values, reverse=high)[:10]
        named = {(one.number("value"), one.tag("node"), one.tag("device")) for one in told}
        assert len(named) == min(10, len(values))
        assert named <= set(there)
        steps = [0.0] * (len(own.steps) + 1)
        for value in values:
            steps[bisect_right(own.steps, value)] += 1
        told = of(points, "fleet_histogram", own.name)
        assert [one.number("count") for one in told] == steps


def test_a_clock_that_ran_ahead_and_was_set_right_holds_no_old_value() -> None:
    latest = heard([gpu(0, 90.0, 7200)], [gpu(0, 40.0)])
    (point,) = of(fleet_points(latest, NOW_NS), "fleet", "gpu.temperature_celsius")
    assert point.fields["maximum"] == 40.0
