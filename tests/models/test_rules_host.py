"""Facts about what is no GPU: the host, the chassis, PCIe."""

from __future__ import annotations

from collectors.events import event
from collectors.kernel.lines import parse
from collectors.sample import Sample, sample
from models.rules import Rules
from models.voices import Entity, Remedy
from tests.models.rule_samples import (
    BOOT,
    NOW,
    SECOND,
    feed,
    host,
    inventory,
    source,
    told,
    xid,
)

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
