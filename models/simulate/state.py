"""The physical state of all nodes and GPUs of the simulated fleet, and how it moves on.

Arrays over GPUs are flat, GPU ``g`` of node ``n`` at ``n * gpus_per_node + g``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.simulate.hardware import Hardware
from models.simulate.scenario import Scenario

Floats = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]

THERMAL_SECONDS = 60.0  # time constant of a card's heat sink (assumed)
RACK_NODES = 16


class State:
    """Sensors, counters and flags. ``step`` moves physics on by ``dt`` seconds."""

    def __init__(
        self, scenario: Scenario, hardware: Hardware, nodes: int, gpus: int, seed: int
    ) -> None:
        rng = np.random.default_rng([seed, 5])
        total = nodes * gpus
        self.hardware = hardware
        self.nodes, self.gpus = nodes, gpus
        # Cards differ a little, slots in the draught behind others differ more, and a few
        # cards always run warm and never fail.
        slot = np.tile(np.linspace(-0.04, 0.04, gpus), nodes)
        warm = rng.random(total) < scenario.benign.harmless_warm_cards_share.value
        self.resistance: Floats = hardware.resistance_kelvin_per_watt * (
            1.0
            + slot
            + rng.normal(0, 0.02, total)
            + warm * scenario.benign.harmless_warm_strength.value
        )
        self.node_offset: Floats = rng.normal(0, 1.0, nodes)
        self.rack = np.arange(nodes) // RACK_NODES
        self.temperature: Floats = np.full(total, hardware.inlet_celsius + 5.0)
        self.power: Floats = np.full(total, float(hardware.power_idle_watts))
        self.utilization: Floats = np.zeros(total)
        self.sm_clock: Floats = np.full(total, hardware.sm_clock_idle_hertz)
        self.hot: Flags = np.zeros(total, bool)
        self.power_capped: Flags = np.zeros(total, bool)
        self.energy: Floats = rng.uniform(1e9, 5e11, total)
        # Effects of faults, set anew on each step by the faults under way.
        self.heat_factor: Floats = np.ones(total)
        self.fan_loss: Floats = np.zeros(nodes)
        # Counters and flags that faults change.
        self.remapped_uncorrectable: Floats = (rng.random(total) < 0.02) * 1.0
        self.remapped_correctable: Floats = (rng.random(total) < 0.03) * 1.0
        self.remap_pending: Floats = np.zeros(total)
        self.remap_failed: Floats = np.zeros(total)
        self.ecc_corrected: Floats = rng.poisson(0.3, total) * 1.0
        self.ecc_uncorrected: Floats = np.zeros(total)
        self.recovery_action: Floats = np.zeros(total)
        self.nvlink_crc: Floats = np.zeros(total)
        self.nvlink_active: Floats = np.full(total, float(hardware.nvlinks))
        self.pcie_replays: Floats = rng.poisson(2, total) * 1.0
        self.lost: Flags = np.zeros(total, bool)
        self.frozen: Flags = np.zeros(total, bool)  # lost, yet the exporter repeats old values
        self.hung: Flags = np.zeros(total, bool)  # gives no reading at all
        self.down: Flags = np.zeros(nodes, bool)
        self.edac_corrected: Floats = np.zeros(nodes)
        self.edac_uncorrected: Floats = np.zeros(nodes)
        self.mce: Floats = np.zeros(nodes)
        self.ib_symbol: Floats = rng.poisson(3, nodes) * 1.0
        self.ib_down: Flags = np.zeros(nodes, bool)
        self.ib_downed: Floats = np.zeros(nodes)
        self.fan_stopped: Flags = np.zeros(nodes, bool)
        self.supply_failed: Flags = np.zeros(nodes, bool)
        self.readonly: Flags = np.zeros(nodes, bool)
        self.disk_media_errors: Floats = (rng.random(nodes) < 0.01) * 1.0
        self.disk_spare: Floats = np.ones(nodes)
        self.disk_wear: Floats = rng.uniform(0.0, 0.3, nodes)
        self.boot_seconds: Floats = np.zeros(nodes)
        per_second = scenario.benign.harmless_single_errors_per_1000_entity_days.value / 86.4e6
        self.singles_per_second = per_second

    def inlet_celsius(self, now_ns: int) -> Floats:
        """Inlet air per node: the room's daily wave, racks out of phase, and the node."""
        day_angle = 2 * math.pi * (now_ns / 1e9 % 86400.0) / 86400.0
        rack = 0.8 * np.sin(day_angle + self.rack * 0.9)
        return np.asarray(self.hardware.inlet_celsius + self.node_offset + rack)

    def step(self, now_ns: int, dt_seconds: float, load: Floats, rng: np.random.Generator) -> None:
        """Physics for ``dt_seconds`` under the utilisation ``load`` [gpus of the fleet]."""
        hardware = self.hardware
        noise = rng.standard_normal((3, len(load)))
        busy = load > 0.005
        self.utilization = np.clip(np.where(busy, load + 0.015 * noise[0], 0.0), 0.0, 1.0)
        span = hardware.power_limit_watts - hardware.power_idle_watts
        wanted = hardware.power_idle_watts + span * self.utilization**0.9 * (0.95 + 0.03 * noise[1])
        # The driver slows a hot card so that it stays near its slowdown temperature.
        over = np.clip((self.temperature - (hardware.slowdown_celsius - 4)) / 8.0, 0.0, 0.6)
        self.hot = self.temperature >= hardware.slowdown_celsius
        wanted = wanted - (wanted - hardware.power_idle_watts) * over
        self.power_capped = wanted > hardware.power_limit_watts * 0.995
        self.power = np.clip(
            wanted + 0.15 * noise[2], 0.5 * hardware.power_idle_watts, hardware.power_limit_watts
        )
        clock = hardware.sm_clock_max_hertz * (1.0 - 0.7 * over - 0.03 * self.power_capped)
        self.sm_clock = np.where(busy, np.round(clock / 15e6) * 15e6, hardware.sm_clock_idle_hertz)
        inlet = np.repeat(self.inlet_celsius(now_ns), self.gpus)
        fan = np.repeat(1.0 + 0.8 * self.fan_loss, self.gpus)
        target = inlet + self.resistance * self.heat_factor * fan * self.power
        share = -math.expm1(-dt_seconds / THERMAL_SECONDS)
        self.temperature = self.temperature + share * (target - self.temperature)
        self.energy = self.energy + self.power * dt_seconds
        # Single errors that mean nothing, on every part that counts errors.
        likely = self.singles_per_second * dt_seconds
        gpus = rng.random((2, len(load))) < likely
        self.ecc_corrected = self.ecc_corrected + gpus[0]
        self.nvlink_crc = self.nvlink_crc + gpus[1]
        nodes = rng.random((2, self.nodes)) < likely
        self.edac_corrected = self.edac_corrected + nodes[0]
        self.ib_symbol = self.ib_symbol + nodes[1]

    def reboot(self, node: int, now_ns: int) -> None:
        """What a restart of the node resets: volatile counters, losses, pending remaps."""
        rows = slice(node * self.gpus, (node + 1) * self.gpus)
        for counter in (self.ecc_corrected, self.ecc_uncorrected, self.nvlink_crc):
            counter[rows] = 0.0
        for state in (self.remap_pending, self.recovery_action, self.pcie_replays):
            state[rows] = 0.0
        for flag in (self.lost, self.frozen, self.hung):
            flag[rows] = False
        self.nvlink_active[rows] = float(self.hardware.nvlinks)
        self.temperature[rows] = self.hardware.inlet_celsius + 8.0
        for count in (self.edac_corrected, self.edac_uncorrected, self.mce, self.ib_symbol):
            count[node] = 0.0
        self.ib_downed[node] = 0.0
        self.ib_down[node] = False
        self.readonly[node] = False
        self.down[node] = False
        self.boot_seconds[node] = now_ns / 1e9
