"""``nvidia-smi -q -x`` of 418 to 595: one document of each generation's shape, sick in its own way.

The shapes (names and places of elements, words for no value) are those of public documents of these
versions, mostly of other boards; every value is our own. No document of a GB200 was seen.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.gpu import smi_xml
from collectors.gpu.smi_places import PLACES
from collectors.sample import Problem, Sample

SMI = Path(__file__).resolve().parents[2] / "fixtures/gpu/smi"
NOW_NS = 1_760_000_000_000_000_000
MIB = 2**20
Fields = dict[str, float | str]

# What a board of each generation can tell beside what all of them tell.
MEMORY_HEAT = {"memory_temperature_celsius"}
PAGES = {"retired_pages_single_total", "retired_pages_double_total", "retired_pages_pending"}
LOAD = {"utilization_ratio", "memory_utilization_ratio"}
MIG = {"mig_enabled"}
ROWS = {
    "remapped_rows_corrected_total",
    "remapped_rows_uncorrected_total",
    "row_remap_pending",
    "row_remap_failed",
    *(f"remap_banks_{name}" for name in ("max", "high", "partial", "low", "none")),
}
ACTION = {"recovery_action"}
SRAM = {"ecc_sram_threshold_exceeded"}
SLOWED = {
    f"throttle_{name}_seconds_total"
    for name in ("hw_thermal", "hw_power_brake", "sw_thermal", "sw_power_cap")
}
ALL = {
    "temperature_celsius", "power_watts", "power_limit_watts", "sm_clock_hertz",
    "sm_clock_max_hertz", "memory_clock_hertz", "memory_used_bytes", "memory_total_bytes",
    "ecc_corrected_total", "ecc_uncorrected_total", "pcie_link_generation",
    "pcie_link_generation_max", "pcie_link_width", "pcie_link_width_max", "pcie_replays_total",
    "throttle_hw_slowdown", "throttle_hw_thermal", "throttle_hw_power_brake",
    "throttle_sw_thermal", "throttle_sw_power_cap", "lost",
}  # fmt: skip
# File: (driver, what its boards tell, problems, what of it matters, by GPU).
GENERATIONS: dict[str, tuple[str, set[str], list[str], list[Fields]]] = {
    "nodtd_418": (
        "418.226.00",
        ALL | MEMORY_HEAT | PAGES | LOAD,
        [],
        [
            {
                "power_watts": 287.31,
                "throttle_sw_power_cap": 1.0,
                "ecc_corrected_total": 18.0,  # the board's total, not its parts added up again
                "ecc_uncorrected_total": 3.0,
                "retired_pages_single_total": 2.0,
                "retired_pages_double_total": 1.0,
                "retired_pages_pending": 1.0,
                "pcie_replays_total": 4.0,
            }
        ],
    ),
    "v10_440": (
        "440.118.02",
        ALL | PAGES | LOAD,
        ["gpu1: power_watts, ecc_uncorrected_total: Unknown Error"],
        [
            {"power_watts": 26.75, "ecc_uncorrected_total": 3.0, "pcie_link_width": 8.0},
            {"temperature_celsius": 95.0, "throttle_hw_thermal": 1.0, "throttle_hw_slowdown": 1.0},
        ],
    ),
    "v11_460_mig": (
        "460.106.00",
        ALL | MEMORY_HEAT | ROWS | MIG,
        ["MIG is on: boards are scored, their instances are not"],
        [
            {
                "mig_enabled": 1.0,
                "memory_used_bytes": 19012.0 * MIB,  # the board's, not an instance's
                "memory_total_bytes": 40537.0 * MIB,
                "ecc_corrected_total": 5.0,
                "ecc_uncorrected_total": 4.0,
                "power_limit_watts": 350.0,  # the one in force, not the one that was set
                "row_remap_failed": 1.0,
                "remap_banks_none": 1.0,
            }
        ],
    ),
    "v11_470": (
        "470.256.02",
        (ALL | MEMORY_HEAT | ROWS | LOAD | MIG)
        - {"sm_clock_hertz", "sm_clock_max_hertz", "memory_clock_hertz"},
        [],
        [{"power_watts": 63.42, "row_remap_pending": 1.0, "ecc_uncorrected_total": 9.0}],
    ),
    "v12_525": (
        "525.147.05",
        ALL | MEMORY_HEAT | ROWS | LOAD | MIG,
        [],
        [
            {
                "power_watts": 349.1,
                "power_limit_watts": 310.0,
                "throttle_sw_power_cap": 1.0,
                "throttle_sw_thermal": 1.0,
                "ecc_uncorrected_total": 6.0,
            }
        ],
    ),
    "v12_535": (
        "535.261.03",
        (ALL | MEMORY_HEAT | ROWS | LOAD | MIG | ACTION | SRAM) - {"sm_clock_max_hertz"},
        [],
        [{"power_watts": 402.77, "power_limit_watts": 700.0, "recovery_action": 0.0}],
    ),
    "v12_570": (
        "570.195.03",
        ALL | MEMORY_HEAT | ROWS | LOAD | MIG | ACTION | SRAM,
        [],
        [
            {"power_watts": 612.44, "recovery_action": 0.0, "ecc_sram_threshold_exceeded": 0.0},
            {
                "power_watts": 640.9,  # the average, as on all boards before
                "temperature_celsius": 61.0,  # not how far it is from its limit
                "ecc_corrected_total": 3.0,
                "ecc_uncorrected_total": 8.0,  # parity, SECDED and DRAM
                "ecc_sram_threshold_exceeded": 1.0,
                "throttle_hw_power_brake": 1.0,
                "row_remap_pending": 1.0,
                "remap_banks_partial": 1.0,
                "recovery_action": 4.0,
            },
        ],
    ),
    "v13_595_gb200": (
        "595.58.03",
        ALL | MEMORY_HEAT | ROWS | LOAD | MIG | ACTION | SRAM | SLOWED,
        [],
        [
            {"power_watts": 845.2, "power_limit_watts": 1200.0, "pcie_link_generation": 6.0},
            {
                "recovery_action": 3.0,
                "remapped_rows_uncorrected_total": 1.0,
                "throttle_sw_power_cap_seconds_total": 91.403239,
                "throttle_hw_power_brake_seconds_total": 7e-6,
            },
        ],
    ),
}


def read(name: str, text: str = "") -> tuple[list[Sample], list[Problem]]:
    return smi_xml.parse(text or (SMI / f"q-x_{name}.xml").read_text(), "n7", NOW_NS)


def gpus(samples: list[Sample]) -> list[Fields]:
    return [dict(one.fields) for one in samples if one.measurement == "gpu"]


def texts(samples: list[Sample], code: str) -> list[str]:
    return [one.text("text") for one in samples if one.tag("code") == code]


@pytest.mark.parametrize("name", GENERATIONS)
def test_each_generation_gives_all_that_its_boards_tell(name: str) -> None:
    driver, told, problems, values = GENERATIONS[name]
    samples, found = read(name)
    assert [one.problem for one in found] == problems
    assert texts(samples, "driver") == [driver]
    read_values = gpus(samples)
    assert len(read_values) == len(values)
    for fields, expected in zip(read_values, values, strict=True):
        assert {key: fields[key] for key in expected} == expected
    broken = {key for words in problems for key in ALL if key in words}
    assert set(read_values[0]) == told
    assert all(set(fields) == told - broken for fields in read_values[1:])


@pytest.mark.parametrize(
    ("flag", "action"), [("reset_required", 1.0), ("drain_and_reset_recommended", 4.0)]
)
def test_before_there_was_an_action_two_flags_asked_for_it(flag: str, action: float) -> None:
    text = (SMI / "q-x_v12_535.xml").read_text()
    (fields,) = gpus(read("", text.replace(f"<{flag}>No<", f"<{flag}>Yes<"))[0])
    assert fields["recovery_action"] == action


def test_the_power_of_a_module_and_of_its_memory_is_not_the_boards() -> None:
    text = (SMI / "q-x_v13_595_gb200.xml").read_text()
    assert "1311.05 W" in text
    for wanted in ("845.20 W", "861.77 W"):
        text = text.replace(wanted, "N/A")
    assert "power_watts" not in gpus(read("", text)[0])[0]


def test_the_instant_power_stands_in_where_there_is_no_average() -> None:
    text = (SMI / "q-x_v12_570.xml").read_text().replace(">612.44 W<", ">N/A<")
    assert gpus(read("", text)[0])[0]["power_watts"] == 598.1


def test_words_that_a_value_is_out_of_use_are_no_fault_and_no_zero() -> None:
    text = (SMI / "q-x_v12_570.xml").read_text()
    assert text.count(">Requested functionality has been deprecated<") == 6
    samples, problems = read("v12_570")
    assert (problems, gpus(samples)[0]["recovery_action"]) == ([], 0.0)
    # Without the newer action, the deprecated flags say nothing: neither "reset" nor "none".
    for word in ("None", "Drain and Reset"):
        text = text.replace(f"<gpu_recovery_action>{word}</gpu_recovery_action>", "")
    assert "recovery_action" not in gpus(read("", text)[0])[0]


def test_a_repair_and_memory_beyond_repair_are_told_of_their_gpu() -> None:
    samples, _ = read("v13_595_gb200")
    told = [
        (one.tag("code"), one.text("device"), one.number("severity"))
        for one in samples
        if one.tag("kind") == "repair"
    ]
    assert told == [
        ("channel_repair_pending", "0009:01:00", 1.0),
        ("unrepairable_memory", "0009:01:00", 3.0),
    ]


@pytest.mark.parametrize("name", GENERATIONS)
def test_no_place_that_we_read_is_unknown_to_every_generation(name: str) -> None:
    """Each field of this generation comes from a place that its document really has."""
    text = (SMI / f"q-x_{name}.xml").read_text()
    for field in GENERATIONS[name][1] & set(PLACES):
        leaves = {place.rpartition("/")[2] for place in PLACES[field][1]}
        asked_by_flag = field == "recovery_action" and "reset_required" in text
        assert asked_by_flag or any(f"<{leaf}>" in text for leaf in leaves), field
