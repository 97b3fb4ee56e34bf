"""The rival: probabilities from published rates, in words people understand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sample import Sample, sample
from models.features import FeatureEngine
from models.risk import combined, rest, strongest, words
from models.rival import BASE_GPU, BASE_NODE, HISTORY_TABLE, Rival, sibling_z
from models.simulate import Fleet
from models.voices import Entity, Risk

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR


def fleet(now_ns: int, hot: float = 0.0, nodes: int = 4) -> list[Sample]:
    """Eight GPUs a node at one load; gpu5 of n1 is ``hot`` celsius above the rest."""
    found = []
    for node in range(1, nodes + 1):
        found.append(sample("host", now_ns, {"load_1m": 1.0}, node=f"n{node}"))
        for gpu in range(8):
            extra = hot if (node, gpu) == (1, 5) else 0.0
            fields = {"temperature_celsius": 60.0 + gpu % 3 + extra, "power_watts": 600.0}
            found.append(sample("gpu", now_ns, fields, node=f"n{node}", gpu=str(gpu), uuid="u"))
    return found


def failures(engine: FeatureEngine, times: list[int], node: str = "n2") -> None:
    for time_ns in times:
        fields = {"text": "x", "severity": 3.0, "device": "0000:9b:00"}
        engine.observe(
            [sample("event", time_ns, fields, node=node, kind="xid", code="79")], time_ns
        )


def scored(engine: FeatureEngine, now_ns: int) -> dict[Entity, Risk]:
    return strongest(Rival().score(engine.frame(now_ns), now_ns))


def test_healthy_fleet_has_the_published_base_rate_and_nothing_to_tell() -> None:
    engine = FeatureEngine()
    for step in range(1, 30):
        engine.observe(fleet(step * HOUR), step * HOUR)
    found = scored(engine, 30 * HOUR)
    assert set(found) == {Entity("node", f"n{i}") for i in range(1, 5)}
    for risk in found.values():
        assert risk.probability == pytest.approx(BASE_NODE)
        assert risk.voice == "history"
        assert risk.signals == ()
        assert risk.horizon_seconds == 86400


def test_each_failure_raises_the_node_s_risk_and_says_so() -> None:
    engine = FeatureEngine()
    engine.observe(fleet(HOUR), HOUR)
    before = BASE_NODE
    for count in range(1, 6):
        failures(engine, [count * DAY])
        found = scored(engine, count * DAY + HOUR)
        risk = found[Entity("node", "n2")]
        assert risk.probability > before
        before = risk.probability
        assert risk.voice == "history"
        assert "28 days" in risk.signals[0].text
        assert found[Entity("node", "n3")].probability == pytest.approx(BASE_NODE)
    assert before == pytest.approx(0.09, abs=0.02)


def test_burst_of_lines_is_one_failure() -> None:
    one, many = FeatureEngine(), FeatureEngine()
    failures(one, [DAY])
    failures(many, [DAY + i * SECOND for i in range(500)])
    left, right = (scored(engine, 2 * DAY)[Entity("node", "n2")] for engine in (one, many))
    assert left.probability == pytest.approx(right.probability, rel=1e-2)


def test_history_fades() -> None:
    engine = FeatureEngine()
    failures(engine, [DAY, 2 * DAY])
    engine.observe(fleet(2 * DAY), 2 * DAY)
    engine.observe(fleet(150 * DAY), 150 * DAY)
    risk = scored(engine, 150 * DAY)[Entity("node", "n2")]
    assert risk.probability == pytest.approx(BASE_NODE, rel=0.15)


def test_gpu_hotter_than_its_siblings_is_named() -> None:
    engine = FeatureEngine()
    for step in range(1, 60):
        engine.observe(fleet(step * HOUR, hot=12.0), step * HOUR)
    found = scored(engine, 60 * HOUR)
    gpu = found[Entity("gpu", "n1", "gpu5")]
    assert gpu.voice == "risk"
    assert gpu.probability > 10 * BASE_GPU
    assert gpu.signals[0].text.startswith("gpu5 runs 1")
    whole = 1 - (1 - gpu.probability) * (1 - found[Entity("node", "n1")].probability)
    frame = engine.frame(60 * HOUR)
    names, total = Rival().nodes(frame)
    assert total[names.index("n1")] == pytest.approx(whole)
    assert whole > 2 * BASE_NODE
    assert [entity for entity in found if entity.kind == "gpu"] == [gpu.entity]


def test_sensor_rounding_in_a_small_fleet_is_no_signal() -> None:
    engine = FeatureEngine()
    for step in range(1, 60):
        engine.observe(fleet(step * HOUR, hot=2.0), step * HOUR)
    assert not [one for one in scored(engine, 60 * HOUR) if one.kind == "gpu"]


@pytest.mark.parametrize("horizon_seconds", [900.0, 86400.0, 7 * 86400.0])
def test_horizon_scales_the_probability(horizon_seconds: float) -> None:
    engine = FeatureEngine()
    engine.observe(fleet(HOUR), HOUR)
    risks = Rival(horizon_seconds).score(engine.frame(HOUR), HOUR)
    expected = 1 - (1 - BASE_NODE) ** (horizon_seconds / 86400)
    assert risks[0].probability == pytest.approx(expected)


def test_empty_frame_has_no_risks() -> None:
    assert Rival().score(FeatureEngine().frame(0), 0) == []


def test_node_of_which_only_events_are_heard_is_scored() -> None:
    engine = FeatureEngine()
    failures(engine, [DAY], node="n9")
    assert scored(engine, DAY)[Entity("node", "n9")].probability > BASE_NODE


def test_risks_are_plain_numbers_for_json() -> None:
    simulated = Fleet(4, 8, seed=1, start_ns=0)
    engine = FeatureEngine()
    simulated.sicken("n2", 3, "bus_lost")
    for step in range(1, 20):
        engine.observe(simulated.tick(step * HOUR), step * HOUR)
    for risk in Rival().score(engine.frame(20 * HOUR), 20 * HOUR):
        assert type(risk.probability) is float
        assert all(type(one.value) is float and type(one.weight) is float for one in risk.signals)


@given(
    st.lists(st.floats(0, 0.9), min_size=1, max_size=5),
    st.lists(st.tuples(st.floats(0, 0.9), st.integers(0, 4)), max_size=20),
)
def test_node_risk_is_one_minus_the_product_of_survivals(
    own: list[float], parts: list[tuple[float, int]]
) -> None:
    parts = [(p, node % len(own)) for p, node in parts]
    result = combined(
        np.array(own), np.array([p for p, _ in parts]), np.array([n for _, n in parts], np.int64)
    )
    for node, p in enumerate(own):
        survival = (1 - p) * math.prod(1 - q for q, n in parts if n == node)
        assert result[node] == pytest.approx(1 - survival, abs=1e-9)
        assert 0 <= result[node] < 1


@given(
    st.lists(st.floats(0, 0.9), min_size=1, max_size=5),
    st.lists(st.tuples(st.floats(0, 0.9), st.integers(0, 4)), max_size=20),
)
def test_parts_told_apart_and_the_rest_make_the_whole(
    own: list[float], parts: list[tuple[float, int]]
) -> None:
    p = np.array([p for p, _ in parts])
    nodes = np.array([node % len(own) for _, node in parts], np.int64)
    total = combined(np.array(own), p, nodes)
    np.testing.assert_allclose(rest(total, p, nodes), own, atol=1e-6)


def test_z_score_is_in_units_of_the_fleet_and_keeps_missing_missing() -> None:
    z = sibling_z(np.array([0.0, 1.0, -1.0, 0.5, -0.5, 20.0, np.nan]))
    assert z[5] > 10
    assert np.isnan(z[6])
    assert np.isnan(sibling_z(np.array([np.nan]))).all()


def test_sick_card_in_a_fleet_of_four_stands_out() -> None:
    assert sibling_z(np.array([-2.0, 0.0, 22.0, 23.0]))[3] > 7


def test_loss_without_any_kernel_line_counts_as_history() -> None:
    engine = FeatureEngine()
    for step in range(1, 30):
        now_ns = step * 600 * SECOND
        batch = fleet(now_ns)
        if step >= 20:  # gpu5 of n1 froze, and its memory and energy are no longer read
            batch = [one for one in batch if (one.tag("node"), one.tag("gpu")) != ("n1", "5")]
        lively = [
            sample(
                one.measurement,
                now_ns,
                {**one.fields, "ecc_corrected_total": 0.0, "pcie_replays_total": 0.0},
                **dict(one.tags),
            )
            for one in batch
            if one.measurement == "gpu"
        ]
        still = {"temperature_celsius": 60.0, "power_watts": 1.0}
        if step >= 20:
            lively.append(sample("gpu", now_ns, still, node="n1", gpu="5", uuid="u"))
        hosts = [one for one in batch if one.measurement == "host"]
        engine.observe([*lively, *hosts], now_ns)
    risk = scored(engine, now_ns)[Entity("node", "n1")]
    assert risk.probability > 3 * BASE_NODE
    assert risk.signals[0].text == "it failed once in about 28 days"


def test_history_table_rises() -> None:
    x, y = zip(*HISTORY_TABLE, strict=True)
    assert list(x) == sorted(x)
    assert list(y) == sorted(y)


def test_words_of_values() -> None:
    assert words(0.5, "ratio") == "50 %"
    assert words(3.14159, "celsius per hour") == "3.14 celsius per hour"
