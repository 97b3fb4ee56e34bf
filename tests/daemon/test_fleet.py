import numpy as np

from collectors.sample import Sample, Value, sample
from daemon.fleet import METRICS, WATCHED, FleetPoints

NOW_NS = 1_780_000_000_000_000_000


def gpu(number: int, celsius: float, seconds: float = 0.0, **more: float) -> Sample:
    fields = {"temperature_celsius": celsius, **more}
    time_ns = NOW_NS + int(seconds * 1e9)
    return sample(
        "gpu", time_ns, fields, node=f"n{number // 8}", gpu=str(number % 8), uuid=str(number)
    )


def of(points: list[Sample], measurement: str, metric: str) -> list[Sample]:
    return [p for p in points if p.measurement == measurement and p.tag("metric") == metric]


def test_the_summary_is_that_of_the_newest_values() -> None:
    fleet = FleetPoints()
    fleet.observe(gpu(n, 99.0, -30) for n in range(100))
    fleet.observe(gpu(n, float(n)) for n in range(100))
    fleet.observe([gpu(5, 77.0, -10)])  # late: the newer reading stays
    (point,) = of(fleet.points(NOW_NS), "fleet", "gpu.temperature_celsius")
    assert point.fields["count"] == 100.0
    assert point.fields["mean"] == 49.5
    assert point.fields["sum"] == 4950.0
    assert (point.fields["minimum"], point.fields["maximum"]) == (0.0, 99.0)
    assert point.fields["p50"] == np.quantile(np.arange(100), 0.5)
    assert point.time_ns == NOW_NS


def test_the_worst_are_named_with_node_and_gpu() -> None:
    fleet = FleetPoints(top=3)
    fleet.observe(gpu(n, float(n), utilization_ratio=n / 100) for n in range(40))
    points = fleet.points(NOW_NS)
    hot = of(points, "fleet_top", "gpu.temperature_celsius")
    assert [(p.tag("node"), p.tag("device"), p.number("value")) for p in hot] == [
        ("n4", "gpu7", 39.0),
        ("n4", "gpu6", 38.0),
        ("n4", "gpu5", 37.0),
    ]
    idle = of(points, "fleet_top", "gpu.utilization_ratio:low")
    assert [p.number("value") for p in idle] == [0.0, 0.01, 0.02]


def test_every_part_is_in_one_step_of_the_histogram() -> None:
    fleet = FleetPoints()
    fleet.observe(
        gpu(n, celsius) for n, celsius in enumerate([-5.0, 19.9, 20.0, 24.9, 99.0, 500.0])
    )
    steps = of(fleet.points(NOW_NS), "fleet_histogram", "gpu.temperature_celsius")
    counts = {p.tag("below"): p.number("count") for p in steps}
    assert sum(count or 0 for count in counts.values()) == 6
    assert (counts["20"], counts["25"], counts["100"], counts["inf"]) == (2.0, 2.0, 1.0, 1.0)


def test_what_is_not_heard_or_not_read_does_not_count() -> None:
    fleet = FleetPoints(stale_seconds=60)
    fleet.observe([gpu(0, 30.0, -120), gpu(1, 40.0), gpu(2, float("nan"))])
    fleet.observe([sample("gpu", NOW_NS, {"power_watts": 70.0}, node="n9", gpu="0", uuid="u")])
    points = fleet.points(NOW_NS)
    (point,) = of(points, "fleet", "gpu.temperature_celsius")
    assert point.fields["count"] == 1.0
    assert of(points, "fleet", "gpu.power_watts")[0].fields["sum"] == 70.0
    assert of(points, "fleet", "host.load_1m") == []
    assert FleetPoints().points(NOW_NS) == []


def test_every_field_is_declared_and_no_two_points_are_the_same() -> None:
    fleet = FleetPoints()
    fleet.observe(gpu(n, float(n), power_watts=1.0, sm_clock_hertz=1e9) for n in range(100))
    fleet.observe(sample("host", NOW_NS, {"load_1m": 3.0}, node=f"n{n}") for n in range(10))
    points = fleet.points(NOW_NS)
    declared = {(m.measurement, m.name) for m in METRICS}
    assert {(p.measurement, name) for p in points for name in p.fields} == declared
    assert len({(p.measurement, p.tags) for p in points}) == len(points)
    assert len(points) < 40 * len(WATCHED), "a few points, whatever the size"


def test_a_reading_of_which_all_is_sane_counts_as_one_with_text_and_absurd_numbers() -> None:
    names = [one.field for one in WATCHED if one.measurement == "gpu"]
    for odd in names:
        for wrong in (1e300, -1e300, float("inf"), float("nan"), "text"):
            fleet = FleetPoints()
            sane: dict[str, Value] = dict.fromkeys(names, 40.0)
            fleet.observe([sample("gpu", NOW_NS, sane, node="n1", gpu="0")])
            fleet.observe([sample("gpu", NOW_NS, {**sane, odd: wrong}, node="n1", gpu="1")])
            points = fleet.points(NOW_NS)
            for name in names:
                (point,) = of(points, "fleet", f"gpu.{name}")
                assert point.fields["count"] == (1.0 if name == odd else 2.0)
                assert point.fields["mean"] == 40.0
