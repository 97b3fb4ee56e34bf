"""Where each of our fields stands in ``nvidia-smi -q -x``, by generations, new places first.

Schemas v10 (418) to v13 (595), from documents of these versions. Names have moved: throttle
reasons became event reasons, power readings gained a "gpu_" and lost "power_draw", uncorrectable
errors were split in two.
"""

from __future__ import annotations

from collections.abc import Mapping

from collectors.events import CRITICAL, WARNING
from collectors.gpu.findings import sum_known
from collectors.gpu.smi_values import Said, read
from collectors.sample import clip

# Our field: its kind (see smi_values) and its places under <gpu>, the first number wins.
PLACES: dict[str, tuple[str, tuple[str, ...]]] = {
    "temperature_celsius": ("celsius", ("temperature/gpu_temp",)),
    "memory_temperature_celsius": ("celsius", ("temperature/memory_temp",)),
    "power_watts": (
        "watts",
        (
            "gpu_power_readings/power_draw",
            "gpu_power_readings/average_power_draw",
            "gpu_power_readings/instant_power_draw",
            "power_readings/power_draw",
            "power_readings/average_power_draw",
            "power_readings/instant_power_draw",
        ),
    ),
    "power_limit_watts": (
        "watts",
        (
            "gpu_power_readings/current_power_limit",
            "power_readings/current_power_limit",
            "power_readings/enforced_power_limit",
            "power_readings/power_limit",
            "gpu_power_readings/power_limit",
        ),
    ),
    "energy_joules_total": (
        "joules",
        ("gpu_power_readings/total_energy_consumption", "total_energy_consumption"),
    ),
    "sm_clock_hertz": ("hertz", ("clocks/sm_clock",)),
    "sm_clock_max_hertz": ("hertz", ("max_clocks/sm_clock",)),
    "memory_clock_hertz": ("hertz", ("clocks/mem_clock",)),
    "utilization_ratio": ("ratio", ("utilization/gpu_util",)),
    "memory_utilization_ratio": ("ratio", ("utilization/memory_util",)),
    "memory_used_bytes": ("bytes", ("fb_memory_usage/used",)),
    "memory_total_bytes": ("bytes", ("fb_memory_usage/total",)),
    "fan_speed_ratio": ("ratio", ("fan_speed",)),
    "ecc_sram_threshold_exceeded": ("flag", ("ecc_errors/aggregate/sram_threshold_exceeded",)),
    "remapped_rows_corrected_total": ("count", ("remapped_rows/remapped_row_corr",)),
    "remapped_rows_uncorrected_total": ("count", ("remapped_rows/remapped_row_unc",)),
    "row_remap_pending": ("flag", ("remapped_rows/remapped_row_pending",)),
    "row_remap_failed": ("flag", ("remapped_rows/remapped_row_failure",)),
    **{
        f"remap_banks_{name}": (
            "count",
            (f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{name}",),
        )
        for name in ("max", "high", "partial", "low", "none")
    },
    "retired_pages_single_total": (
        "count",
        ("retired_pages/multiple_single_bit_retirement/retired_count",),
    ),
    "retired_pages_double_total": ("count", ("retired_pages/double_bit_retirement/retired_count",)),
    "retired_pages_pending": (
        "flag",
        ("retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
    ),
    "pcie_link_generation": ("count", ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",)),
    "pcie_link_generation_max": ("count", ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",)),
    "pcie_link_width": ("lanes", ("pci/pci_gpu_link_info/link_widths/current_link_width",)),
    "pcie_link_width_max": ("lanes", ("pci/pci_gpu_link_info/link_widths/max_link_width",)),
    "pcie_replays_total": ("count", ("pci/replay_counter",)),
    "recovery_action": ("recovery", ("gpu_recovery_action",)),
    "mig_enabled": ("flag", ("mig_mode/current_mig",)),
    **{
        ours: (
            "flag",
            (
                f"clocks_event_reasons/clocks_event_reason_{theirs}",
                f"clocks_throttle_reasons/clocks_throttle_reason_{theirs}",
            ),
        )
        for ours, theirs in (
            ("throttle_hw_slowdown", "hw_slowdown"),
            ("throttle_hw_thermal", "hw_thermal_slowdown"),
            ("throttle_hw_power_brake", "hw_power_brake_slowdown"),
            ("throttle_sw_thermal", "sw_thermal_slowdown"),
            ("throttle_sw_power_cap", "sw_power_cap"),
        )
    },
    **{
        f"throttle_{ours}_seconds_total": (
            "seconds",
            (f"clocks_event_reasons_counters/clocks_event_reasons_counters_{theirs}",),
        )
        for ours, theirs in (
            ("hw_thermal", "hw_therm_slowdown"),
            ("hw_power_brake", "hw_power_brake"),
            ("sw_thermal", "sw_therm_slowdown"),
            ("sw_power_cap", "sw_power_cap"),
        )
    },
}

# Memory errors are told in parts that add up; boards up to Volta tell a total as well.
ECC_PARTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "ecc_corrected_total": (
        ("single_bit/total",),
        ("sram_correctable", "dram_correctable"),
    ),
    "ecc_uncorrected_total": (
        ("double_bit/total",),
        (
            "sram_uncorrectable",
            "sram_uncorrectable_parity",
            "sram_uncorrectable_secded",
            "dram_uncorrectable",
        ),
    ),
}
# Where 535 has no recovery action, it has these two: what they ask for is the same.
RESET_FLAGS = (
    ("gpu_reset_status/drain_and_reset_recommended", 4.0),
    ("gpu_reset_status/reset_required", 1.0),
)
# Repairs that wait for a reset, and memory that no repair can help: told as events.
REPAIRS = (
    ("ecc_errors/channel_repair_pending", "channel_repair_pending", WARNING),
    ("ecc_errors/tpc_repair_pending", "tpc_repair_pending", WARNING),
    ("ecc_errors/unrepairable_memory", "unrepairable_memory", CRITICAL),
)
IDENTITY = {
    "uuid": "uuid",
    "serial": "serial",
    "product_name": "name",
    "vbios_version": "vbios",
    "minor_number": "minor",
    "pci/pci_bus_id": "bus",
}

FABRIC = ("fabric/state", "fabric/status")

WANTED = frozenset(
    {place for _, places in PLACES.values() for place in places}
    | {
        f"ecc_errors/{span}/{part}"
        for span in ("aggregate", "volatile")
        for choices in ECC_PARTS.values()
        for parts in choices
        for part in parts
    }
    | {place for place, _ in RESET_FLAGS}
    | {place for place, _, _ in REPAIRS}
    | set(IDENTITY)
    | set(FABRIC)
)


class Means:
    """What the cells without a number said of a GPU."""

    def __init__(self) -> None:
        self.lost = False
        self.reset = False
        self.errors: dict[str, list[str]] = {}

    def number(self, name: str, text: str | None, kind: str) -> float | None:
        """The number of a cell; for None, what the cell meant is noted."""
        if text is None:
            return None
        said: Said = read(text, kind)
        if said.meaning == "lost":
            self.lost = True
        elif said.meaning == "reset":
            self.reset = True
        elif said.meaning == "error":
            self.errors.setdefault(clip(said.words, 120), []).append(name)
        return said.number

    def conclude(self, values: dict[str, float]) -> dict[str, float]:
        """``values`` with what was said of the GPU as a whole: lost, or in want of a reset."""
        if self.lost:
            return {"lost": 1.0}
        if self.reset:
            values.setdefault("recovery_action", 1.0)
        if values:
            values["lost"] = 0.0
        return values


def values_of(gpu: Mapping[str, str], means: Means) -> dict[str, float]:
    """All fields of one GPU: ``gpu`` maps places to their text."""
    values: dict[str, float] = {}
    for name, (kind, places) in PLACES.items():
        for place in places:
            number = means.number(name, gpu.get(place), kind)
            if number is not None:
                values[name] = number
                break
    for name in ECC_PARTS:
        number = _ecc(name, gpu, means)
        if number is not None:
            values[name] = number
    if "recovery_action" not in values:
        asked = _reset_asked(gpu)
        if asked is not None:
            values["recovery_action"] = asked
    return means.conclude(values)


def _ecc(name: str, gpu: Mapping[str, str], means: Means) -> float | None:
    """Errors of the board's life; volatile ones where it keeps no aggregate at all.

    A part that can't be read now leaves the whole out: a smaller sum would pass for a counter that
    began anew, and the next one for new errors.
    """
    for span in ("aggregate", "volatile"):
        for parts in ECC_PARTS[name]:
            cells = [gpu.get(f"ecc_errors/{span}/{part}", "") for part in parts]
            said = [read(cell, "count").meaning for cell in cells]
            numbers = [means.number(name, cell, "count") for cell in cells]
            if "error" in said:
                return None
            total = sum_known(numbers)
            if total is not None:
                return total
    return None


def _reset_asked(gpu: Mapping[str, str]) -> float | None:
    said = [(read(gpu.get(place, ""), "flag").number, action) for place, action in RESET_FLAGS]
    for value, action in said:
        if value == 1.0:
            return action
    return 0.0 if any(value == 0.0 for value, _ in said) else None
