"""Readings that look like a fleet's, made fast and the same each time for a seed.

45 fields of a GPU as design section 3 has them: temperatures and clocks in whole steps,
power with one decimal, counters that hardly move, energy that always does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collectors.sample import Sample, Tags

_STEADY = {
    "power_limit_watts": 700.0,
    "sm_clock_max_hertz": 1.98e9,
    "memory_total_bytes": 85_520_809_984.0,
    "pcie_link_generation": 5.0,
    "pcie_link_generation_max": 5.0,
    "pcie_link_width": 16.0,
    "pcie_link_width_max": 16.0,
    "nvlink_links_active": 18.0,
    "recovery_action": 0.0,
    "mig_enabled": 0.0,
    "lost": 0.0,
    "remap_banks_max": 2558.0,
    "remap_banks_high": 2.0,
    "remap_banks_partial": 0.0,
    "remap_banks_low": 0.0,
    "remap_banks_none": 0.0,
    "row_remap_pending": 0.0,
    "row_remap_failed": 0.0,
    "remapped_rows_uncorrected_total": 0.0,
    "ecc_sram_threshold_exceeded": 0.0,
    "ecc_uncorrected_total": 0.0,
    "retired_pages_single_total": 0.0,
    "retired_pages_double_total": 0.0,
    "retired_pages_pending": 0.0,
    "throttle_hw_slowdown": 0.0,
    "throttle_hw_thermal": 0.0,
    "throttle_hw_power_brake": 0.0,
    "throttle_sw_thermal": 0.0,
}
_RARE = (
    "ecc_corrected_total",
    "remapped_rows_corrected_total",
    "pcie_replays_total",
    "nvlink_crc_errors_total",
    "nvlink_replays_total",
    "nvlink_recoveries_total",
)
NAMES = (
    "temperature_celsius",
    "memory_temperature_celsius",
    "power_watts",
    "energy_joules_total",
    "sm_clock_hertz",
    "memory_clock_hertz",
    "utilization_ratio",
    "memory_utilization_ratio",
    "memory_used_bytes",
    "throttle_sw_power_cap",
    "fan_speed_ratio",
    *_RARE,
    *_STEADY,
)


@dataclass
class Fleet:
    """``nodes`` x 8 GPUs; each :meth:`step` is one reading of all of them."""

    nodes: int
    seed: int = 1
    start_ns: int = 1_780_000_000_000_000_000
    period_seconds: int = 30

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        count = self.nodes * 8
        self.tags: list[Tags] = [
            (
                ("gpu", str(gpu)),
                ("node", f"gpu{node:05d}"),
                ("uuid", f"GPU-{self.seed:08x}-{node:04x}-{gpu:04x}-0000-{node * 8 + gpu:012x}"),
            )
            for node in range(self.nodes)
            for gpu in range(8)
        ]
        self._busy = self._rng.random(count) < 0.8
        self._warmth = self._rng.normal(0, 3, count)
        self._energy = self._rng.uniform(1e8, 1e9, count)
        self._rare = np.zeros((count, len(_RARE)))
        self._memory = np.where(self._busy, 6e10, 5e8)
        self._number = 0

    def step(self) -> tuple[int, npt.NDArray[np.float64]]:
        """(time, values [GPU, field] in the order of NAMES)."""
        rng, count = self._rng, len(self.tags)
        change = rng.random(count) < 0.002
        self._busy ^= change
        self._memory = np.where(change, np.where(self._busy, 6e10, 5e8), self._memory)
        load = np.where(self._busy, rng.uniform(0.85, 1.0, count), 0.0)
        power = np.round(70 + 560 * load + rng.normal(0, 4, count) * (1 + load), 1)
        self._energy += power * self.period_seconds
        self._rare += rng.random(self._rare.shape) < 2e-5
        celsius = np.round(30 + 35 * load + self._warmth + rng.normal(0, 0.6, count))
        columns = [
            celsius,
            celsius + np.where(self._busy, 8.0, 4.0),
            power,
            np.round(self._energy, 3),
            np.where(self._busy, 1.98e9 - 1.5e7 * rng.integers(0, 6, count), 3.45e8),
            np.where(self._busy, 2.619e9, 2.619e9),
            np.round(load, 2),
            np.round(load * 0.6, 2),
            self._memory,
            np.where(self._busy & (power > 640), 1.0, 0.0),
            np.zeros(count),
            *self._rare.T,
            *(np.full(count, value) for value in _STEADY.values()),
        ]
        time_ns = self.start_ns + self._number * self.period_seconds * 10**9
        self._number += 1
        return time_ns, np.stack(columns, axis=1)

    def samples(self, steps: int) -> Iterator[list[Sample]]:
        """``steps`` readings of the fleet; each node's GPUs at a moment of its own."""
        for _ in range(steps):
            time_ns, values = self.step()
            yield [
                Sample(
                    "gpu", tags, dict(zip(NAMES, row, strict=True)), time_ns + (at // 8) * 1_000_000
                )
                for at, (tags, row) in enumerate(zip(self.tags, values.tolist(), strict=True))
            ]
