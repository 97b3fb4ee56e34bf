"""Each family against what it should say in simple cases, and against a slow reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.sample import Sample, sample
from models.features import FeatureEngine
from models.features.engine import NAMED_PARTS_LIMIT, address
from models.voices import Entity

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
GPU = Entity("gpu", "n1", "gpu0")


def gpu(time_ns: int, index: int = 0, uuid: str = "a", **fields: float) -> Sample:
    values = {name: float(value) for name, value in fields.items()}
    return sample("gpu", time_ns, values, node="n1", gpu=str(index), uuid=f"{uuid}{index}")


def about(engine: FeatureEngine, now_ns: int, entity: Entity = GPU) -> dict[str, float]:
    return engine.frame(now_ns).about(entity)


def xid(time_ns: int, code: int = 79, device: str = "0000:9b:00") -> Sample:
    text = {"text": "x", "severity": 3.0, "device": device}
    return sample("event", time_ns, text, node="n1", kind="xid", code=str(code))


def inventory(time_ns: int = 0) -> Sample:
    fields = {"text": "gpu=0 uuid=a0 serial=1 model=M", "severity": 0.0, "device": "0000:9b:00"}
    return sample("event", time_ns, fields, node="n1", kind="inventory", code="gpu")


steps = st.lists(
    st.tuples(st.integers(1, 7200), st.one_of(st.none(), st.floats(-1e3, 1e3))),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_decayed_mean_and_spread_are_those_of_the_weighted_readings(
    history: list[tuple[int, float | None]],
) -> None:
    engine = FeatureEngine()
    horizon = 3600.0
    now_s = 1000
    last_s: int | None = None
    weighted: list[list[float]] = []  # weight, value
    for step_s, value in history:
        now_s += step_s
        other = {} if value is None else {"temperature_celsius": value}
        engine.observe([gpu(now_s * SECOND, power_watts=now_s % 97, **other)], now_s * SECOND)
        if value is None:
            continue
        dt = 60.0 if last_s is None else now_s - last_s
        decay = math.exp(-dt / horizon)
        for pair in weighted:
            pair[0] *= decay
        weighted.append([1 - decay, value])
        last_s = now_s
    found = about(engine, now_s * SECOND)
    if not weighted:
        assert "temperature.mean_1h" not in found
        return
    weight = sum(w for w, _ in weighted)
    mean = sum(w * v for w, v in weighted) / weight
    spread = math.sqrt(sum(w * (v - mean) ** 2 for w, v in weighted) / weight)
    assert found["temperature.mean_1h"] == pytest.approx(mean, rel=1e-5, abs=1e-3)
    assert found["temperature.spread_1h"] == pytest.approx(spread, rel=1e-4, abs=2e-3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=40))
def test_counter_sums_increments_over_resets(history: list[tuple[int, bool]]) -> None:
    engine = FeatureEngine()
    device = 17.0
    engine.observe([gpu(SECOND, ecc_corrected_total=device)], SECOND)
    total = 0.0
    for index, (rise, reset) in enumerate(history, start=2):
        if reset and rise < device:
            device = float(rise)  # started anew and counted this far
            total += rise
        else:
            device += rise
            total += rise
        engine.observe([gpu(index * SECOND, ecc_corrected_total=device)], index * SECOND)
    found = about(engine, (len(history) + 1) * SECOND)
    assert found["ecc_corrected.count_ever"] == total
    assert found["ecc_corrected.count_1d"] == pytest.approx(total, rel=1e-2)
    assert found["ecc_corrected.total"] == device


def test_counter_that_wraps_is_not_taken_for_a_reset() -> None:
    engine = FeatureEngine()
    for index, value in enumerate([2**32 - 10, 5], start=1):
        engine.observe([gpu(index * SECOND, pcie_replays_total=value)], index * SECOND)
    assert about(engine, 2 * SECOND)["pcie_replays.count_ever"] == 15


def test_first_reading_of_a_counter_is_no_increment() -> None:
    engine = FeatureEngine()
    engine.observe([gpu(SECOND, ecc_corrected_total=900)], SECOND)
    found = about(engine, SECOND)
    assert found["ecc_corrected.count_ever"] == 0
    assert found["ecc_corrected.total"] == 900


def test_counter_that_is_missing_stays_missing() -> None:
    engine = FeatureEngine()
    engine.observe([gpu(SECOND, power_watts=1)], SECOND)
    assert not [name for name in about(engine, SECOND) if name.startswith("ecc_")]


def test_decayed_count_fades_with_time_also_without_readings() -> None:
    engine = FeatureEngine()
    for index, value in enumerate([0, 100], start=1):
        engine.observe([gpu(index * SECOND, nvlink_crc_errors_total=value)], index * SECOND)
    assert about(engine, DAY)["nvlink_crc.count_1d"] == pytest.approx(100 / math.e, rel=1e-3)


@pytest.mark.parametrize("period_s", [10, 60, 600])
def test_trend_of_a_steady_ramp_is_its_slope_at_any_cadence(period_s: int) -> None:
    engine = FeatureEngine()
    for now_s in range(period_s, 8 * 3600, period_s):
        engine.observe([gpu(now_s * SECOND, temperature_celsius=30 + now_s / 1800)], now_s * SECOND)
    found = about(engine, now_s * SECOND)
    assert found["temperature.trend_1h"] == pytest.approx(2.0, rel=0.05)  # celsius per hour


def node_of(now_ns: int, temperatures: list[float], powers: list[float]) -> list[Sample]:
    return [
        gpu(now_ns, index, temperature_celsius=t, power_watts=p, utilization_ratio=p / 700)
        for index, (t, p) in enumerate(zip(temperatures, powers, strict=True))
    ]


def test_hot_gpu_stands_off_siblings_at_like_load_only() -> None:
    engine = FeatureEngine()
    engine.observe(
        node_of(SECOND, [60, 61, 62, 75, 30, 31, 32, 33], [600, 610, 605, 600, 70, 71, 70, 72]),
        SECOND,
    )
    name = "temperature_over_siblings.now"
    deviation = [about(engine, SECOND, Entity("gpu", "n1", f"gpu{i}"))[name] for i in range(8)]
    assert deviation[3] == pytest.approx(75 - 61)
    assert max(abs(one) for i, one in enumerate(deviation) if i != 3) <= 2


def test_gpu_without_siblings_at_like_load_has_no_deviation() -> None:
    engine = FeatureEngine()
    engine.observe(node_of(SECOND, [60, 61, 30, 31], [600, 610, 70, 70]), SECOND)
    assert "temperature_over_siblings.now" not in about(engine, SECOND)


def test_hot_room_moves_no_deviation() -> None:
    engine = FeatureEngine()
    for step in range(1, 200):
        warm = step / 10
        engine.observe(node_of(step * 60 * SECOND, [50 + warm] * 4, [500] * 4), step * 60 * SECOND)
    assert about(engine, 200 * 60 * SECOND)["temperature_over_siblings.mean_1h"] == 0


def living(now_s: int, index: int, **more: float) -> Sample:
    return gpu(
        now_s * SECOND,
        index,
        temperature_celsius=50 + now_s % 3,
        power_watts=300 + now_s % 17,
        utilization_ratio=0.5,
        **more,
    )


def test_lost_gpu_freezes_and_its_fields_vanish() -> None:
    engine = FeatureEngine()
    for now_s in range(60, 3000, 60):
        engine.observe(
            [living(now_s, i, ecc_corrected_total=0, pcie_replays_total=1) for i in (0, 1)],
            now_s * SECOND,
        )
    for now_s in range(3000, 6600, 60):
        engine.observe([living(2940, 0), living(now_s, 1, ecc_corrected_total=0)], now_s * SECOND)
        frozen = Sample("gpu", living(2940, 0).tags, living(2940, 0).fields, now_s * SECOND)
        engine.observe([frozen], now_s * SECOND)
    now_ns = 6540 * SECOND
    found = about(engine, now_ns)
    assert found["presence.vanished_fields"] == 2
    assert found["presence.frozen_seconds"] == pytest.approx(3600)
    assert found["presence.losses_ever"] == 1
    well = about(engine, now_ns, Entity("gpu", "n1", "gpu1"))
    assert well["presence.frozen_seconds"] == 0
    assert well["presence.losses_ever"] == 0
    assert about(engine, now_ns, Entity("node", "n1")) == {}


def test_gpu_that_goes_silent_lags_its_node() -> None:
    engine = FeatureEngine()
    for now_s in range(60, 6000, 60):
        which = (0, 1) if now_s < 3000 else (1,)
        engine.observe([living(now_s, index) for index in which], now_s * SECOND)
    found = about(engine, 5940 * SECOND)
    assert found["presence.behind_node_seconds"] == 3000
    assert found["presence.late_ratio"] == pytest.approx(3000 / 60)


def test_late_readings_are_counted_and_left_out() -> None:
    engine = FeatureEngine()
    engine.observe([gpu(10 * SECOND, temperature_celsius=50)], 10 * SECOND)
    engine.flush()
    engine.observe([gpu(5 * SECOND, temperature_celsius=90)], 11 * SECOND)
    engine.observe([gpu(10 * SECOND, temperature_celsius=90)], 11 * SECOND)
    assert about(engine, 11 * SECOND)["temperature.now"] == 50
    assert engine.late_readings == 2


def test_replaced_gpu_starts_without_history() -> None:
    engine = FeatureEngine()
    engine.observe([inventory(), gpu(SECOND, temperature_celsius=90)], SECOND)
    engine.observe([xid(2 * SECOND)], 2 * SECOND)
    assert about(engine, 3 * SECOND)["failure.episodes_ever"] == 1
    engine.observe([gpu(DAY, uuid="b", temperature_celsius=40)], DAY)
    found = about(engine, DAY)
    assert found["failure.episodes_ever"] == 0
    assert found["temperature.mean_1d"] == 40
    assert found["presence.age_days"] == 0


def test_xid_goes_to_the_gpu_at_its_pci_address_and_to_the_node() -> None:
    engine = FeatureEngine()
    engine.observe([inventory(), gpu(SECOND, power_watts=1)], SECOND)
    engine.observe([xid(HOUR), xid(HOUR + SECOND), xid(HOUR + 2, code=13)], HOUR)
    found = about(engine, HOUR)
    assert found["failure.events_1h"] == pytest.approx(2, rel=1e-2)
    assert found["failure.episodes_28d"] == pytest.approx(1, rel=1e-2)
    assert found["application_xid.events_1h"] == pytest.approx(1, rel=1e-2)
    assert found["failure.days_since"] == 0
    node = about(engine, HOUR + DAY, Entity("node", "n1"))
    assert node["failure.episodes_ever"] == 1
    assert node["failure.days_since"] == pytest.approx(1, rel=1e-3)


def test_event_sent_again_counts_once() -> None:
    engine = FeatureEngine()
    for _ in range(3):
        engine.observe([inventory(), xid(HOUR)], HOUR)
    engine.observe([gpu(HOUR, power_watts=1)], HOUR)
    assert about(engine, HOUR)["failure.events_1h"] == 1
    assert engine.repeated_events == 2


def test_a_batch_of_events_sent_again_counts_once_while_another_node_storms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("models.features.heard.REMEMBERED", 1000)
    engine = FeatureEngine()
    batch = [xid(HOUR + at * SECOND) for at in range(300)]
    engine.observe([inventory(), *batch], 2 * HOUR)
    noise = {"text": "x", "severity": 3.0, "device": "0000:9b:00"}
    for at in range(3000):
        code = str(at % 100)
        other = sample("event", 2 * HOUR + at, noise, node="n2", kind="xid", code=code)
        engine.observe([other], 2 * HOUR)
    before = about(engine, 2 * HOUR, Entity("node", "n1"))
    restarted = FeatureEngine()
    restarted.load(engine.dump())
    for one in (engine, restarted):
        one.observe(batch, 2 * HOUR)
        assert about(one, 2 * HOUR, Entity("node", "n1")) == before
        assert one.repeated_events == 300
    assert sum(1 for _ in engine._heard) <= 1000


def test_a_storm_that_is_told_again_after_a_restart_counts_once_in_a_fleet_of_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("models.features.heard.REMEMBERED", 1000)
    engine = FeatureEngine()
    for number in range(100):  # each of so many has a share of 16, of which most need one
        calm = sample("event", HOUR, {"text": "x"}, node=f"calm{number}", kind="xid", code="13")
        engine.observe([calm], HOUR)
    storm = [xid(HOUR + at * SECOND) for at in range(60)]
    engine.observe([inventory(), *storm], 2 * HOUR)
    before = about(engine, 2 * HOUR, Entity("node", "n1"))
    restarted = FeatureEngine()
    restarted.load(engine.dump())
    for one in storm:
        restarted.observe([one], 2 * HOUR)
    assert restarted.repeated_events == 60
    assert about(restarted, 2 * HOUR, Entity("node", "n1")) == before


def test_event_that_comes_late_counts_what_its_age_leaves() -> None:
    early, late = FeatureEngine(), FeatureEngine()
    first = [inventory(), gpu(SECOND, power_watts=1)]
    early.observe([*first, xid(HOUR), xid(5 * HOUR)], 5 * HOUR)
    late.observe([*first, xid(5 * HOUR), xid(HOUR)], 5 * HOUR)
    name = "failure.events_1d"
    assert about(early, 6 * HOUR)[name] == pytest.approx(about(late, 6 * HOUR)[name])


def test_reboot_is_a_change_of_boot_time_and_has_an_age() -> None:
    engine = FeatureEngine()
    node = Entity("node", "n1")
    boots = [1e6, 1e6 + 1, 1e6, 1e6 + 50_000]  # a clock correction is no reboot
    for index, boot in enumerate(boots):
        now_ns = int((1e6 + 60_000 + index) * SECOND)
        engine.observe([sample("host", now_ns, {"boot_time_seconds": boot}, node="n1")], now_ns)
    found = about(engine, now_ns, node)
    assert found["reboots.count_ever"] == 1
    assert found["reboots.age_days"] == pytest.approx(10_003 / 86400, rel=1e-3)


@pytest.mark.parametrize(
    ("code", "after", "reason", "failures", "repairs"),
    [
        ("down", "DOWN+NOT_RESPONDING", "Not responding", 1, 0),
        ("down", "DOWN", "Node unexpectedly rebooted", 1, 0),
        ("down", "DOWN", "moving the rack", 0, 0),
        ("drain", "IDLE+DRAIN", "gpu problem", 0, 0),
        ("reboot", "IDLE+DRAIN+REBOOT_ISSUED", "kernel", 0, 0),
        ("drain_end", "IDLE", "", 0, 1),
        ("drain_end", "DOWN", "", 0, 0),
    ],
)
def test_node_that_goes_down_by_itself_failed_and_others_did_not(
    code: str, after: str, reason: str, failures: int, repairs: int
) -> None:
    engine = FeatureEngine()
    fields = {"before": "MIXED", "after": after, "reason": reason}
    one = sample("slurm_event", HOUR, fields, node="n1", kind="state", code=code)
    engine.observe([one], HOUR)
    found = about(engine, 4 * HOUR, Entity("node", "n1"))
    assert found.get("failure.episodes_ever", 0.0) == failures
    assert found.get("repair.episodes_ever", 0.0) == repairs


def test_node_keeps_the_worst_of_its_gpus_and_gpus_see_their_node() -> None:
    engine = FeatureEngine()
    engine.observe(node_of(SECOND, [60, 60, 60, 72], [600] * 4), SECOND)
    engine.observe([sample("host", SECOND, {"load_1m": 1.0}, node="n1"), xid(SECOND)], SECOND)
    frame = engine.frame(SECOND)
    node = frame.about(Entity("node", "n1"))
    assert node["gpu_max.temperature_over_siblings.mean_1h"] == 12
    assert frame.about(GPU)["node.failure.episodes_ever"] == 1


def test_one_source_feeds_one_stream() -> None:
    engine = FeatureEngine()
    for source, up in (("nvml", 0.0), ("kernel_log", 1.0)):
        engine.observe([sample("source", SECOND, {"up": up}, node="n1", source=source)], SECOND)
    assert about(engine, SECOND, Entity("node", "n1"))["nvml_up.mean_1h"] == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000:9B:00", "0000:9b:00"),
        ("00000000:9b:00.0", "0000:9b:00"),
        ("9b:00.0", "0000:9b:00"),
        ("00010000:9b:00.0", "10000:9b:00"),
        ("gpu3", "gpu3"),
    ],
)
def test_pci_addresses_have_one_spelling(text: str, expected: str) -> None:
    assert address(text) == expected


def test_wide_view_holds_each_kind_in_its_own_columns() -> None:
    engine = FeatureEngine()
    engine.observe(node_of(SECOND, [60, 60, 60, 72], [600] * 4), SECOND)
    engine.observe([sample("host", SECOND, {"load_1m": 1.0}, node="n1")], SECOND)
    frame = engine.frame(SECOND)
    assert frame.values.shape == (6, len(frame.names))  # the host feeds node and memory
    column = frame.names.index("load.now")
    row = frame.entities.index(Entity("node", "n1"))
    assert frame.values[row, column] == 1.0
    assert np.isnan(np.delete(frame.values[:, column], row)).all()


# ---- parts beside GPUs ----------------------------------------------------------------


def told(kind: str, code: str, device: str, time_ns: int = HOUR) -> Sample:
    fields: dict[str, float | str] = {"text": "x", "severity": 2.0, "device": device}
    return sample("event", time_ns, fields, node="n1", kind=kind, code=code)


@pytest.mark.parametrize(
    ("event", "entity", "feature"),
    [
        (told("edac", "corrected", "DIMM_A1"), Entity("dimm", "n1", "DIMM_A1"),
         "corrected.events_1h"),
        (told("edac", "corrected", "DIMM_A1"), Entity("memory", "n1"), "memory_error.events_1h"),
        (told("mce", "logged", ""), Entity("memory", "n1"), "memory_error.events_1h"),
        (told("sel", "power_supply_predictive", "PSU2"), Entity("chassis", "n1"),
         "supply_event.events_1h"),
        (told("sel", "fan", "FAN3"), Entity("chassis", "n1"), "bmc_event.events_1h"),
        (told("filesystem", "io_error", "nvme1n1"), Entity("disk", "n1", "nvme1"),
         "disk_event.events_1h"),
        (told("link", "cable_error", "mlx5_0/1"), Entity("link", "n1", "mlx5_0/1"),
         "link_event.events_1h"),
    ],
)  # fmt: skip
def test_an_event_counts_for_the_part_that_it_speaks_of(
    event: Sample, entity: Entity, feature: str
) -> None:
    engine = FeatureEngine()
    engine.observe([event], HOUR)
    assert about(engine, HOUR, entity)[feature] == pytest.approx(1.0)


def test_memory_is_told_of_its_worst_module() -> None:
    engine = FeatureEngine()
    host = {"edac_corrected_total": 5.0, "mce_total": 0.0}
    engine.observe([sample("host", SECOND, host, node="n1")], SECOND)
    engine.observe([told("edac", "corrected", "DIMM_A1", HOUR + i) for i in range(3)], HOUR)
    engine.observe([told("edac", "corrected", "DIMM_B2", HOUR + 9)], HOUR)
    found = about(engine, HOUR + 10, Entity("memory", "n1"))
    assert found["dimm_max.corrected.events_1h"] == pytest.approx(3.0)


def test_chassis_is_one_for_a_node_and_gathers_its_sensors() -> None:
    engine = FeatureEngine()
    for step in range(1, 30):
        at = step * HOUR // 2
        speeds = (9000.0, 9000.0, 9000.0, 9000.0 - 150 * step)
        engine.observe(
            [
                sample("bmc", at, {"value": speed, "critical": float(speed < 5000)}, node="n1",
                       sensor=f"FAN{fan}", kind="rpm")
                for fan, speed in enumerate(speeds)
            ],
            at,
        )  # fmt: skip
    frame = engine.frame(29 * HOUR // 2, ("chassis",))
    (entity,) = frame.entities
    assert entity == Entity("chassis", "n1")
    assert frame.about(entity)["fan_odd.fan_speed.drop_1d"] > 0.1
    assert frame.about(entity)["sensor_max.sensor_critical.now"] == 1.0


def test_parts_that_events_name_without_end_take_no_memory_without_end() -> None:
    engine = FeatureEngine()
    names = [f"DIMM_{number}" for number in range(10 * NAMED_PARTS_LIMIT)]
    engine.observe([told("edac", "corrected", one, HOUR + i) for i, one in enumerate(names)], HOUR)
    assert len(engine.tables["dimm"]) == NAMED_PARTS_LIMIT
    assert about(engine, HOUR, Entity("memory", "n1"))["memory_error.events_1h"] > NAMED_PARTS_LIMIT
