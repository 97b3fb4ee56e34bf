"""Facts from events and readings: what is concluded, what is not, and for how long."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.events import event
from collectors.kernel.lines import parse
from collectors.sample import Sample, sample, source_reading
from models.rulebook import RULES, Thresholds
from models.rules import Rules
from models.voices import Entity, Fact, Remedy

SECOND = 10**9
NOW = 1_796_000_000 * SECOND
BOOT = NOW - 86_400 * SECOND
LINE = "NVRM: Xid (PCI:0000:9b:00): {}, pid=1, name=a, words"


def xid(
    code: int, at: int = NOW, pci: str = "0000:9b:00", node: str = "n3", text: str = ""
) -> Sample:
    line = text or LINE.format(code).replace("0000:9b:00", pci)
    return event(node, "xid", str(code), at, text=line, severity=2, device=pci)


def gpu(index: int, at: int, node: str = "n3", **fields: float) -> Sample:
    full = {
        "temperature_celsius": 40.0 + index,
        "power_watts": 100.0 + at % 7,
        "utilization_ratio": 0.5,
        "sm_clock_hertz": 1.4e9,
        "memory_used_bytes": 1e9,
        "energy_joules_total": at / SECOND,
        "pcie_replays_total": 0.0,
    } | fields
    return sample("gpu", at, full, node=node, gpu=str(index), uuid=f"GPU-{node}-{index}")


def source(name: str, at: int, up: bool = True, node: str = "n3", fault: str = "") -> Sample:
    return source_reading(node, name, at, up=up, duration_seconds=0.1, age_seconds=0.0, fault=fault)


def inventory(index: int, pci: str, at: int = NOW, node: str = "n3") -> Sample:
    text = f"gpu={index} uuid=GPU-1 serial=1 model=NVIDIA H100 80GB HBM3"
    return event(node, "inventory", "gpu", at, text=text, severity=0, device=pci)


def host(at: int, node: str = "n3", **fields: float) -> Sample:
    return sample("host", at, {"boot_time_seconds": BOOT / SECOND} | fields, node=node)


def feed(rules: Rules, samples: Iterable[Sample], delay: int = 0) -> None:
    for one in samples:
        rules.observe(one, one.time_ns + delay)


def told(
    rules: Rules, now: int = NOW, expected: int = 0, node: str = "n3"
) -> list[tuple[str, str]]:
    return [(fact.code, fact.entity.device) for fact in rules.facts(now, {node: expected})]


@pytest.fixture
def rules() -> Rules:
    return Rules()


# ---- the rule book --------------------------------------------------------------------------


def test_every_rule_says_what_it_means_when_it_holds_and_when_it_ends() -> None:
    for name, rule in RULES.items():
        assert name == rule.name
        assert rule.meaning
        assert rule.threshold
        assert rule.ends
        assert rule.remedy in (Remedy.ALERT, Remedy.DRAIN)


# ---- Xids -----------------------------------------------------------------------------------


def test_xid_79_is_a_drain_of_the_gpu_at_that_address(rules: Rules) -> None:
    feed(rules, [inventory(4, "0000:9b:00", NOW - SECOND), xid(79)])
    (fact,) = rules.facts(NOW, {"n3": 8})
    assert fact == Fact(
        Entity("gpu", "n3", "gpu4"),
        "xid",
        "x79",
        3,
        Remedy.DRAIN,
        NOW,
        "fell off the bus",
        "restart the node; if it comes back, call support",
        (LINE.format(79),),
    )


def test_without_an_inventory_the_address_names_the_gpu(rules: Rules) -> None:
    feed(rules, [xid(79)])
    assert told(rules) == [("x79", "0000:9b:00")]


def test_an_inventory_that_comes_later_does_not_rename_a_known_fact(rules: Rules) -> None:
    feed(rules, [xid(79), inventory(4, "0000:9b:00", NOW + SECOND)])
    assert told(rules) == [("x79", "0000:9b:00")]
    feed(rules, [xid(79)])
    assert told(rules) == [("x79", "0000:9b:00")]


def test_after_a_renumbering_an_index_names_one_address(rules: Rules) -> None:
    feed(rules, [inventory(3, "0000:3b:00"), inventory(4, "0000:9b:00")])
    feed(rules, [inventory(3, "0000:9b:00", NOW + SECOND)])
    feed(rules, [xid(79, NOW + 2 * SECOND), xid(119, NOW + 2 * SECOND, "0000:3b:00")])
    assert sorted(told(rules, NOW + 2 * SECOND)) == [("x119", "0000:3b:00"), ("x79", "gpu3")]


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 69])
def test_application_xids_are_no_facts(rules: Rules, code: int) -> None:
    feed(rules, [xid(code, NOW + i) for i in range(200)])
    assert told(rules) == []


def test_the_same_line_twice_is_one_fact_with_one_onset(rules: Rules) -> None:
    feed(rules, [xid(79), xid(79), xid(79, NOW + 60 * SECOND)])
    facts = rules.facts(NOW + 60 * SECOND, {})
    assert [(fact.code, fact.onset_ns) for fact in facts] == [("x79", NOW)]


def test_154_is_what_its_word_says_and_can_be_taken_back(rules: Rules) -> None:
    text = "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to "
    feed(rules, [xid(154, NOW, text=text + "0x4 (Drain and Reset)")])
    (fact,) = rules.facts(NOW, {})
    assert (fact.code, fact.remedy) == ("x154", Remedy.DRAIN)
    assert "drain and reset" in fact.text
    feed(rules, [xid(154, NOW + 9 * SECOND, text=text + "0x0 (None)")])
    assert told(rules) == []
    feed(rules, [xid(154, NOW, text=text + "0x4 (Drain and Reset)")])  # a replay
    assert told(rules) == []


def test_nvml_without_a_recovery_action_ends_a_154(rules: Rules) -> None:
    text = "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1"
    feed(rules, [inventory(4, "0000:9b:00"), xid(154, text=text)])
    feed(rules, [gpu(4, NOW + 10 * SECOND, recovery_action=1.0)])
    assert ("x154", "gpu4") in told(rules, NOW + 10 * SECOND)
    feed(rules, [gpu(4, NOW + 60 * SECOND, recovery_action=0.0)])
    assert told(rules, NOW + 60 * SECOND) == []


def test_xid_0_is_none(rules: Rules) -> None:
    feed(rules, [xid(0)])
    assert told(rules) == []


def test_an_unknown_code_alerts(rules: Rules) -> None:
    feed(rules, [xid(999)])
    (fact,) = rules.facts(NOW, {})
    assert (fact.code, fact.remedy) == ("x999", Remedy.ALERT)


def test_the_lost_line_beside_xid_79_is_evidence_not_a_second_fact(rules: Rules) -> None:
    text = "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus."
    lost = event("n3", "gpu_lost", "lost", NOW + 20, text=text, severity=3, device="0000:9b:00")
    feed(rules, [xid(79), lost])
    (fact,) = rules.facts(NOW, {})
    assert fact.code == "x79"
    assert fact.evidence == (LINE.format(79), text)


def test_a_gpu_lost_without_an_xid_is_a_fact(rules: Rules) -> None:
    lines = (
        "NVRM: The NVIDIA GPU 0000:b3:00.0\n               NVRM: (PCI ID: 10de:2330) installed in "
        "this system has\n               NVRM: fallen off the bus and is not responding.\n"
    )
    feed(rules, parse(lines, "n3", NOW)[0])
    (fact,) = rules.facts(NOW, {})
    assert (fact.code, fact.rule, fact.remedy) == ("lost", "gpu_lost", Remedy.DRAIN)


def test_only_fatal_sxids_are_facts(rules: Rules) -> None:
    log = (
        "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 12028, Non-fatal, Link 32 egress\n"
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Severity 1 Engine instance 30\n"
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"
    )
    feed(rules, parse(log, "n3", NOW)[0])
    (fact,) = rules.facts(NOW, {})
    assert (fact.code, fact.entity) == ("sxid20034", Entity("chassis", "n3", "0000:c1:00"))


# ---- how long a fact holds ------------------------------------------------------------------


def test_a_latched_fact_holds_through_silence(rules: Rules) -> None:
    feed(rules, [xid(79)])
    assert told(rules, NOW + 7 * 86_400 * SECOND) == [("x79", "0000:9b:00")]


def test_a_restart_ends_what_was_before_and_nothing_after(rules: Rules) -> None:
    feed(rules, [xid(79), xid(48, NOW + 200 * SECOND)])
    reboot = event("n3", "reboot", "boot", NOW + 100 * SECOND, text="restarted", severity=0)
    feed(rules, [reboot])
    assert told(rules, NOW + 300 * SECOND) == [("x48", "0000:9b:00")]
    feed(rules, [xid(79)])  # the old line, told again
    assert told(rules, NOW + 300 * SECOND) == [("x48", "0000:9b:00")]


def test_a_new_boot_time_is_a_restart(rules: Rules) -> None:
    feed(rules, [host(NOW - 10 * SECOND), xid(79)])
    assert told(rules) == [("x79", "0000:9b:00")]
    later = NOW + 400 * SECOND
    feed(rules, [host(later, boot_time_seconds=(NOW + 300 * SECOND) / SECOND)])
    assert told(rules, later) == []


def test_a_step_of_the_clock_is_no_restart(rules: Rules) -> None:
    feed(rules, [host(NOW - 10 * SECOND), xid(79)])
    # The clock is put forward by an hour: boot time and readings move with it.
    step = 3_600 * SECOND
    feed(rules, [host(NOW + step, boot_time_seconds=(BOOT + step) / SECOND)])
    assert told(rules, NOW + step) == [("x79", "0000:9b:00")]


def test_clear_spends_what_was_before_it(rules: Rules) -> None:
    feed(rules, [xid(79)])
    rules.clear("n3", NOW + 10 * SECOND)
    assert told(rules, NOW + 20 * SECOND) == []
    feed(rules, [xid(79)])  # found again after a restart of the agent
    assert told(rules, NOW + 20 * SECOND) == []
    feed(rules, [xid(79, NOW + 30 * SECOND)])
    assert told(rules, NOW + 30 * SECOND) == [("x79", "0000:9b:00")]


def test_clear_before_an_onset_leaves_it(rules: Rules) -> None:
    feed(rules, [xid(79)])
    rules.clear("n3", NOW - SECOND)
    assert told(rules) == [("x79", "0000:9b:00")]


def test_an_event_of_a_fast_clock_is_spent_by_clear_all_the_same(rules: Rules) -> None:
    ahead = xid(79, NOW + 600 * SECOND)
    rules.observe(ahead, NOW)
    rules.clear("n3", NOW + 10 * SECOND)
    rules.observe(ahead, NOW + 11 * SECOND)
    assert told(rules, NOW + 20 * SECOND) == []


def test_a_state_that_lasts_over_clear_stays_hidden_until_it_has_gone(rules: Rules) -> None:
    feed(rules, [gpu(3, NOW, row_remap_failed=1.0)])
    assert told(rules) == [("remap", "gpu3")]
    rules.clear("n3", NOW + SECOND)
    feed(rules, [gpu(3, NOW + 10 * SECOND, row_remap_failed=1.0)])
    assert told(rules, NOW + 10 * SECOND) == []
    feed(rules, [gpu(3, NOW + 20 * SECOND, row_remap_failed=0.0)])
    feed(rules, [gpu(3, NOW + 30 * SECOND, row_remap_failed=1.0)])
    assert told(rules, NOW + 30 * SECOND) == [("remap", "gpu3")]


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


def cycle(at: int, indices: Iterable[int], up: bool = True) -> list[Sample]:
    return [*(gpu(index, at) for index in indices), source("nvml", at, up)]


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
    feed(rules, [gpu(3, NOW - step), gpu(3, NOW)])
    feed(rules, [frozen(3, NOW + step)])
    assert told(rules, NOW + step) == []
    feed(rules, [frozen(3, NOW + 2 * step)])
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


# ---- the tool's own troubles ----------------------------------------------------------------


def test_a_spool_that_is_emptied_tells_nothing_until_it_has_caught_up(rules: Rules) -> None:
    """The head was away for two hours; the node lost a GPU then, and restarted since."""
    old = NOW - 7_200 * SECOND
    arrival = NOW
    feed_at = [
        host(old - 10 * SECOND),
        xid(79, old),
        gpu(3, old, row_remap_failed=1.0),
        host(old),
    ]
    for one in feed_at:
        rules.observe(one, arrival)
    assert told(rules, arrival) == []
    boot = old + 3_600 * SECOND
    rest = [
        event("n3", "reboot", "boot", boot, text="restarted", severity=0),
        gpu(3, NOW, row_remap_failed=0.0),
        host(NOW, boot_time_seconds=boot / SECOND),
    ]
    for one in rest:
        rules.observe(one, arrival + SECOND)
    assert told(rules, arrival + SECOND) == []


def test_a_spool_that_is_emptied_tells_what_still_holds_in_the_end(rules: Rules) -> None:
    old = NOW - 7_200 * SECOND
    for one in [host(old), xid(79, old)]:
        rules.observe(one, NOW)
    assert told(rules) == []
    rules.observe(host(NOW), NOW)
    assert told(rules) == [("x79", "0000:9b:00")]


def test_urgent_events_that_come_before_their_readings_wait_for_them(rules: Rules) -> None:
    """The head was away; the spool sends the Xid first, and the restart after it."""
    feed(rules, [host(NOW - 7_300 * SECOND + step * 10 * SECOND) for step in range(10)])
    rules.observe(xid(79, NOW - 7_000 * SECOND), NOW)
    assert told(rules) == []
    rules.observe(host(NOW - 7_000 * SECOND), NOW)
    assert told(rules) == []
    boot = (NOW - 3_600 * SECOND) / SECOND
    rules.observe(host(NOW - 10 * SECOND, boot_time_seconds=boot), NOW)
    assert told(rules) == []


def test_a_live_event_does_not_wait(rules: Rules) -> None:
    feed(rules, [host(NOW - 60 * SECOND + step * 10 * SECOND) for step in range(6)])
    rules.observe(xid(79), NOW + SECOND // 2)
    assert told(rules, NOW + SECOND // 2) == [("x79", "0000:9b:00")]


def test_what_a_first_look_at_the_log_finds_is_told_but_not_acted_on(rules: Rules) -> None:
    old = NOW - 40_000 * SECOND
    rules.observe(xid(119, old), NOW)
    rules.observe(host(NOW), NOW)
    (fact,) = rules.facts(NOW, {})
    assert (fact.code, fact.remedy, fact.onset_ns) == ("x119", Remedy.ALERT, old)
    assert "before this node was watched" in fact.text
    # It happens again, under our eyes.
    rules.observe(xid(119, NOW + 5 * SECOND), NOW + 5 * SECOND)
    (fact,) = rules.facts(NOW + 5 * SECOND, {})
    assert (fact.remedy, fact.onset_ns) == (Remedy.DRAIN, NOW + 5 * SECOND)


def test_what_came_while_the_head_was_away_is_acted_on(rules: Rules) -> None:
    feed(rules, [host(NOW - 90_000 * SECOND + step * 10 * SECOND) for step in range(10)])
    rules.observe(xid(119, NOW - 40_000 * SECOND), NOW)
    rules.observe(host(NOW), NOW)
    (fact,) = rules.facts(NOW, {})
    assert fact.remedy is Remedy.DRAIN


def test_a_node_that_fell_silent_while_behind_keeps_its_facts(rules: Rules) -> None:
    old = NOW - 7_200 * SECOND
    for one in [host(old), xid(79, old)]:
        rules.observe(one, NOW)
    assert told(rules) == []
    assert told(rules, NOW + 600 * SECOND) == [("x79", "0000:9b:00")]


def test_a_head_that_was_away_for_long_hears_its_nodes_before_it_concludes(rules: Rules) -> None:
    """The Xid was stored; the node restarted while the head was down, and has not said so yet."""
    feed(rules, [host(NOW - 60 * SECOND), xid(79)])
    state = json.loads(json.dumps(rules.dump()))
    back = NOW + 7_200 * SECOND
    again = Rules()
    again.load(state)
    assert told(again, back) == []
    boot = (NOW + 3_600 * SECOND) / SECOND
    again.observe(host(back + 10 * SECOND, boot_time_seconds=boot), back + 10 * SECOND)
    assert told(again, back + 10 * SECOND) == []
    silent = Rules()
    silent.load(state)
    assert told(silent, back) == []
    assert told(silent, back + 200 * SECOND) == [("x79", "0000:9b:00")]
    soon = Rules()  # killed and started again at once
    soon.load(state)
    assert told(soon, NOW + 5 * SECOND) == [("x79", "0000:9b:00")]


def test_old_events_read_again_from_the_store_do_not_act_without_a_memory() -> None:
    """The checkpoint is lost: a month of events is read again, each as of its own time."""
    rules = Rules()
    feed(rules, [xid(119, NOW - 40_000 * SECOND), xid(95, NOW - 60 * SECOND)])
    feed(rules, [host(NOW - step * 10 * SECOND) for step in range(30, 0, -1)])
    facts = {fact.code: fact.remedy for fact in rules.facts(NOW, {})}
    assert facts == {"x119": Remedy.ALERT, "x95": Remedy.DRAIN}


def test_a_node_whose_clock_is_slow_is_believed_once_that_is_known(rules: Rules) -> None:
    slow = 1_800 * SECOND
    for step in range(12):
        at = NOW + step * 10 * SECOND
        rules.observe(gpu(3, at - slow, row_remap_failed=1.0), at)
    assert told(rules, NOW + 110 * SECOND) == [("remap", "gpu3")]
    assert told(rules, NOW + 900 * SECOND) == []


def test_a_clock_that_is_far_from_the_heads_is_told(rules: Rules) -> None:
    for step in range(12):
        at = NOW + step * 10 * SECOND
        rules.observe(host(at - 600 * SECOND), at)
    (fact,) = rules.facts(at, {})
    assert (fact.code, fact.remedy, fact.text) == (
        "clock",
        Remedy.ALERT,
        "clock is off by -600.0 s",
    )
    late = Rules()  # sent a few seconds late, as agents do
    for step in range(12):
        at = NOW + step * 10 * SECOND
        late.observe(host(at - 9 * SECOND), at)
    assert late.facts(at, {}) == []


def test_an_older_reading_does_not_overrule_a_newer_one(rules: Rules) -> None:
    feed(rules, [gpu(3, NOW, row_remap_failed=0.0)])
    rules.observe(gpu(3, NOW - 60 * SECOND, row_remap_failed=1.0), NOW)
    assert told(rules) == []


def test_the_driver_that_starts_the_gpu_after_all_ends_the_fact(rules: Rules) -> None:
    text = "NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x62:0x65:2417)\n"
    feed(rules, [inventory(4, "0000:9b:00", NOW - SECOND), *parse(text, "n3", NOW)[0]])
    assert told(rules) == [("init", "gpu4")]
    feed(rules, [gpu(4, NOW + 60 * SECOND)])
    assert told(rules, NOW + 60 * SECOND) == []


# ---- the host -------------------------------------------------------------------------------


def test_host_states_and_events_are_facts(rules: Rules) -> None:
    feed(rules, [host(NOW, filesystem_readonly=1.0, clock_offset_seconds=-9.0)])
    feed(rules, [sample("disk", NOW, {"critical_warning": 4.0}, node="n3", device="nvme0")])
    facts = {fact.code: fact.remedy for fact in rules.facts(NOW, {})}
    assert facts == {"fs": Remedy.DRAIN, "clock": Remedy.ALERT, "smart": Remedy.ALERT}


def test_an_uncorrectable_host_memory_error_is_one_fact_by_line_or_by_count(rules: Rules) -> None:
    feed(rules, [host(NOW - 10 * SECOND, edac_uncorrected_total=0.0)])
    line = "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#1 (channel:0 slot:1)\n"
    feed(rules, parse(line, "n3", NOW)[0])
    feed(rules, [host(NOW, edac_uncorrected_total=1.0)])
    (fact,) = rules.facts(NOW, {})
    assert (fact.code, fact.remedy) == ("ue", Remedy.DRAIN)
    assert fact.entity == Entity("memory", "n3", "CPU_SrcID#0_MC#0_Chan#0_DIMM#1")
    other = Rules()
    feed(other, [host(NOW - SECOND, edac_uncorrected_total=0.0)])
    feed(other, [host(NOW, edac_uncorrected_total=1.0)])
    assert [fact.code for fact in other.facts(NOW, {})] == ["ue"]


# ---- the chassis ----------------------------------------------------------------------------


def bmc(at: int, critical: float, sensor: str = "FAN3") -> Sample:
    fields = {"value": 900.0, "critical": critical, "present": 1.0}
    return sample("bmc", at, fields, node="n3", sensor=sensor, kind="rpm")


def sel(code: str, at: int, severity: float, device: str = "PSU2") -> Sample:
    return event("n3", "sel", code, at, text="; words", severity=severity, device=device)


def test_a_sensor_that_is_critical_twice_alerts_until_it_is_well(rules: Rules) -> None:
    feed(rules, [bmc(NOW, 1.0)])
    assert told(rules) == []
    feed(rules, [bmc(NOW + 60 * SECOND, 1.0)])
    (fact,) = rules.facts(NOW + 60 * SECOND, {})
    assert (fact.code, fact.remedy, fact.entity) == (
        "bmc",
        Remedy.ALERT,
        Entity("chassis", "n3", "FAN3"),
    )
    feed(rules, [bmc(NOW + 120 * SECOND, 0.0)])
    assert told(rules, NOW + 120 * SECOND) == []


def test_a_bmc_that_is_read_again_after_an_hour_of_silence_is_no_evidence(rules: Rules) -> None:
    feed(rules, [bmc(NOW, 1.0), bmc(NOW + 60 * SECOND, 1.0)])
    assert told(rules, NOW + 3_600 * SECOND) == []


def test_readings_of_a_bmc_do_not_make_an_agent_look_up_to_date(rules: Rules) -> None:
    old = NOW - 7_200 * SECOND
    for one in [bmc(NOW, 0.0), host(old), xid(79, old)]:
        rules.observe(one, NOW)
    assert told(rules) == []


def test_what_the_head_reads_does_not_make_an_agent_look_up_to_date(rules: Rules) -> None:
    feed(rules, [host(NOW - 7_300 * SECOND)])
    for one in [source("bmc", NOW), source("dcgm_exporter", NOW), xid(79, NOW - 7_200 * SECOND)]:
        rules.observe(one, NOW)
    assert told(rules) == []


def test_a_critical_log_entry_alerts_until_the_bmc_says_it_is_over(rules: Rules) -> None:
    feed(rules, [sel("power_supply_input_lost", NOW, 3.0), sel("fan_lower_warning", NOW, 1.0)])
    (fact,) = rules.facts(NOW, {})
    assert (fact.rule, fact.remedy) == ("sel", Remedy.ALERT)
    assert fact.text == "power supply input lost (PSU2)"
    feed(rules, [sel("power_supply_input_lost", NOW + 90 * SECOND, 0.0)])
    assert told(rules, NOW + 90 * SECOND) == []


def test_an_uncorrectable_memory_error_in_the_log_of_the_bmc_drains(rules: Rules) -> None:
    feed(rules, [sel("memory_uncorrectable", NOW, 3.0, "DIMM_A1")])
    (fact,) = rules.facts(NOW, {})
    assert (fact.rule, fact.remedy) == ("memory_uncorrected", Remedy.DRAIN)
    assert fact.entity == Entity("memory", "n3", "DIMM_A1")


def test_log_entries_from_before_the_restart_are_history(rules: Rules) -> None:
    feed(rules, [host(NOW), sel("memory_uncorrectable", BOOT - 60 * SECOND, 3.0)])
    assert told(rules) == []


# ---- PCIe -----------------------------------------------------------------------------------


def pcie(at: int, address: str = "0000:9b:00", **fields: float) -> Sample:
    full = {"present": 1.0, "link_width": 16.0, "link_width_max": 16.0} | fields
    return sample("pcie", at, full, node="n3", address=address)


def test_a_gpu_that_leaves_the_bus_in_sysfs_drains_at_the_second_reading(rules: Rules) -> None:
    feed(rules, [inventory(4, "0000:9b:00"), pcie(NOW), pcie(NOW + 30 * SECOND, present=0.0)])
    assert told(rules, NOW + 30 * SECOND) == []
    feed(rules, [pcie(NOW + 60 * SECOND, present=0.0)])
    (fact,) = rules.facts(NOW + 60 * SECOND, {})
    assert (fact.code, fact.remedy, fact.entity.device) == ("gone", Remedy.DRAIN, "gpu4")
    feed(rules, [pcie(NOW + 90 * SECOND)])
    assert told(rules, NOW + 90 * SECOND) == []


def test_a_reset_that_takes_a_gpu_away_for_a_moment_is_no_fact(rules: Rules) -> None:
    feed(rules, [inventory(4, "0000:9b:00")])
    for step in range(20):
        at = NOW + step * 30 * SECOND
        feed(rules, [pcie(at, present=float(step % 2))])
        assert told(rules, at) == []


def test_another_device_that_is_gone_or_a_narrow_link_alerts(rules: Rules) -> None:
    for step in range(2):
        at = NOW + step * 30 * SECOND
        feed(rules, [pcie(at, "0000:41:00", present=0.0), pcie(at, "0000:3b:00", link_width=8.0)])
    facts = {fact.code: (fact.remedy, fact.text) for fact in rules.facts(at, {})}
    assert facts == {
        "gone": (Remedy.ALERT, "PCIe device is gone"),
        "lanes": (Remedy.ALERT, "PCIe link has 8 of 16 lanes"),
    }


# ---- memory ---------------------------------------------------------------------------------


def test_what_is_remembered_goes_through_json_and_back(rules: Rules) -> None:
    feed(rules, [inventory(4, "0000:9b:00"), host(NOW), xid(79), xid(48, pci="0000:3b:00")])
    feed(rules, [gpu(3, NOW, row_remap_failed=1.0, ecc_uncorrected_total=1.0)])
    feed(rules, [gpu(3, NOW + SECOND, row_remap_failed=1.0, ecc_uncorrected_total=3.0)])
    feed(rules, cycle(NOW + SECOND, range(8)))
    other = Rules()
    other.load(json.loads(json.dumps(rules.dump())))
    now = NOW + 2 * SECOND
    assert other.facts(now, {"n3": 8}) == rules.facts(now, {"n3": 8})
    assert len(other.facts(now, {"n3": 8})) >= 3
    assert other.dump() == rules.dump()
    for one in (rules, other):
        feed(one, [xid(79), gpu(3, NOW + 11 * SECOND, ecc_uncorrected_total=9.0)])
    assert other.facts(now, {}) == rules.facts(now, {})


def test_a_node_that_sends_nonsense_costs_bounded_memory(rules: Rules) -> None:
    for number in range(3_000):
        feed(rules, [xid(79, NOW + number, pci=f"{number:04x}:01:00")])
        feed(rules, [inventory(number, f"{number:04x}:02:00")])
        feed(rules, [gpu(number, NOW)])
    (node,) = rules.dump()["nodes"].values()
    assert len(node["active"]) <= 256
    assert len(node["gpus"]) <= 256
    assert len(node["inventory"]) <= 256


VALUES = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 1.0, -1.0, 2.0**63])
)
FIELDS = st.dictionaries(
    st.sampled_from(
        [
            "lost",
            "recovery_action",
            "row_remap_failed",
            "ecc_uncorrected_total",
            "memory_used_bytes",
            "temperature_celsius",
            "boot_time_seconds",
            "clock_offset_seconds",
            "critical",
            "present",
            "link_width",
            "link_width_max",
            "up",
        ]
    ),
    VALUES,
    min_size=1,
)
SAMPLES = st.builds(
    lambda measurement, at, fields, gpu_index, kind, code, text: sample(
        measurement,
        at,
        {**fields, "text": text, "device": text} if measurement == "event" else fields,
        node="n3",
        gpu=gpu_index,
        source="nvml",
        kind=kind,
        code=code,
    ),
    st.sampled_from(["gpu", "event", "host", "source", "disk", "bmc", "pcie", "other"]),
    st.integers(1, 2**62),
    FIELDS,
    st.sampled_from(["", "0", "3", "x"]),
    st.sampled_from(["xid", "sxid", "inventory", "reboot", "gpu_lost", "driver", "sel", ""]),
    st.sampled_from(["79", "13", "154", "144", "", "x", "init_failed", "9" * 30]),
    st.sampled_from(["", "gpu=3 uuid=x", "0000:9b:00", "NVRM: Xid (PCI:0000:9b:00): 154, x"]),
)


@settings(max_examples=200)
@given(st.lists(st.tuples(SAMPLES, st.integers(1, 2**62)), max_size=12))
def test_no_samples_give_a_traceback(pairs: list[tuple[Sample, int]]) -> None:
    rules = Rules(Thresholds())
    for one, arrival in pairs:
        rules.observe(one, arrival)
        rules.facts(arrival, {"n3": 8})
        rules.clear("n3", arrival)
    other = Rules()
    other.load(json.loads(json.dumps(rules.dump())))
    assert other.facts(NOW, {"n3": 8}) == rules.facts(NOW, {"n3": 8})
