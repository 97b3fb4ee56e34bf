"""Facts from the readings of GPUs: states, a count that is short, values that stand still."""

from __future__ import annotations

import pytest

from collectors.events import event
from collectors.sample import Sample, sample
from models.rules import Rules
from models.voices import Entity, Remedy
from tests.models.rule_samples import (
    NOW,
    SECOND,
    cycle,
    feed,
    gpu,
    host,
    source,
    told,
)

# ---- states ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "code", "remedy"),
    [
        ("lost", 1.0, "lost", Remedy.DRAIN),
        ("recovery_action", 1.0, "recov", Remedy.DRAIN),
        ("recovery_action", 2.0, "recov", Remedy.DRAIN),
        ("recovery_action", 5.0, "recov", Remedy.ALERT),
        ("recovery_action", 77.0, "recov", Remedy.ALERT),
        ("row_remap_failed", 1.0, "remap", Remedy.DRAIN),
        ("row_remap_pending", 1.0, "pending", Remedy.ALERT),
        ("retired_pages_pending", 1.0, "pending", Remedy.ALERT),
        ("ecc_sram_threshold_exceeded", 1.0, "sram", Remedy.DRAIN),
    ],
)
def test_a_state_is_a_fact_while_fresh_readings_say_so(
    rules: Rules, field: str, value: float, code: str, remedy: Remedy
) -> None:
    feed(rules, [gpu(3, NOW - 10 * SECOND, **{field: 0.0}), gpu(3, NOW, **{field: value})])
    feed(rules, [gpu(3, NOW + 10 * SECOND, **{field: value})])
    (fact,) = rules.facts(NOW + 10 * SECOND, {})
    assert (fact.code, fact.remedy, fact.onset_ns) == (code, remedy, NOW)
    assert fact.entity == Entity("gpu", "n3", "gpu3")
    # Stale: no evidence any more.
    assert told(rules, NOW + 600 * SECOND) == []
    feed(rules, [gpu(3, NOW + 20 * SECOND, **{field: 0.0})])
    assert told(rules, NOW + 20 * SECOND) == []


def test_a_lost_gpu_answers_nothing_else_and_stays_lost(rules: Rules) -> None:
    feed(rules, [gpu(3, NOW)])
    for step in range(1, 5):
        at = NOW + step * 10 * SECOND
        feed(rules, [sample("gpu", at, {"lost": 1.0}, node="n3", gpu="3", uuid="GPU-n3-3")])
        assert told(rules, at) == [("lost", "gpu3")]


def test_another_board_in_the_same_place_starts_afresh(rules: Rules) -> None:
    feed(rules, [gpu(3, NOW, ecc_uncorrected_total=5.0)])
    other = sample(
        "gpu", NOW + SECOND, {"ecc_uncorrected_total": 9.0}, node="n3", gpu="3", uuid="x"
    )
    feed(rules, [other])
    assert told(rules, NOW + SECOND) == []


def test_uncorrectable_errors_alert_first_and_drain_when_they_pile_up(rules: Rules) -> None:
    steps = [(0, 7.0), (10, 8.0), (20, 8.0), (3_600, 12.0)]
    seen = []
    for seconds, total in steps:
        at = NOW + seconds * SECOND
        feed(rules, [gpu(3, at, ecc_uncorrected_total=total)])
        seen.append([(f.code, f.remedy, f.onset_ns) for f in rules.facts(at, {})])
    assert seen == [
        [],
        [("ecc", Remedy.ALERT, NOW + 10 * SECOND)],
        [("ecc", Remedy.ALERT, NOW + 10 * SECOND)],
        [("ecc", Remedy.DRAIN, NOW + 3_600 * SECOND)],
    ]
    # A day later they no longer count, and a counter that went back was only reset.
    at = NOW + 2 * 86_400 * SECOND
    feed(rules, [gpu(3, at, ecc_uncorrected_total=0.0)])
    assert told(rules, at) == []


@pytest.mark.parametrize("low", [(0.0,), (0.0, 0.0), (3.0, 0.0)])
def test_a_counter_that_reads_low_for_a_moment_tells_no_new_errors(
    rules: Rules, low: tuple[float, ...]
) -> None:
    for step, total in enumerate((40.0, *low, 40.0)):
        at = NOW + step * 10 * SECOND
        feed(rules, [gpu(3, at, ecc_uncorrected_total=total)])
        assert told(rules, at) == []
    feed(rules, [gpu(3, at + SECOND, ecc_uncorrected_total=41.0)])
    assert told(rules, at + SECOND) == [("ecc", "gpu3")]


# ---- the count of GPUs ----------------------------------------------------------------------


def test_a_missing_gpu_is_a_fact_after_a_while(rules: Rules) -> None:
    for step in range(10):
        feed(rules, cycle(NOW + step * 10 * SECOND, range(8)))
    last = NOW + 90 * SECOND
    codes = []
    for step in range(1, 8):
        at = last + step * 10 * SECOND
        feed(rules, cycle(at, [0, 1, 2, 3, 4, 6, 7]))
        codes.append(told(rules, at, 8))
    assert codes[0] == codes[1] == []
    assert codes[-1] == [("count", "")]
    (fact,) = rules.facts(last + 70 * SECOND, {"n3": 8})
    assert fact.text == "7 of 8 GPUs seen"
    assert fact.onset_ns == last
    feed(rules, cycle(last + 80 * SECOND, range(8)))
    assert told(rules, last + 80 * SECOND, 8) == []


