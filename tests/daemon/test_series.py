"""Readings of a real store as the lines of a chart: thinned, on one axis, gaps kept."""

from __future__ import annotations

from pathlib import Path

from collectors.sample import Metric, Sample, sample
from daemon.page.view import SeriesView
from daemon.series import series_of
from daemon.store.embedded import Store
from daemon.store.options import StoreOptions

SECOND_NS = 1_000_000_000
START_NS = 1_795_000_000 * SECOND_NS
HEAT = Metric("gpu", "temperature_celsius", "gauge", "of the die")


def reading(gpu: int, second: int, celsius: float | None) -> Sample:
    fields = {"power_watts": 300.0}
    if celsius is not None:
        fields["temperature_celsius"] = celsius
    return sample("gpu", START_NS + second * SECOND_NS, fields, node="n1", gpu=str(gpu))


def chart(
    tmp_path: Path,
    rows: list[Sample],
    measurement: str = "gpu",
    field: str = "temperature_celsius",
    points: int = 10,
) -> SeriesView:
    """100 seconds from START_NS on, in ``points`` steps."""
    store = Store(tmp_path, StoreOptions(directory=tmp_path, reserve_bytes=0), lambda: START_NS)
    store.append(rows)
    store.commit()
    end_ns = START_NS + 100 * SECOND_NS
    table = store.read(measurement, START_NS, end_ns)
    store.close()
    return series_of(table, "n1", measurement, field, HEAT, START_NS, end_ns, points)


def test_each_step_has_its_newest_value_and_gaps_stay_gaps(tmp_path: Path) -> None:
    rows = [
        reading(0, 1, 40.0),
        reading(0, 9, 41.0),  # the same step of ten seconds: the newer one stays
        reading(0, 31, 0.0),  # zero is a value
        reading(1, 1, 50.0),
        reading(1, 12, None),  # read, but without this field: no value and no step
    ]
    view = chart(tmp_path, rows)
    assert [(at - START_NS // 1_000_000) // 1000 for at in view.times_ms] == [0, 30]
    assert {line.name: list(line.values) for line in view.lines} == {
        "gpu0": [41.0, 0.0],
        "gpu1": [50.0, None],
    }
    assert (view.kind, view.help) == ("gauge", "of the die")


def test_lines_stand_in_natural_order_and_are_bounded(tmp_path: Path) -> None:
    view = chart(tmp_path, [reading(gpu, 1, float(gpu)) for gpu in range(100)])
    names = [line.name for line in view.lines]
    assert len(names) == 64
    assert names == sorted(names, key=lambda name: int(name[3:]))


def test_lines_of_other_measurements_are_named_by_their_tags(tmp_path: Path) -> None:
    fields = {"link_downs_total": 1.0}
    row = sample("ib_port", START_NS, fields, node="n1", device="mlx5_0", port="1")
    view = chart(tmp_path, [row], "ib_port", "link_downs_total")
    assert [line.name for line in view.lines] == ["mlx5_0/1"]
    host = sample("host", START_NS, {"load_1m": 3.0}, node="n1")
    assert [one.name for one in chart(tmp_path / "h", [host], "host", "load_1m").lines] == ["host"]


def test_what_was_never_read_is_an_empty_chart(tmp_path: Path) -> None:
    for rows, field in (([], "temperature_celsius"), ([reading(0, 1, 40.0)], "no_such_field")):
        view = chart(tmp_path / field, rows, "gpu", field)
        assert view.times_ms == []
        assert view.lines == ()


def test_a_text_field_is_no_line(tmp_path: Path) -> None:
    row = sample("source", START_NS, {"fault": "hung"}, node="n1", source="nvml")
    view = chart(tmp_path, [row], "source", "fault")
    assert view.times_ms == []
    assert all(not line.values for line in view.lines)


def test_one_senders_text_takes_no_line_from_anybodys_chart(tmp_path: Path) -> None:
    rows = [
        sample("cpu", START_NS + second * SECOND_NS, {"usage": second / 8}, node="n1", device="0")
        for second in (0, 50)
    ]
    rows.append(sample("cpu", START_NS, {"usage": "so much"}, node="n1", device="1"))
    found = chart(tmp_path, rows, "cpu", "usage")
    assert found.lines[0].name == "0"
    assert found.lines[0].values == [0.0, 6.25]
