"""The ``gpu`` measurement: every field, its unit, and what a board can sanely report.

One table for all that read GPUs (NVML, nvidia-smi, DCGM), so that a field means the same
whoever read it. The bounds refuse the values that drivers and tools use for "no value": 2^31,
2^32-1, 2^63, 2^64-1, DCGM's blanks 2147483632, 9223372036854775792 and 140737488355328.
"""

from __future__ import annotations

from collectors.sample import Metric

# Counters of single faults: a board that counted two thousand million has counted garbage.
COUNT_MOST = 2e9
# Counters of bits and symbols on links run far higher.
LINK_COUNT_MOST = 1e17


def _gauge(name: str, help_: str, low: float, high: float) -> Metric:
    return Metric("gpu", name, "gauge", help_, low, high)


def _state(name: str, help_: str, high: float = 1) -> Metric:
    return Metric("gpu", name, "state", help_, 0, high)


def _count(name: str, help_: str, high: float = COUNT_MOST) -> Metric:
    return Metric("gpu", name, "counter", help_, 0, high)


GPU_METRICS: tuple[Metric, ...] = (
    _gauge("temperature_celsius", "Core temperature.", -50, 150),
    _gauge("memory_temperature_celsius", "Memory (HBM) temperature.", -50, 150),
    _gauge("power_watts", "Power of the board.", 0, 5_000),
    _gauge("power_limit_watts", "Power limit in force.", 0, 5_000),
    _count("energy_joules_total", "Energy since the driver was loaded.", 1e12),
    _gauge("sm_clock_hertz", "SM clock now.", 0, 1e10),
    _gauge("sm_clock_max_hertz", "Highest SM clock of the board.", 0, 1e10),
    _gauge("memory_clock_hertz", "Memory clock now.", 0, 1e11),
    _gauge("utilization_ratio", "Share of time in which a kernel ran.", 0, 1),
    _gauge("memory_utilization_ratio", "Share of time in which memory was read or written.", 0, 1),
    # DCGM's profiling fields 1001 and 1002: read where somebody else has them counted.
    _gauge("graphics_activity_ratio", "Share of time in which any engine worked.", 0, 1),
    _gauge("sm_activity_ratio", "Share of multiprocessors at work, over time.", 0, 1),
    _gauge("memory_used_bytes", "Memory in use, without what the driver reserves.", 0, 2**43),
    _gauge("memory_total_bytes", "Memory of the board.", 0, 2**43),
    _count("ecc_corrected_total", "Corrected memory errors of the board's life."),
    _count("ecc_uncorrected_total", "Uncorrected memory errors of the board's life."),
    _state("ecc_sram_threshold_exceeded", "SRAM errors passed the limit for replacement."),
    _count("remapped_rows_corrected_total", "Rows remapped for corrected errors.", 1e6),
    _count("remapped_rows_uncorrected_total", "Rows remapped for uncorrected errors.", 1e6),
    _state("row_remap_pending", "A row remap waits for a GPU reset."),
    _state("row_remap_failed", "A row could not be remapped: no spare row was left."),
    _gauge("remap_banks_max", "Banks with all spare rows left.", 0, 1e6),
    _gauge("remap_banks_high", "Banks with most spare rows left.", 0, 1e6),
    _gauge("remap_banks_partial", "Banks with some spare rows left.", 0, 1e6),
    _gauge("remap_banks_low", "Banks with few spare rows left.", 0, 1e6),
    _gauge("remap_banks_none", "Banks without a spare row.", 0, 1e6),
    _count("retired_pages_single_total", "Pages retired for repeated single-bit errors.", 1e6),
    _count("retired_pages_double_total", "Pages retired for a double-bit error.", 1e6),
    _state("retired_pages_pending", "A page retirement waits for a restart."),
    _gauge("pcie_link_generation", "PCIe generation of the link now.", 0, 16),
    _gauge("pcie_link_generation_max", "Highest PCIe generation of GPU and slot.", 0, 16),
    _gauge("pcie_link_width", "PCIe lanes of the link now.", 0, 64),
    _gauge("pcie_link_width_max", "Most PCIe lanes of GPU and slot.", 0, 64),
    _count("pcie_replays_total", "PCIe packets sent again."),
    _state("throttle_hw_slowdown", "Clocks at half or less: heat, power brake or supply."),
    _state("throttle_hw_thermal", "Slowed by hardware for heat."),
    _state("throttle_hw_power_brake", "Slowed by the power brake signal of the server."),
    _state("throttle_sw_thermal", "Slowed by the driver for heat."),
    _state("throttle_sw_power_cap", "Slowed by the driver to keep the power limit."),
    # What a flag looked at every ten seconds misses.
    *(
        _count(
            f"throttle_{name}_seconds_total", f"Time {words}, since the driver was loaded.", 1e10
        )
        for name, words in (
            ("hw_thermal", "slowed by hardware for heat"),
            ("hw_power_brake", "slowed by the power brake signal"),
            ("sw_thermal", "slowed by the driver for heat"),
            ("sw_power_cap", "slowed by the driver to keep the power limit"),
        )
    ),
    _state(
        "recovery_action",
        "What the driver asks for: 0 nothing, 1 GPU reset, 2 node reboot, 3 drain peer-to-peer, "
        "4 drain and reset, 5 recover the IMEX domain, 6 bus reset, 7 system reboot.",
        100,
    ),
    _gauge("nvlink_links_active", "NVLinks that are up.", 0, 64),
    _count("nvlink_crc_errors_total", "Packets with errors over all links.", LINK_COUNT_MOST),
    _count("nvlink_replays_total", "Packets sent again over all links.", LINK_COUNT_MOST),
    _count("nvlink_recoveries_total", "Link recoveries over all links.", LINK_COUNT_MOST),
    _gauge("fan_speed_ratio", "Fan speed as a share of its rated speed.", 0, 2),
    _state("mig_enabled", "MIG is on: the board is cut into instances."),
    _state("lost", "The driver says that the GPU is lost."),
)

# Counting these locks out other tools, so that nothing here asks for them unless it is told to.
PROFILED = frozenset({"graphics_activity_ratio", "sm_activity_ratio"})

GPU_FIELDS: dict[str, Metric] = {metric.name: metric for metric in GPU_METRICS}

# What moves from one reading to the next. Told first, so that the rest of a line stands together
# and mostly reads as it did before: that is a quarter of the work for whoever reads it.
RESTLESS = frozenset(
    {"temperature_celsius", "memory_temperature_celsius", "power_watts", "energy_joules_total"}
    | {"sm_clock_hertz", "memory_clock_hertz", "utilization_ratio", "memory_utilization_ratio"}
    | {"memory_used_bytes", "fan_speed_ratio", "throttle_sw_power_cap"}
    | PROFILED
    | {"throttle_sw_power_cap_seconds_total"}
)


def restless_first(name: str) -> bool:
    """A key to sort names of fields by."""
    return name not in RESTLESS
