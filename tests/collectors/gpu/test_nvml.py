"""The real nvidia-ml-py on eight fake GPUs that fall ill, vanish, lie and hang."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import collectors.gpu.nvml as nvml
from collectors.gpu.metrics import GPU_METRICS
from collectors.gpu.nvml import Nvml, Skips
from collectors.processes import started_ticks, state_of
from collectors.sample import Batch, Context, Cycle, Sample, Source, SourceUnavailable
from tests.collectors.contract import NODE, NOW_NS, SourceContract, check_batch
from tests.collectors.fake_gpus import FakeGpus
from tests.collectors.freezer import Freezer, wait_for

SECOND = 1_000_000_000
PATIENT = 30.0  # an interpreter starts slowly on a busy machine


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "root").mkdir()
    return Context(node=NODE, state_dir=tmp_path, root=tmp_path / "root", now_ns=lambda: NOW_NS)


@pytest.fixture
def source(gpus: FakeGpus, context: Context) -> Iterator[Nvml]:
    made = nvml.make(
        nvml.Options(library_folder=gpus.library_folder, deadline_seconds=PATIENT), context
    )
    yield made
    made.close()


def by_gpu(batch: Batch) -> dict[str, Sample]:
    return {one.tag("gpu"): one for one in batch.samples if one.measurement == "gpu"}


def events(batch: Batch, code: str) -> list[Sample]:
    return [one for one in batch.samples if one.tag("code") == code]


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
    assert set(fields) == {metric.name for metric in GPU_METRICS}
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


def test_a_lost_gpu_costs_that_gpu_and_keeps_its_uuid(source: Nvml, gpus: FakeGpus) -> None:
    source.collect(NOW_NS)
    gpus.write("[gpu5]\nerr.* = GPU_IS_LOST\n")
    batch = source.collect(NOW_NS + 10 * SECOND)
    found = by_gpu(batch)
    assert dict(found["5"].fields) == {"lost": 1.0}
    assert found["5"].tag("uuid") == "GPU-5eed0005-1005-4005-8005-fa4e00000005"
    assert all(found[str(index)].number("lost") == 0.0 for index in range(8) if index != 5)
    assert batch.up
    assert "gpu5: the driver says: GPU is lost" in {one.problem for one in batch.problems}


def test_a_gpu_that_is_lost_from_the_start_is_told_without_a_uuid(
    source: Nvml, gpus: FakeGpus
) -> None:
    gpus.write("[gpu5]\nhandle = !GPU_IS_LOST\n")
    lost = by_gpu(source.collect(NOW_NS))["5"]
    assert dict(lost.fields) == {"lost": 1.0}
    assert lost.tag("uuid") == ""


def test_a_gpu_that_is_lost_in_the_middle_of_its_reading_leaves_no_half_truth(
    source: Nvml, gpus: FakeGpus
) -> None:
    source.collect(NOW_NS)
    gpus.write("[gpu5]\nerr.nvmlDeviceGetUtilizationRates = GPU_IS_LOST\n")
    assert dict(by_gpu(source.collect(NOW_NS + SECOND))["5"].fields) == {"lost": 1.0}


def test_a_gpu_that_wants_a_reset_says_so_as_its_recovery_action(
    source: Nvml, gpus: FakeGpus
) -> None:
    gpus.write("[gpu6]\nhandle = !RESET_REQUIRED\n")
    assert dict(by_gpu(source.collect(NOW_NS))["6"].fields) == {
        "lost": 0.0,
        "recovery_action": 1.0,
    }


def test_a_gpu_without_a_handle_is_not_called_lost(source: Nvml, gpus: FakeGpus) -> None:
    gpus.write("[gpu4]\nhandle = !UNKNOWN\n")
    batch = source.collect(NOW_NS)
    assert sorted(by_gpu(batch)) == ["0", "1", "2", "3", "5", "6", "7"]
    assert "gpu4: the driver gives no handle: Unknown Error" in {
        one.problem for one in batch.problems
    }


def test_a_gpu_that_is_hidden_from_us_is_not_missing_in_the_node(
    source: Nvml, gpus: FakeGpus
) -> None:
    source.collect(NOW_NS)
    gpus.write("[gpu4]\nhandle = !NO_PERMISSION\n")
    batch = source.collect(NOW_NS + SECOND)
    assert sorted(by_gpu(batch)) == ["0", "1", "2", "3", "5", "6", "7"]
    assert not batch.up  # so that nobody counts its GPUs
    assert "gpu4: no permission to use the NVIDIA driver" in batch.fault
    assert events(batch, "gone") == []


def test_when_every_gpu_is_lost_each_is_told(source: Nvml, gpus: FakeGpus) -> None:
    source.collect(NOW_NS)
    gpus.write("[default]\nerr.* = GPU_IS_LOST\n")
    for turn in (1, 2):
        found = by_gpu(source.collect(NOW_NS + turn * SECOND))
        assert len(found) == 8
        assert all(one.number("lost") == 1.0 and one.tag("uuid") for one in found.values())
    gpus.write()
    assert by_gpu(source.collect(NOW_NS + 3 * SECOND))["0"].number("lost") == 0.0


# ---- which boards there are ------------------------------------------------------------------


def test_the_inventory_tells_every_board_at_the_start(source: Nvml) -> None:
    batch = source.collect(NOW_NS)
    told = events(batch, "gpu")
    assert len(told) == 8
    assert {one.tag("kind") for one in told} == {"inventory"}
    assert told[4].text("device") == "0000:9b:00"
    assert told[4].text("text") == (
        "gpu=4 uuid=GPU-5eed0004-1004-4004-8004-fa4e00000004 serial=1652923010148 "
        "model=NVIDIA H100 80GB HBM3"
    )
    assert [one.text("text") for one in events(batch, "count")] == ["gpus=8"]
    assert [one.text("text") for one in events(batch, "driver")] == ["570.86.15"]
    assert len(events(batch, "vbios")) == 8


def test_the_inventory_is_told_again_daily_and_not_in_between(source: Nvml) -> None:
    source.collect(NOW_NS)
    assert events(source.collect(NOW_NS + 1800 * SECOND), "gpu") == []
    assert len(events(source.collect(NOW_NS + 86_401 * SECOND), "gpu")) == 8


def test_gpus_that_the_driver_leaves_out_by_its_setting_are_told(
    source: Nvml, gpus: FakeGpus
) -> None:
    gpus.write("[system]\ncount = 7\nexcluded = 1\n")
    (told,) = events(source.collect(NOW_NS), "excluded")
    assert told.text("text").startswith("gpus=1 left out by the driver's own setting")
    assert events(source.collect(NOW_NS + 10 * SECOND), "excluded") == []
    gpus.write()
    (told,) = events(source.collect(NOW_NS + 20 * SECOND), "excluded")
    assert told.text("text").startswith("gpus=0 ")


def test_a_board_that_is_no_longer_listed_is_told_once_as_gone(
    source: Nvml, gpus: FakeGpus
) -> None:
    source.collect(NOW_NS)
    gpus.write("[system]\ncount = 7\n")
    batch = source.collect(NOW_NS + SECOND)
    (gone,) = events(batch, "gone")
    assert gone.text("device") == "0000:ce:00"
    assert "gpu=7 uuid=GPU-5eed0007" in gone.text("text")
    assert [one.text("text") for one in events(batch, "count")] == ["gpus=7"]
    assert events(source.collect(NOW_NS + 2 * SECOND), "gone") == []


def test_another_board_at_the_same_index_is_another_gpu(source: Nvml, gpus: FakeGpus) -> None:
    source.collect(NOW_NS)
    gpus.write("[gpu3]\nuuid = GPU-0ther\nserial = 99\n")
    batch = source.collect(NOW_NS + 61 * SECOND)
    assert by_gpu(batch)["3"].tag("uuid") == "GPU-0ther"
    assert ["gpu=3 uuid=GPU-5eed0003" in one.text("text") for one in events(batch, "gone")] == [
        True
    ]
    assert "serial=99" in events(batch, "gpu")[3].text("text")


def test_two_boards_that_change_places_keep_their_names_and_none_is_gone(
    source: Nvml, gpus: FakeGpus, context: Context
) -> None:
    module = context.root / "sys/module/nvidia"
    module.mkdir(parents=True)
    before = by_gpu(source.collect(NOW_NS))
    module.rename(module.with_name("old"))  # so that the new folder is another one
    module.mkdir()
    moved = {
        new: f"[gpu{new}]\nuuid = {before[old].tag('uuid')}\nbus = {bus}\ntemp = {heat}\n"
        for new, old, bus, heat in (("3", "4", "0000:9B:00.0", 80), ("4", "3", "0000:4E:00.0", 31))
    }
    gpus.write("".join(moved.values()))
    batch = source.collect(NOW_NS + 10 * SECOND)
    after = by_gpu(batch)
    assert after["3"].tag("uuid") == before["4"].tag("uuid")
    assert after["4"].tag("uuid") == before["3"].tag("uuid")
    assert after["3"].number("temperature_celsius") == 80.0
    assert events(batch, "gone") == []
    places = {one.text("device"): one.text("text").split()[0] for one in events(batch, "gpu")}
    assert (places["0000:9b:00"], places["0000:4e:00"]) == ("gpu=3", "gpu=4")


def test_sixteen_gpus_are_read_and_one_that_is_lost_costs_one(source: Nvml, gpus: FakeGpus) -> None:
    more = "".join(
        f"[gpu{index}]\nuuid = GPU-sixteen-{index}\nbus = 0000:{0xB0 + index:02X}:00.0\n"
        for index in range(8, 16)
    )
    gpus.write(f"[system]\ncount = 16\n{more}[gpu12]\nerr.* = GPU_IS_LOST\n")
    batch = source.collect(NOW_NS)
    found = by_gpu(batch)
    assert len(found) == 16
    assert [index for index, one in found.items() if one.number("lost")] == ["12"]
    assert found["15"].tag("uuid") == "GPU-sixteen-15"
    assert [one.text("text") for one in events(batch, "count")] == ["gpus=16"]


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


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("DRIVER_NOT_LOADED", "the NVIDIA driver is not loaded"),
        ("LIB_RM_VERSION_MISMATCH", "driver and library versions differ"),
        ("OPERATING_SYSTEM", "the operating system blocks access to the GPUs"),
        ("NO_PERMISSION", "no permission to use the NVIDIA driver"),
        ("UNKNOWN", "NVML cannot start"),
    ],
)
def test_a_library_that_cannot_start_says_why(
    source: Nvml, gpus: FakeGpus, code: str, words: str
) -> None:
    gpus.write(f"[system]\ninit = {code}\n")
    with pytest.raises(SourceUnavailable, match=words):
        source.collect(NOW_NS)


def test_a_missing_library_says_so(context: Context, tmp_path: Path) -> None:
    options = nvml.Options(library_folder=str(tmp_path), deadline_seconds=PATIENT)
    source = nvml.make(options, context)
    with pytest.raises(SourceUnavailable, match=r"libnvidia-ml.so.1 was not found"):
        source.collect(NOW_NS)
    source.close()


def test_a_driver_that_is_unloaded_and_loaded_again_is_read_again_by_the_same_worker(
    source: Nvml, gpus: FakeGpus
) -> None:
    source.collect(NOW_NS)
    gpus.write("[system]\nerr.* = UNINITIALIZED\ninit = DRIVER_NOT_LOADED\n")
    with pytest.raises(SourceUnavailable, match="not loaded"):
        source.collect(NOW_NS + SECOND)
    gpus.write()
    batch = source.collect(NOW_NS + 2 * SECOND)
    assert len(by_gpu(batch)) == 8
    assert "nvlink_links_active" in by_gpu(batch)["0"].fields  # a full reading after a reload
    assert source._worker.starts_total == 1


def test_after_a_reload_of_the_module_no_gpu_is_called_lost_by_the_old_library(
    source: Nvml, gpus: FakeGpus, context: Context
) -> None:
    module = context.root / "sys/module/nvidia"
    module.mkdir(parents=True)
    assert len(by_gpu(source.collect(NOW_NS))) == 8
    module.rename(module.with_name("unloaded"))
    gpus.write("[system]\ninit = DRIVER_NOT_LOADED\n[default]\nerr.* = GPU_IS_LOST\n")
    with pytest.raises(SourceUnavailable, match="not loaded"):
        source.collect(NOW_NS + SECOND)


def test_after_a_version_mismatch_a_new_process_loads_the_new_library(
    source: Nvml, gpus: FakeGpus
) -> None:
    gpus.write("[system]\ninit = LIB_RM_VERSION_MISMATCH\n")
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="versions differ"):
            source.collect(NOW_NS)
    gpus.write()
    wait_for(lambda: Cycle(source, NODE).run(NOW_NS).up, seconds=20)
    assert source._worker.starts_total == 2


# ---- calls that hang ---------------------------------------------------------------------------


def quick(gpus: FakeGpus, context: Context, **options: float) -> Nvml:
    """A source whose first reading is over: its next deadline is short, its worker is warm."""
    source = nvml.make(
        nvml.Options(library_folder=gpus.library_folder, deadline_seconds=PATIENT, **options),
        context,
    )
    source.collect(NOW_NS)
    source._call_seconds = 0.7
    return source


def test_a_hang_on_one_gpu_keeps_the_gpus_before_it_and_names_it(
    gpus: FakeGpus, context: Context
) -> None:
    source = quick(gpus, context)
    gpus.write("[gpu5]\ndelay.* = D:60000\n")
    begin = time.monotonic()
    batch = Cycle(source, NODE).run(NOW_NS + SECOND)
    assert time.monotonic() - begin < 5
    assert not batch.up
    assert "did not answer within 0.7 s in state D" in batch.fault
    assert "(while reading gpu5)" in batch.fault
    assert sorted(by_gpu(batch)) == ["0", "1", "2", "3", "4"]
    check_batch(nvml, source, batch)
    source.close()


def test_a_library_that_starts_slowly_is_waited_for(gpus: FakeGpus, context: Context) -> None:
    gpus.write("[system]\ndelay.nvmlDeviceGetCount_v2 = 1500\n")
    source = nvml.make(
        nvml.Options(library_folder=gpus.library_folder, deadline_seconds=1.0), context
    )
    cycle = Cycle(source, NODE)
    batch = cycle.run(NOW_NS)
    assert not batch.up
    assert "still at work" in batch.fault
    gpus.write()
    source._call_seconds = PATIENT
    wait_for(lambda: cycle.run(NOW_NS + SECOND).up)
    assert source._worker.starts_total == 1
    source.close()


def test_the_other_gpus_are_read_on_without_the_one_that_hangs(
    gpus: FakeGpus, context: Context
) -> None:
    source = quick(gpus, context)
    gpus.write("[gpu0]\ndelay.* = 60000\n")
    with pytest.raises(SourceUnavailable, match="while reading gpu0"):
        source.collect(NOW_NS + SECOND)
    source._call_seconds = PATIENT
    wait_for(lambda: Cycle(source, NODE).run(NOW_NS + 2 * SECOND).up)
    batch = source.collect(NOW_NS + 3 * SECOND)
    assert sorted(by_gpu(batch)) == [str(index) for index in range(1, 8)]
    assert "gpu0 is not read for" in batch.fault
    assert events(batch, "gone") == []

    # After a while it is tried again, after the others; then it answers and is read as before.
    source._call_seconds = 0.7
    later = NOW_NS + 70 * SECOND
    batch = Cycle(source, NODE).run(later)
    assert not batch.up
    assert sorted(by_gpu(batch)) == [str(index) for index in range(1, 8)]
    gpus.write()
    source._call_seconds = PATIENT
    wait_for(lambda: len(by_gpu(Cycle(source, NODE).run(later + 200 * SECOND))) == 8)
    source.close()


def test_a_worker_that_cannot_be_killed_is_named_and_no_second_one_is_started(
    gpus: FakeGpus, context: Context, freezer: Freezer
) -> None:
    source = quick(gpus, context)
    pid = source._worker.pid
    freezer.hold(pid)
    cycle = Cycle(source, NODE)
    for turn in range(3):
        batch = cycle.run(NOW_NS + turn * 10 * SECOND)
        assert not batch.up
        assert f"nvml worker (pid {pid}) is hung for" in batch.fault
        assert "in state D" in batch.fault
        check_batch(nvml, source, batch)
    assert state_of(pid) == "D"
    assert source._worker.starts_total == 1
    freezer.thaw()
    wait_for(lambda: started_ticks(pid) == 0)
    source._call_seconds = PATIENT
    wait_for(lambda: cycle.run(NOW_NS + 100 * SECOND).up)
    assert source._worker.starts_total == 2
    source.close()


def test_one_slow_driver_lock_is_the_drivers_fault_and_no_gpu_is_left_out() -> None:
    skips = Skips(60, 900)
    skips.hung(3, NOW_NS)
    assert list(skips.now(NOW_NS + SECOND)) == [3]
    skips.hung(5, NOW_NS + SECOND)
    assert skips.now(NOW_NS + 2 * SECOND) == {}


def test_a_gpu_that_hangs_again_and_again_is_left_out_longer_and_longer_up_to_a_limit() -> None:
    skips = Skips(60, 900)
    now = NOW_NS
    waits = []
    for _ in range(6):
        skips.hung(3, now)
        waits.append(skips.now(now)[3])
        now += int(waits[-1] * SECOND) + 1
        assert skips.now(now) == {}
        assert skips.suspects() == [3]
    assert waits == [60, 120, 240, 480, 900, 900]
    skips.read([3])
    assert skips.suspects() == []


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
