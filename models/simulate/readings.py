"""From state to readings: one Table per measurement, and Tables to Samples.

A Table is columnar (tags as lists of text, fields as arrays with NaN for "not read"), so
that a long simulation streams to disk without a Python object per reading.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.sample import Sample, Tags, Value
from models.simulate.state import Flags, Floats, State


@dataclass(frozen=True, slots=True)
class Table:
    """Readings of one measurement at one time. ``rows`` picks the entities that were read."""

    measurement: str
    time_ns: int
    tags: tuple[Tags, ...]  # of all entities, sorted by tag name
    fields: dict[str, Floats]  # of all entities; NaN = not read
    rows: NDArray[np.int64]
    texts: dict[str, tuple[str, ...]] | None = None

    def samples(self) -> list[Sample]:
        """The same as Samples; a field that was not read is absent."""
        names = list(self.fields)
        if not len(self.rows):
            return []
        block = np.stack([self.fields[name][self.rows] for name in names], axis=1)
        present = ~np.isnan(block)
        whole = np.asarray(present.all(axis=1)).tolist()
        result = []
        for i, (row, values) in enumerate(zip(self.rows.tolist(), block.tolist(), strict=True)):
            fields: dict[str, Value] = dict(zip(names, values, strict=True))
            if not whole[i]:
                fields = {
                    name: value
                    for name, value in fields.items()
                    if value == value  # not NaN
                }
            for name, column in (self.texts or {}).items():
                if column[row]:
                    fields[name] = column[row]
            if fields:
                result.append(Sample(self.measurement, self.tags[row], fields, self.time_ns))
        return result


class Readings:
    """Turns a State into Tables. Frozen values of a lost GPU are kept from its last reading."""

    def __init__(self, state: State, gpu_tags: tuple[Tags, ...], node_tags: list[str]) -> None:
        self.state = state
        self.gpu_tags = gpu_tags
        self.node_names = node_tags
        total = state.nodes * state.gpus
        self.total = total
        self.kept: dict[str, Floats] = {}
        hardware = state.hardware

        def constant(value: float) -> Floats:
            return np.full(total, float(value))

        self.constants: dict[str, Floats] = {
            "power_limit_watts": constant(hardware.power_limit_watts),
            "sm_clock_max_hertz": constant(hardware.sm_clock_max_hertz),
            "memory_total_bytes": constant(hardware.memory_bytes),
            "pcie_link_generation": constant(hardware.pcie_generation),
            "pcie_link_generation_max": constant(hardware.pcie_generation),
            "pcie_link_width": constant(16),
            "pcie_link_width_max": constant(16),
            "throttle_hw_power_brake": constant(0),
            "mig_enabled": constant(0),
            "ecc_sram_threshold_exceeded": constant(0),
            "remap_banks_high": constant(0),
            "remap_banks_low": constant(0),
            "remap_banks_none": constant(0),
        }
        self.host_tags = tuple((("node", name),) for name in node_tags)
        self.source_tags = {
            source: tuple((("node", name), ("source", source)) for name in node_tags)
            for source in ("host", "kernel_log", "nvml")
        }
        self.port_tags = tuple(
            (("device", "mlx5_0"), ("node", name), ("port", "1")) for name in node_tags
        )
        self.fan_tags = [
            tuple((("kind", "rpm"), ("node", name), ("sensor", f"FAN{fan}")) for name in node_tags)
            for fan in range(1, 5)
        ]
        self.inlet_tags = tuple(
            (("kind", "celsius"), ("node", name), ("sensor", "Inlet Temp")) for name in node_tags
        )
        self.supply_tags = [
            tuple(
                (("kind", "state"), ("node", name), ("sensor", f"PSU{supply} Status"))
                for name in node_tags
            )
            for supply in (1, 2)
        ]
        self.disk_tags = tuple((("device", "nvme0"), ("node", name)) for name in node_tags)
        self.bytes_moved = np.zeros(state.nodes)

    def gpu(self, now_ns: int, memory_ratio: Floats, heard: Flags) -> Table:
        """The ``gpu`` measurement; ``heard`` [nodes]: the nvml source answers there."""
        state = self.state
        hardware = state.hardware
        used = 0.6e9 + memory_ratio * hardware.memory_bytes
        live: dict[str, Floats] = {
            "temperature_celsius": np.round(state.temperature),
            "memory_temperature_celsius": np.round(state.temperature + 5 + 7 * state.utilization),
            "power_watts": np.round(state.power, 3),
            "sm_clock_hertz": state.sm_clock,
            "memory_clock_hertz": np.full(self.total, hardware.memory_clock_hertz),
            "utilization_ratio": np.round(state.utilization, 2),
            "memory_utilization_ratio": np.round(0.55 * state.utilization, 2),
        }
        spare = float(hardware.remap_banks)
        partial = np.minimum(state.remapped_uncorrectable + state.remapped_correctable, spare)
        vanishing: dict[str, Floats] = {
            "memory_used_bytes": np.round(used),
            "energy_joules_total": np.round(state.energy, 3),
            "ecc_corrected_total": state.ecc_corrected,
            "ecc_uncorrected_total": state.ecc_uncorrected,
            "remapped_rows_corrected_total": state.remapped_correctable,
            "remapped_rows_uncorrected_total": state.remapped_uncorrectable,
            "row_remap_pending": state.remap_pending,
            "row_remap_failed": state.remap_failed,
            "remap_banks_max": spare - partial,
            "remap_banks_partial": partial,
            "pcie_replays_total": state.pcie_replays,
            "throttle_hw_slowdown": state.hot * 1.0,
            "throttle_hw_thermal": state.hot * 1.0,
            "throttle_sw_thermal": state.hot * 1.0,
            "throttle_sw_power_cap": state.power_capped * 1.0,
            "recovery_action": state.recovery_action,
            "nvlink_links_active": state.nvlink_active,
            "nvlink_crc_errors_total": state.nvlink_crc,
            "nvlink_replays_total": np.floor(state.nvlink_crc / 3),
            "nvlink_recoveries_total": np.floor(state.nvlink_crc / 50),
            **self.constants,
        }
        fields = self._lose(live, vanishing)
        fields["lost"] = (state.lost & ~state.frozen) * 1.0
        node_heard = heard & ~state.down
        rows = np.flatnonzero(np.repeat(node_heard, state.gpus) & ~state.hung)
        return Table("gpu", now_ns, self.gpu_tags, fields, rows)

    def _lose(self, live: dict[str, Floats], vanishing: dict[str, Floats]) -> dict[str, Floats]:
        """Two faces of a lost GPU: an exporter repeats old values, NVML gives none."""
        state = self.state
        gone = state.lost
        if not gone.any():
            self.kept = live
            return {**live, **{name: value.copy() for name, value in vanishing.items()}}
        fields = {}
        for name, value in live.items():
            old = self.kept.get(name, value)
            # What an exporter goes on showing of a lost GPU is its last good value.
            self.kept[name] = np.where(gone, old, value)
            fields[name] = np.where(gone & ~state.frozen, np.nan, self.kept[name])
        for name, value in vanishing.items():
            fields[name] = np.where(gone, np.nan, value)
        return fields

    def host(self, now_ns: int, cpu_load: Floats, heard: Flags) -> Table:
        """The ``host`` measurement."""
        state = self.state
        zero = np.zeros(state.nodes)
        fields: dict[str, Floats] = {
            "edac_corrected_total": state.edac_corrected.copy(),
            "edac_uncorrected_total": state.edac_uncorrected.copy(),
            "mce_total": state.mce.copy(),
            "boot_time_seconds": np.round(state.boot_seconds),
            "load_1m": np.round(cpu_load, 2),
            "blocked_processes": zero,
            "oom_kills_total": zero,
            "filesystem_readonly": state.readonly * 1.0,
            "pressure_cpu_ratio": np.round(cpu_load / 400, 4),
        }
        rows = np.flatnonzero(heard & ~state.down)
        return Table("host", now_ns, self.host_tags, fields, rows)

    def sources(self, now_ns: int, agent: Flags, nvml: Flags) -> list[Table]:
        """The ``source`` readings: every source of every node that is heard."""
        state = self.state
        rows = np.flatnonzero(agent & ~state.down)
        tables = []
        for source, tags in self.source_tags.items():
            up = nvml if source == "nvml" else np.ones(state.nodes, bool)
            fields: dict[str, Floats] = {
                "up": up * 1.0,
                "duration_seconds": np.full(state.nodes, 0.02),
                "age_seconds": np.where(up, 0.0, 60.0),
            }
            fault = tuple("" if ok else "worker gave no answer in time" for ok in up.tolist())
            texts = None if up.all() else {"fault": fault}
            tables.append(Table("source", now_ns, tags, fields, rows, texts))
        return tables

    def ports(self, now_ns: int, traffic: Floats, heard: Flags) -> Table:
        """The ``ib_port`` measurement, one port a node."""
        state = self.state
        up = ~state.ib_down
        self.bytes_moved = self.bytes_moved + traffic * up
        fields: dict[str, Floats] = {
            "state": np.where(up, 4.0, 1.0),
            "physical_state": np.where(up, 5.0, 2.0),  # a cut cable: Polling
            "rate_bits_per_second": np.where(up, 400e9, 10e9),
            "symbol_errors_total": state.ib_symbol.copy(),
            "link_recoveries_total": np.floor(state.ib_symbol / 100),
            "link_downs_total": state.ib_downed.copy(),
            "receive_errors_total": np.floor(state.ib_symbol / 20),
            "receive_bytes_total": np.round(self.bytes_moved),
            "transmit_bytes_total": np.round(self.bytes_moved * 0.98),
        }
        rows = np.flatnonzero(heard & ~state.down)
        return Table("ib_port", now_ns, self.port_tags, fields, rows)

    def disk(self, now_ns: int, heard: Flags) -> Table:
        """The ``disk`` measurement, one drive a node."""
        state = self.state
        fields: dict[str, Floats] = {
            "critical_warning": (state.disk_spare < 0.3) * 1.0,  # bit 1: spare low
            "media_errors_total": state.disk_media_errors.copy(),
            "available_spare_ratio": np.round(state.disk_spare, 2),
            "percentage_used_ratio": np.round(state.disk_wear, 2),
            "temperature_celsius": np.round(state.inlet_celsius(now_ns) + 14),
        }
        rows = np.flatnonzero(heard & ~state.down)
        return Table("disk", now_ns, self.disk_tags, fields, rows)

    def bmc(self, now_ns: int, rng: np.random.Generator) -> list[Table]:
        """The ``bmc`` measurement: inlet, four fans, two power supplies.

        A BMC answers when the host is down. Fans turn faster when the GPUs draw more.
        """
        state = self.state
        everyone = np.arange(state.nodes)
        good, there = np.zeros(state.nodes), np.ones(state.nodes)
        inlet: dict[str, Floats] = {
            "value": np.round(state.inlet_celsius(now_ns)),
            "critical": good,
            "present": there,
        }
        tables = [Table("bmc", now_ns, self.inlet_tags, inlet, everyone)]
        for tags, failed in zip(self.supply_tags, (good > 0, state.supply_failed), strict=True):
            supply: dict[str, Floats] = {
                "value": np.full(state.nodes, np.nan),
                "critical": failed * 1.0,
                "present": there,
            }
            tables.append(Table("bmc", now_ns, tags, supply, everyone))
        power = state.power.reshape(state.nodes, state.gpus).mean(axis=1)
        wanted = 6000 + 4000 * power / state.hardware.power_limit_watts
        for number, tags in enumerate(self.fan_tags, start=1):
            speed = wanted + 40 * rng.standard_normal(state.nodes)
            if number == 3:
                speed = np.where(state.fan_stopped, 0.0, speed * (1 - state.fan_loss))
            critical = (speed < 1000) * 1.0
            fields: dict[str, Floats] = {
                "value": np.round(speed / 10) * 10,
                "critical": critical,
                "present": there,
            }
            tables.append(Table("bmc", now_ns, tags, fields, everyone))
        return tables
