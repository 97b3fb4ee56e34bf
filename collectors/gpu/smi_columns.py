"""Columns of ``nvidia-smi --query-*=... --format=csv``, by their names of all versions.

A column is asked for by one name and may be headed by another (throttle reasons became event
reasons), so our own queries are read by position; a foreign text is read by its header.
Names: ``nvidia-smi --help-query-gpu`` and its siblings, 418 to 595.
"""

from __future__ import annotations

# Column -> (our field, kind of smi_values).
FIELD_COLUMNS: dict[str, tuple[str, str]] = {
    "temperature.gpu": ("temperature_celsius", "celsius"),
    "temperature.memory": ("memory_temperature_celsius", "celsius"),
    "power.draw": ("power_watts", "watts"),
    "power.draw.average": ("power_watts", "watts"),
    "power.draw.instant": ("power_watts", "watts"),
    "enforced.power.limit": ("power_limit_watts", "watts"),
    "power.limit": ("power_limit_watts", "watts"),
    "clocks.sm": ("sm_clock_hertz", "hertz"),
    "clocks.current.sm": ("sm_clock_hertz", "hertz"),
    "clocks.max.sm": ("sm_clock_max_hertz", "hertz"),
    "clocks.mem": ("memory_clock_hertz", "hertz"),
    "clocks.current.memory": ("memory_clock_hertz", "hertz"),
    "utilization.gpu": ("utilization_ratio", "ratio"),
    "utilization.memory": ("memory_utilization_ratio", "ratio"),
    "memory.used": ("memory_used_bytes", "bytes"),
    "memory.total": ("memory_total_bytes", "bytes"),
    "fan.speed": ("fan_speed_ratio", "ratio"),
    "ecc.errors.corrected.aggregate.total": ("ecc_corrected_total", "count"),
    "ecc.errors.corrected.volatile.total": ("ecc_corrected_total", "count"),
    "ecc.errors.uncorrected.aggregate.total": ("ecc_uncorrected_total", "count"),
    "ecc.errors.uncorrected.volatile.total": ("ecc_uncorrected_total", "count"),
    "ecc.errors.uncorrected.aggregate.sram.thresholdexceeded": (
        "ecc_sram_threshold_exceeded",
        "flag",
    ),
    "remapped_rows.correctable": ("remapped_rows_corrected_total", "count"),
    "remapped_rows.uncorrectable": ("remapped_rows_uncorrected_total", "count"),
    "remapped_rows.pending": ("row_remap_pending", "flag"),
    "remapped_rows.failure": ("row_remap_failed", "flag"),
    **{
        f"remapped_rows.histogram.{name}": (f"remap_banks_{name}", "count")
        for name in ("max", "high", "partial", "low", "none")
    },
    "retired_pages.single_bit_ecc.count": ("retired_pages_single_total", "count"),
    "retired_pages.sbe": ("retired_pages_single_total", "count"),
    "retired_pages.double_bit.count": ("retired_pages_double_total", "count"),
    "retired_pages.dbe": ("retired_pages_double_total", "count"),
    "retired_pages.pending": ("retired_pages_pending", "flag"),
    "pcie.link.gen.current": ("pcie_link_generation", "count"),
    "pcie.link.gen.gpucurrent": ("pcie_link_generation", "count"),
    "pcie.link.gen.max": ("pcie_link_generation_max", "count"),
    "pcie.link.width.current": ("pcie_link_width", "lanes"),
    "pcie.link.width.max": ("pcie_link_width_max", "lanes"),
    "gpu_recovery_action": ("recovery_action", "recovery"),
    "mig.mode.current": ("mig_enabled", "flag"),
    **{
        f"{prefix}.{theirs}": (ours, "flag")
        for prefix in ("clocks_event_reasons", "clocks_throttle_reasons")
        for ours, theirs in (
            ("throttle_hw_slowdown", "hw_slowdown"),
            ("throttle_hw_thermal", "hw_thermal_slowdown"),
            ("throttle_hw_power_brake", "hw_power_brake_slowdown"),
            ("throttle_sw_thermal", "sw_thermal_slowdown"),
            ("throttle_sw_power_cap", "sw_power_cap"),
        )
    },
    **{
        f"clocks_event_reasons_counters.{theirs}": (f"throttle_{ours}_seconds_total", "seconds")
        for ours, theirs in (
            ("hw_thermal", "hw_thermal_slowdown"),
            ("hw_power_brake", "hw_power_brake_slowdown"),
            ("sw_thermal", "sw_thermal_slowdown"),
            ("sw_power_cap", "sw_power_cap"),
        )
    },
}
# Of two columns for one field, the one that is not here wins.
SECOND_CHOICE = frozenset(
    {
        "power.draw.instant",
        "power.limit",
        "ecc.errors.corrected.volatile.total",
        "ecc.errors.uncorrected.volatile.total",
        "pcie.link.gen.gpucurrent",
    }
)
MASK_COLUMNS = frozenset({"clocks_event_reasons.active", "clocks_throttle_reasons.active"})
MASK_BITS = {
    "throttle_sw_power_cap": 0x04,
    "throttle_hw_slowdown": 0x08,
    "throttle_sw_thermal": 0x20,
    "throttle_hw_thermal": 0x40,
    "throttle_hw_power_brake": 0x80,
}
IDENTITY_COLUMNS: dict[str, str] = {
    "index": "index",
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "pci.bus_id": "bus",
    "gpu_bus_id": "bus",
    "name": "name",
    "gpu_name": "name",
    "serial": "serial",
    "gpu_serial": "serial",
    "vbios_version": "vbios",
    "driver_version": "driver",
}
# Columns whose text may hold the separator itself.
TEXT_COLUMNS = frozenset({"process_name", "name", "gpu_name"})

# What tells that a text without its own header is one of ours.
KNOWN = (
    frozenset(FIELD_COLUMNS)
    | MASK_COLUMNS
    | frozenset(IDENTITY_COLUMNS)
    | frozenset(
        {
            "timestamp",
            "count",
            "pid",
            "process_name",
            "used_gpu_memory",
            "used_memory",
            "retired_pages.address",
            "retired_pages.cause",
            "pstate",
            "driver_model.current",
            "compute_mode",
            "persistence_mode",
            "ecc.mode.current",
            "memory.free",
            "display_active",
            "fabric.state",
            "fabric.status",
        }
    )
)


def plain(name: str) -> str:
    """A column's name without its unit, in lower case.

    >>> plain(" power.draw [W]")
    'power.draw'
    """
    return name.partition("[")[0].strip().lower()
