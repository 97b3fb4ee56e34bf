"""The real nvidia-ml-py on eight fake GPUs that fall ill, vanish, lie and hang."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import collectors.gpu.nvml as nvml
from collectors.gpu.metrics import GPU_METRICS, PROFILED, RESTLESS
from collectors.gpu.nvml import Nvml
from collectors.sample import Batch, Context, Source
from tests.collectors.contract import NOW_NS, SourceContract
from tests.collectors.fake_gpus import FakeGpus
from tests.collectors.gpu.nvml_help import PATIENT, SECOND, by_gpu


class TestContract(SourceContract):
    module = nvml

    @pytest.fixture
    def healthy(self, gpus: FakeGpus, context: Context) -> Source:
        options = nvml.Options(library_folder=gpus.library_folder, deadline_seconds=PATIENT)
        return nvml.make(options, context)

    @pytest.fixture
    def unavailable(self, gpus: FakeGpus, context: Context) -> Source:
        gpus.unload_driver()
        options = nvml.Options(library_folder=gpus.library_folder, deadline_seconds=PATIENT)
        return nvml.make(options, context)


# ---- what is read --------------------------------------------------------------------------


def test_every_field_of_the_gpu_table_is_read_in_our_units(source: Nvml, gpus: FakeGpus) -> None:
    gpus.write(
        "[gpu3]\nfan = 30\nretired.sbe = 0x1f000@1700000000\nretired.dbe = 0x1@1 0x2@2\n"
        "retired.pending = 1\nsram.threshold_exceeded = 1\nthrottle = 0xec\nmig = 1\n"
        "recovery = 2\nremap.corrected = 4\nremap.uncorrected = 5\nremap.pending = 1\n"
        "remap.failed = 1\nremap.histogram = 2555 2 1 1 1\npcie.replay = 7\npcie.width = 8\n"
        "pcie.gen = 1\necc.aggregate.corrected.dram = 11\necc.aggregate.uncorrected.sram = 2\n"
        "ecc.volatile.uncorrected.sram = 1\nnvlink.4.state = 0\nnvlink.4.replay = 991\n"
        "nvlink.5.recovery = 3\nnvlink.*.crc_flit = 2\nfield.74 = 91403239000\n"
        "field.269 = 7000000000\nfield.270 = 118000\nfield.271 = 0\n"
    )
    fields = dict(by_gpu(source.collect(NOW_NS))["3"].fields)
    assert set(fields) == {metric.name for metric in GPU_METRICS} - PROFILED
    expected = {
        "temperature_celsius": 41,
        "memory_temperature_celsius": 48,
        "power_watts": 118.5,
        "power_limit_watts": 700,
        "energy_joules_total": 91827364.55,
        "sm_clock_hertz": 1.98e9,
        "sm_clock_max_hertz": 1.98e9,
        "memory_clock_hertz": 2.619e9,
        "utilization_ratio": 0.97,
        "memory_utilization_ratio": 0.54,
        "memory_used_bytes": 61203283968,
        "memory_total_bytes": 85520809984,
        "ecc_corrected_total": 11,
        "ecc_uncorrected_total": 2,
        "ecc_sram_threshold_exceeded": 1,
        "remapped_rows_corrected_total": 4,
        "remapped_rows_uncorrected_total": 5,
        "row_remap_pending": 1,
        "row_remap_failed": 1,
        "remap_banks_max": 2555,
        "remap_banks_high": 2,
        "remap_banks_partial": 1,
        "remap_banks_low": 1,
        "remap_banks_none": 1,
        "retired_pages_single_total": 1,
        "retired_pages_double_total": 2,
        "retired_pages_pending": 1,
        "pcie_link_generation": 1,
        "pcie_link_generation_max": 5,
        "pcie_link_width": 8,
        "pcie_link_width_max": 16,
        "pcie_replays_total": 7,
        "throttle_hw_slowdown": 1,
        "throttle_hw_thermal": 1,
        "throttle_hw_power_brake": 1,
        "throttle_sw_thermal": 1,
        "throttle_sw_power_cap": 1,
        "throttle_sw_power_cap_seconds_total": 91.403239,
        "throttle_sw_thermal_seconds_total": 7,
        "throttle_hw_thermal_seconds_total": 0.000118,
        "throttle_hw_power_brake_seconds_total": 0,
        "recovery_action": 2,
        "nvlink_links_active": 17,
        "nvlink_crc_errors_total": 36,
        "nvlink_replays_total": 991,
        "nvlink_recoveries_total": 3,
        "fan_speed_ratio": 0.3,
        "mig_enabled": 1,
        "lost": 0,
    }
    assert fields == pytest.approx(expected)


def test_a_board_that_is_cut_into_instances_is_scored_and_that_is_said_once(
    source: Nvml, gpus: FakeGpus
) -> None:
    gpus.write("[gpu3]\nmig = 1\n")
    batch = source.collect(NOW_NS)
    words = "gpu3: MIG is on: the board is scored, its instances are not"
    assert [one.problem for one in batch.problems] == [words]
    assert by_gpu(batch)["3"].number("temperature_celsius") == 41.0
    assert len(by_gpu(batch)) == 8
    assert source.collect(NOW_NS + 61 * SECOND).problems == ()


def test_what_moves_is_told_before_what_stays(source: Nvml) -> None:
    """So the rest of a line stands together, and a head knows it by its bytes."""
    for one in by_gpu(source.collect(NOW_NS)).values():
        moves = [name in RESTLESS for name in one.fields]
        assert moves == sorted(moves, reverse=True)
        assert sum(moves) > 6


def test_gpus_carry_index_and_uuid(source: Nvml) -> None:
    found = by_gpu(source.collect(NOW_NS))
    assert sorted(found) == [str(index) for index in range(8)]
    assert found["5"].tag("uuid") == "GPU-5eed0005-1005-4005-8005-fa4e00000005"


def test_what_a_board_does_not_have_is_absent_and_no_problem(source: Nvml, gpus: FakeGpus) -> None:
    gpus.write("[gpu2]\nmemtemp = !NOT_SUPPORTED\nremap.histogram = !NOT_SUPPORTED\n")
    batch = source.collect(NOW_NS)
    fields = by_gpu(batch)["2"].fields
    assert "memory_temperature_celsius" not in fields
    assert "remap_banks_max" not in fields
    assert "fan_speed_ratio" not in fields
    assert batch.problems == ()


def test_one_bad_field_costs_that_field_only(source: Nvml, gpus: FakeGpus) -> None:
    gpus.write("[gpu2]\ntemp = !UNKNOWN\nremap.pending = !UNKNOWN\nutil = !TIMEOUT\n")
    batch = source.collect(NOW_NS)
    found = by_gpu(batch)
    assert "temperature_celsius" not in found["2"].fields
    assert "row_remap_pending" not in found["2"].fields
    assert "utilization_ratio" not in found["2"].fields
    assert found["2"].number("row_remap_failed") == 0.0
    assert found["2"].number("power_watts") == 118.5
    assert len(found["3"].fields) > len(found["2"].fields)
    told = {problem.problem for problem in batch.problems}
    assert "gpu2: row_remap_pending, temperature_celsius: Unknown Error" in told
    assert "gpu2: utilization_ratio, memory_utilization_ratio: Timeout" in told


def test_impossible_values_are_refused_and_told_never_zero(source: Nvml, gpus: FakeGpus) -> None:
    gpus.write(
        "[gpu1]\ntemp = 4294967295\npower = 2147483648\nutil = 101\nenergy = 18446744073709551615\n"
        "field.82 = 4294967295\nfield.142 = 2147483632\nclock.sm = 4294967295\n"
    )
    batch = source.collect(NOW_NS)
    fields = by_gpu(batch)["1"].fields
    refused = {
        "temperature_celsius",
        "power_watts",
        "utilization_ratio",
        "energy_joules_total",
        "memory_temperature_celsius",
        "remapped_rows_corrected_total",
        "sm_clock_hertz",
    }
    assert not refused & set(fields)
    told = " ".join(problem.problem for problem in batch.problems)
    assert all(f"gpu1: {name} out of range" in told for name in refused)


def test_what_is_no_number_costs_its_field_and_nobody_else(source: Nvml, gpus: FakeGpus) -> None:
    gpus.write("[gpu3]\nfield.83 = d:nan\nfield.94 = d:inf\nfield.82 = d:-inf\n")
    batch = source.collect(NOW_NS)
    assert batch.up
    assert len(by_gpu(batch)) == 8
    odd = {"energy_joules_total", "pcie_replays_total", "memory_temperature_celsius"}
    assert not odd & set(by_gpu(batch)["3"].fields)
    assert odd <= set(by_gpu(batch)["2"].fields)
    told = " ".join(one.problem for one in batch.problems)
    assert all(name in told for name in odd)
    assert told.count("gpu3") == len(batch.problems)


def test_a_zero_is_a_zero(source: Nvml, gpus: FakeGpus) -> None:
    gpus.write("[gpu1]\npower = 0\nutil = 0\ntemp = 0\nmem.used = 0\n")
    fields = by_gpu(source.collect(NOW_NS))["1"].fields
    for name in ("power_watts", "utilization_ratio", "temperature_celsius", "memory_used_bytes"):
        assert fields[name] == 0.0


def test_volatile_errors_stand_in_only_where_a_board_keeps_no_aggregate(
    source: Nvml, gpus: FakeGpus
) -> None:
    gpus.write(
        "[gpu1]\nfield.5 = !INVALID_ARGUMENT\nfield.3 = 6\n"
        "[gpu2]\nfield.5 = !UNKNOWN\nfield.3 = 6\n[gpu3]\necc = 0\n"
    )
    found = by_gpu(source.collect(NOW_NS))
    assert found["0"].number("ecc_corrected_total") == 0.0
    assert found["1"].number("ecc_corrected_total") == 6.0
    assert found["2"].number("ecc_corrected_total") is None  # one number must not mean two things
    assert found["3"].number("ecc_corrected_total") is None  # ECC is off: not zero errors


def test_nvlink_5_boards_are_read_by_their_own_counters(source: Nvml, gpus: FakeGpus) -> None:
    old = ("replay", "recovery", "crc_flit")
    none = "".join(f"nvlink.*.{counter} = !INVALID_ARGUMENT\n" for counter in old)
    gpus.write(
        f"[default]\n{none}field.208.2 = 5\nfield.208.3 = 6\nfield.215.0 = 4\nfield.295.1 = 9\n"
    )
    fields = by_gpu(source.collect(NOW_NS))["0"].fields
    assert fields["nvlink_crc_errors_total"] == 11.0
    assert fields["nvlink_recoveries_total"] == 4.0
    assert fields["nvlink_replays_total"] == 9.0


def test_a_link_that_goes_down_keeps_its_count_in_the_sum(source: Nvml, gpus: FakeGpus) -> None:
    gpus.write("[gpu0]\nnvlink.4.replay = 991\nnvlink.5.replay = 9\n")
    source.collect(NOW_NS)
    gpus.write(
        "[gpu0]\nnvlink.4.replay = !INVALID_ARGUMENT\nnvlink.4.state = 0\nnvlink.5.replay = 10\n"
    )
    fields = by_gpu(source.collect(NOW_NS + 61 * SECOND))["0"].fields
    assert fields["nvlink_links_active"] == 17.0
    assert fields["nvlink_replays_total"] == 1001.0


def test_slow_fields_come_once_a_minute_and_the_others_every_time(source: Nvml) -> None:
    first = by_gpu(source.collect(NOW_NS))["0"].fields
    second = by_gpu(source.collect(NOW_NS + 10 * SECOND))["0"].fields
    third = by_gpu(source.collect(NOW_NS + 61 * SECOND))["0"].fields
    assert "nvlink_links_active" in first
    assert "nvlink_links_active" not in second
    assert {"temperature_celsius", "row_remap_failed", "recovery_action", "lost"} <= set(second)
    assert set(third) == set(first)


def test_a_field_that_a_board_learns_later_is_found_at_the_next_full_reading(
    source: Nvml, gpus: FakeGpus
) -> None:
    gpus.write("[gpu2]\nutil = !NOT_SUPPORTED\n")
    source.collect(NOW_NS)
    gpus.write()
    assert "utilization_ratio" not in by_gpu(source.collect(NOW_NS + SECOND))["2"].fields
    assert "utilization_ratio" in by_gpu(source.collect(NOW_NS + 61 * SECOND))["2"].fields


def test_an_old_library_without_the_newer_entry_points_is_read_all_the_same(
    gpus: FakeGpus, context: Context
) -> None:
    gpus.write("[gpu0]\nthrottle = 0x60\n")
    options = nvml.Options(library_folder=gpus.old_library_folder, deadline_seconds=PATIENT)
    source = nvml.make(options, context)
    try:
        batch = source.collect(NOW_NS)
    finally:
        source.close()
    assert batch.problems == ()
    fields = by_gpu(batch)["0"].fields
    assert (fields["throttle_hw_thermal"], fields["throttle_sw_thermal"]) == (1.0, 1.0)
    # Version 1 of the memory call cannot tell reserved from used.
    assert fields["memory_used_bytes"] == 61203283968 + 578813952
    assert fields["temperature_celsius"] == 38.0
    assert fields["nvlink_links_active"] == 18.0


# ---- GPUs that are lost ----------------------------------------------------------------------


# ---- Xids ------------------------------------------------------------------------------------


def append(gpus: FakeGpus, *lines: str) -> None:
    with open(f"{gpus.state}.events", "a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def xids(batch: Batch) -> list[tuple[str, str]]:
    return [
        (one.tag("code"), one.text("device")) for one in batch.samples if one.tag("kind") == "xid"
    ]


def watching(gpus: FakeGpus, context: Context) -> Nvml:
    return nvml.make(
        nvml.Options(library_folder=gpus.library_folder, deadline_seconds=PATIENT, xids=True),
        context,
    )


def test_xids_are_told_once_each_with_their_gpu(gpus: FakeGpus, context: Context) -> None:
    append(gpus, "2 xid 13")  # before we listened: of unknown age
    source = watching(gpus, context)
    assert xids(source.collect(NOW_NS)) == []
    append(gpus, "4 xid 94", "0 xid 31", "4 xid 94")
    assert xids(source.collect(NOW_NS + SECOND)) == [
        ("94", "0000:9b:00"),
        ("31", "0000:1b:00"),
        ("94", "0000:9b:00"),
    ]
    assert xids(source.collect(NOW_NS + 2 * SECOND)) == []
    source.close()


def test_a_lost_gpu_does_not_end_the_listening_to_the_others(
    gpus: FakeGpus, context: Context
) -> None:
    source = watching(gpus, context)
    source.collect(NOW_NS)
    gpus.write("[system]\nerr.nvmlEventSetWait_v2 = GPU_IS_LOST\n[gpu5]\nerr.* = GPU_IS_LOST\n")
    assert source.collect(NOW_NS + SECOND).up
    gpus.write("[gpu5]\nerr.* = GPU_IS_LOST\n")
    source.collect(NOW_NS + 2 * SECOND)
    append(gpus, "3 xid 63")
    assert xids(source.collect(NOW_NS + 3 * SECOND)) == [("63", "0000:4e:00")]
    source.close()


def test_xids_are_left_to_the_kernel_log_unless_asked_for(source: Nvml, gpus: FakeGpus) -> None:
    source.collect(NOW_NS)
    append(gpus, "3 xid 63")
    assert xids(source.collect(NOW_NS + SECOND)) == []


# ---- drivers that are missing, wrong or reloaded ----------------------------------------------


# ---- what it costs -----------------------------------------------------------------------------


def test_eight_gpus_each_ten_seconds_cost_far_less_than_half_a_percent_of_a_core(
    source: Nvml,
) -> None:
    source.collect(NOW_NS)

    def worker_seconds() -> float:
        text = Path(f"/proc/{source._worker.pid}/stat").read_text()
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    cycles = 60
    before = worker_seconds() + time.process_time()
    for turn in range(1, cycles + 1):
        source.collect(NOW_NS + turn * 10 * SECOND)
    seconds = (worker_seconds() + time.process_time() - before) / cycles
    assert seconds / 10 < 0.005, f"{seconds / 10:.2%} of a core"


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="period_seconds"):
        nvml.Options(period_seconds=0)