def test_gpus_that_were_missing_from_the_start_count_too(rules: Rules) -> None:
    for step in range(10):
        at = NOW + step * 10 * SECOND
        feed(rules, cycle(at, range(7)))
        facts = told(rules, at, 8)
    assert facts == [("count", "")]


def test_no_gpu_at_all_with_a_working_source_counts(rules: Rules) -> None:
    for step in range(10):
        at = NOW + step * 10 * SECOND
        feed(rules, [source("nvml", at)])
        facts = told(rules, at, 8)
    assert facts == [("count", "")]


def test_a_source_that_is_down_or_silent_is_no_missing_gpu(rules: Rules) -> None:
    for step in range(10):
        feed(rules, cycle(NOW + step * 10 * SECOND, range(8)))
    for step in range(10, 400):
        at = NOW + step * 10 * SECOND
        feed(rules, [source("nvml", at, up=False, fault="worker is hung"), host(at)])
        assert told(rules, at, 8) == []
    for step in range(400, 420):  # the agent is gone
        assert told(rules, NOW + step * 10 * SECOND, 8) == []


def test_a_short_reload_of_the_driver_is_no_missing_gpu(rules: Rules) -> None:
    at = NOW
    for indices in [range(8)] * 5 + [range(3)] * 2 + [range(8)] * 5:
        at += 10 * SECOND
        feed(rules, cycle(at, indices))
        assert told(rules, at, 8) == []


def test_with_mig_the_count_is_not_judged(rules: Rules) -> None:
    for step in range(10):
        at = NOW + step * 10 * SECOND
        feed(rules, [gpu(0, at, mig_enabled=1.0), source("nvml", at)])
        assert told(rules, at, expected=56) == []


def test_telemetry_without_source_readings_is_counted_by_the_gpus_that_come(rules: Rules) -> None:
    for step in range(20):
        at = NOW + step * 600 * SECOND
        feed(rules, [gpu(index, at) for index in range(8 if step < 10 else 7)])
        facts = told(rules, at, 8)
    assert facts == [("count", "")]


def test_after_a_restart_with_fewer_gpus_the_count_is_a_new_fact(rules: Rules) -> None:
    for step in range(6):
        feed(rules, cycle(NOW + step * 10 * SECOND, range(8)))
    boot = NOW + 100 * SECOND
    feed(rules, [event("n3", "reboot", "boot", boot, text="restarted", severity=0)])
    for step in range(6):
        at = boot + (20 + step * 10) * SECOND
        feed(rules, cycle(at, range(7)))
    (fact,) = rules.facts(at, {"n3": 8})
    assert fact.code == "count"
    assert fact.onset_ns >= boot


# ---- frozen and vanished --------------------------------------------------------------------


GONE = ("memory_used_bytes", "energy_joules_total", "pcie_replays_total")


def frozen(index: int, at: int) -> Sample:
    fields = {
        "temperature_celsius": 95.0,
        "power_watts": 116.2,
        "utilization_ratio": 1.0,
        "sm_clock_hertz": 2.6e7,
    }
    return sample("gpu", at, fields, node="n3", gpu=str(index), uuid=f"GPU-n3-{index}")


@pytest.mark.parametrize("interval", [10, 600])
def test_a_gpu_that_freezes_and_vanishes_is_found_at_the_second_reading(
    rules: Rules, interval: int
) -> None:
    step = interval * SECOND
    feed(rules, [gpu(index, NOW + at) for at in (-step, 0) for index in (2, 3)])
    feed(rules, [gpu(2, NOW + step), frozen(3, NOW + step)])
    remedies = [fact.remedy for fact in rules.facts(NOW + step, {})]
    assert remedies == ([Remedy.ALERT] if interval == 600 else [])
    feed(rules, [gpu(2, NOW + 2 * step), frozen(3, NOW + 2 * step)])
    (fact,) = rules.facts(NOW + 2 * step, {})
    assert (fact.code, fact.remedy, fact.onset_ns) == ("vanish", Remedy.DRAIN, NOW + step)
    feed(rules, [gpu(3, NOW + 3 * step)])
    assert told(rules, NOW + 3 * step) == []


def test_gauges_that_still_move_are_no_lost_gpu(rules: Rules) -> None:
    feed(rules, [gpu(3, NOW)])
    for step in range(1, 20):
        at = NOW + step * 10 * SECOND
        moving = gpu(3, at, power_watts=100.0 + step)
        fields = {name: value for name, value in moving.fields.items() if name not in GONE}
        feed(rules, [sample("gpu", at, fields, node="n3", gpu="3", uuid="GPU-n3-3")])
        assert told(rules, at) == []


def test_a_board_that_never_had_the_families_is_no_lost_gpu(rules: Rules) -> None:
    for step in range(20):
        feed(rules, [frozen(3, NOW + step * 10 * SECOND)])
    assert told(rules, NOW + 190 * SECOND) == []


def test_a_source_that_stops_altogether_is_no_lost_gpu(rules: Rules) -> None:
    feed(rules, [one for step in range(5) for one in cycle(NOW + step * 10 * SECOND, range(8))])
    for step in range(5, 2_000, 10):
        assert told(rules, NOW + step * 10 * SECOND, 8) == []
