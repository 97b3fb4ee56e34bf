"""What is asked of NVML, and how: a table of readings, each with its ways from new to old.

Names, units and field ids: NVIDIA's nvml.h (as carried by nvidia-ml-py). Milliwatts, millijoules,
megahertz and percent become watts, joules, hertz and ratios here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml as nvml

# nvml.h, nvmlGpuFabricState_t; and one more, of collectors.gpu.fabric.
COMPLETED, FAILED = 3, 4

Values = dict[str, float]
Way = Callable[[Any], Values]

# This board, driver or library has no such thing: absent, and no fault. INVALID_ARGUMENT,
# NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED.
ABSENT_CODES = frozenset({2, 3, 13, 25, 26})


@dataclass(frozen=True, slots=True)
class Reading:
    """Fields that one call gives. A ``slow`` reading is taken at full readings only."""

    names: tuple[str, ...]
    ways: tuple[Way, ...]
    slow: bool = False


# Fields that NVML answers in one call, each with an error of its own: id -> (name, scale).
# Memory errors are those of the board's life (aggregate), which survive a driver reload; the
# volatile ones (3, 4) stand in on boards that keep no aggregate.
FIELDS: dict[int, tuple[str, float]] = {
    3: ("volatile_corrected", 1),
    4: ("volatile_uncorrected", 1),
    5: ("ecc_corrected_total", 1),
    6: ("ecc_uncorrected_total", 1),
    82: ("memory_temperature_celsius", 1),
    83: ("energy_joules_total", 1e-3),
    94: ("pcie_replays_total", 1),
    142: ("remapped_rows_corrected_total", 1),
    143: ("remapped_rows_uncorrected_total", 1),
    144: ("row_remap_pending", 1),
    145: ("row_remap_failed", 1),
    230: ("recovery_action", 1),
}
SLOW_FIELDS: dict[int, tuple[str, float]] = {
    29: ("retired_pages_single_total", 1),
    30: ("retired_pages_double_total", 1),
    31: ("retired_pages_pending", 1),
    # Nanoseconds; the last three are of newer drivers (nvidia-smi prints them since 575).
    74: ("throttle_sw_power_cap_seconds_total", 1e-9),
    269: ("throttle_sw_thermal_seconds_total", 1e-9),
    270: ("throttle_hw_thermal_seconds_total", 1e-9),
    271: ("throttle_hw_power_brake_seconds_total", 1e-9),
}
STAND_INS = {
    "volatile_corrected": "ecc_corrected_total",
    "volatile_uncorrected": "ecc_uncorrected_total",
}

# nvml.h: nvmlClocksEventReason*
THROTTLE_BITS = {
    "throttle_sw_power_cap": 0x04,
    "throttle_hw_slowdown": 0x08,
    "throttle_sw_thermal": 0x20,
    "throttle_hw_thermal": 0x40,
    "throttle_hw_power_brake": 0x80,
}


def _one(name: str, function: str, *arguments: int, scale: float = 1) -> Way:
    def way(handle: Any) -> Values:
        return {name: getattr(nvml, function)(handle, *arguments) * scale}

    return way


def _field(name: str, number: int, scale: float) -> Way:
    def way(handle: Any) -> Values:
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [number])
        if value.nvmlReturn:
            raise nvml.NVMLError(value.nvmlReturn)
        return {name: field_number(value) * scale}

    return way


def _throttle(function: str) -> Way:
    def way(handle: Any) -> Values:
        mask = int(getattr(nvml, function)(handle))
        return {name: float(bool(mask & bit)) for name, bit in THROTTLE_BITS.items()}

    return way


def _utilization(handle: Any) -> Values:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilization_ratio": rates.gpu / 100, "memory_utilization_ratio": rates.memory / 100}


def _memory(version: int | None) -> Way:
    """Version 1 counts what the driver reserves as used, version 2 does not."""

    def way(handle: Any) -> Values:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, version)
        return {"memory_used_bytes": info.used, "memory_total_bytes": info.total}

    return way


def _remapped(handle: Any) -> Values:
    corrected, uncorrected, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return {
        "remapped_rows_corrected_total": corrected,
        "remapped_rows_uncorrected_total": uncorrected,
        "row_remap_pending": pending,
        "row_remap_failed": failed,
    }


def _histogram(handle: Any) -> Values:
    banks = nvml.nvmlDeviceGetRowRemapperHistogram(handle)
    return {
        f"remap_banks_{name}": getattr(banks, name)
        for name in ("max", "high", "partial", "low", "none")
    }


def _sram(handle: Any) -> Values:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return {"ecc_sram_threshold_exceeded": float(bool(status.bThresholdExceeded))}


def _pages(name: str, cause: int) -> Way:
    def way(handle: Any) -> Values:
        return {name: len(nvml.nvmlDeviceGetRetiredPages(handle, cause))}

    return way


def _fabric(versioned: bool) -> Way:
    """Whether the GPU has joined its NVLink fabric; numbers of collectors.gpu.fabric."""

    def way(handle: Any) -> Values:
        info = nvml.c_nvmlGpuFabricInfo_v2_t() if versioned else nvml.c_nvmlGpuFabricInfo_t()
        name = f"nvmlDeviceGetGpuFabricInfo{'V' if versioned else ''}"
        getattr(nvml, name)(handle, ctypes.byref(info))
        failed = info.state == COMPLETED and info.status != 0
        return {"fabric_state": float(FAILED if failed else info.state)}

    return way


def _mig(handle: Any) -> Values:
    return {"mig_enabled": float(nvml.nvmlDeviceGetMigMode(handle)[0] == 1)}


def _ecc(name: str, kind: int, span: int) -> Way:
    return _one(name, "nvmlDeviceGetTotalEccErrors", kind, span)


SM_CLOCK, MEMORY_CLOCK = 1, 2
AGGREGATE, VOLATILE = 1, 0
MEGA = 1e6

READS: tuple[Reading, ...] = (
    Reading(
        ("temperature_celsius",),
        (
            _one("temperature_celsius", "nvmlDeviceGetTemperature", 0),
            _one("temperature_celsius", "nvmlDeviceGetTemperatureV", 0),
        ),
    ),
    Reading(
        ("power_watts",),
        (
            _one("power_watts", "nvmlDeviceGetPowerUsage", scale=1e-3),
            _field("power_watts", 186, 1e-3),
        ),
    ),
    Reading(
        ("sm_clock_hertz",),
        (_one("sm_clock_hertz", "nvmlDeviceGetClockInfo", SM_CLOCK, scale=MEGA),),
    ),
    Reading(
        ("memory_clock_hertz",),
        (_one("memory_clock_hertz", "nvmlDeviceGetClockInfo", MEMORY_CLOCK, scale=MEGA),),
    ),
    Reading(("utilization_ratio", "memory_utilization_ratio"), (_utilization,)),
    Reading(
        ("memory_used_bytes", "memory_total_bytes"),
        (_memory(getattr(nvml, "nvmlMemory_v2", 0x2000028)), _memory(None)),
    ),
    Reading(
        tuple(THROTTLE_BITS),
        (
            _throttle("nvmlDeviceGetCurrentClocksEventReasons"),
            _throttle("nvmlDeviceGetCurrentClocksThrottleReasons"),
        ),
    ),
    Reading(
        ("pcie_link_generation",),
        (_one("pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),),
    ),
    Reading(("pcie_link_width",), (_one("pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth"),)),
    # What FIELDS could not give.
    Reading(
        ("ecc_corrected_total",),
        (
            _ecc("ecc_corrected_total", 0, AGGREGATE),
            _ecc("ecc_corrected_total", 0, VOLATILE),
        ),
    ),
    Reading(
        ("ecc_uncorrected_total",),
        (
            _ecc("ecc_uncorrected_total", 1, AGGREGATE),
            _ecc("ecc_uncorrected_total", 1, VOLATILE),
        ),
    ),
    Reading(
        ("energy_joules_total",),
        (_one("energy_joules_total", "nvmlDeviceGetTotalEnergyConsumption", scale=1e-3),),
    ),
    Reading(
        ("pcie_replays_total",), (_one("pcie_replays_total", "nvmlDeviceGetPcieReplayCounter"),)
    ),
    Reading(
        (
            "remapped_rows_corrected_total",
            "remapped_rows_uncorrected_total",
            "row_remap_pending",
            "row_remap_failed",
        ),
        (_remapped,),
    ),
    # What moves slowly or never.
    Reading(
        ("power_limit_watts",),
        (
            _one("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", scale=1e-3),
            _one("power_limit_watts", "nvmlDeviceGetPowerManagementLimit", scale=1e-3),
        ),
        slow=True,
    ),
    Reading(
        ("sm_clock_max_hertz",),
        (_one("sm_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", SM_CLOCK, scale=MEGA),),
        slow=True,
    ),
    Reading(
        ("pcie_link_generation_max",),
        (_one("pcie_link_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),),
        slow=True,
    ),
    Reading(
        ("pcie_link_width_max",),
        (_one("pcie_link_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),),
        slow=True,
    ),
    Reading(
        tuple(f"remap_banks_{name}" for name in ("max", "high", "partial", "low", "none")),
        (_histogram,),
        slow=True,
    ),
    Reading(("ecc_sram_threshold_exceeded",), (_sram,), slow=True),
    Reading(("retired_pages_single_total",), (_pages("retired_pages_single_total", 0),), slow=True),
    Reading(("retired_pages_double_total",), (_pages("retired_pages_double_total", 1),), slow=True),
    Reading(
        ("retired_pages_pending",),
        (_one("retired_pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus"),),
        slow=True,
    ),
    Reading(
        ("fan_speed_ratio",),
        (_one("fan_speed_ratio", "nvmlDeviceGetFanSpeed", scale=0.01),),
        slow=True,
    ),
    Reading(("mig_enabled",), (_mig,), slow=True),
    # No field of the ``gpu`` table: told as an event.
    Reading(("fabric_state",), (_fabric(True), _fabric(False)), slow=True),
)


def field_number(value: Any) -> float:
    """The number in a c_nvmlFieldValue_t, taken from its union by its own type tag."""
    kinds = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    kind = int(value.valueType)
    return float(getattr(value.value, kinds[kind] if 0 <= kind < len(kinds) else "ullVal"))


def fields(handle: Any, asked: Sequence[Any]) -> list[tuple[int, float]]:
    """(error code, number) of each field asked for, in order, by one call."""
    answers = nvml.nvmlDeviceGetFieldValues(handle, list(asked))
    return [(int(one.nvmlReturn), 0.0 if one.nvmlReturn else field_number(one)) for one in answers]
