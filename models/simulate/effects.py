"""What a fault does to the state: its precursor as it grows, and the strike itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collectors.events import event
from collectors.sample import Sample
from models.simulate import kernel_text
from models.simulate.bursts import HBM_ERRORS_PER_SECOND
from models.simulate.faults import Fault
from models.simulate.state import State

Name = Callable[[int], str]
SUPPLY = "PSU2 Status"


class Effects:
    """Applies faults to a State. ``node_name`` maps a node's index to its Slurm name."""

    def __init__(self, state: State, node_name: Name, rng: np.random.Generator) -> None:
        self.state = state
        self.node_name = node_name
        self.rng = rng

    def address(self, fault: Fault) -> str:
        """PCI address of the fault's GPU."""
        return self.state.hardware.address(fault.gpu)

    def row(self, fault: Fault) -> int:
        """Fleet-wide index of the fault's GPU."""
        return fault.node * self.state.gpus + fault.gpu

    def grow(self, fault: Fault, now_ns: int, dt_seconds: float) -> list[Sample]:
        """The precursor at ``now_ns``, after ``dt_seconds`` more of it."""
        progress = fault.progress(now_ns) if fault.predictable else 0.0
        if progress <= 0.0 or self.state.down[fault.node]:
            return []
        state, row = self.state, self.row(fault)
        if fault.name == "heat":
            state.heat_factor[row] = max(state.heat_factor[row], 1.0 + fault.strength * progress)
        elif fault.name == "fan":
            loss = 1.0 if fault.struck else fault.strength * progress
            state.fan_loss[fault.node] = max(state.fan_loss[fault.node], loss)
        elif fault.name == "psu":
            if not fault.struck and not fault.carry:
                fault.carry = 1.0
                return [self.supply_warning(fault.node, now_ns)]
        elif not fault.struck:
            return self._count_up(fault, row, progress, now_ns, dt_seconds)
        return []

    def _count_up(
        self, fault: Fault, row: int, progress: float, now_ns: int, dt_seconds: float
    ) -> list[Sample]:
        state, node = self.state, fault.node
        rate = fault.strength * progress**2
        counted = fault.name not in ("hbm", "ssd")
        count = float(self.rng.poisson(rate * dt_seconds)) if counted else 0.0
        if fault.name == "nvlink":
            state.nvlink_crc[row] += count
        elif fault.name == "dimm":
            state.edac_corrected[node] += count
            if count and self.rng.random() < 0.2:
                text = (
                    f"EDAC MC0: {count:.0f} CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0"
                )
                return [self._event(fault, "edac", "corrected", text, 1.0, now_ns, "DIMM_A1")]
        elif fault.name == "ib_link":
            state.ib_symbol[node] += count
        elif fault.name == "ssd":
            while fault.carry < np.floor(rate):
                fault.carry += 1
                state.disk_media_errors[node] += 1
            state.disk_spare[node] = min(state.disk_spare[node], 1.0 - 0.8 * progress**2)
        elif fault.name == "hbm":
            errors = HBM_ERRORS_PER_SECOND * progress * dt_seconds
            state.ecc_corrected[row] += float(self.rng.poisson(errors))
            events = []
            while fault.carry < np.floor(rate):
                fault.carry += 1
                state.remapped_uncorrectable[row] += 1
                state.remap_pending[row] = 1.0
                events.append(self.xid(fault, 63, now_ns))
            return events
        return []

    def strike(self, fault: Fault) -> list[Sample]:
        """The failure itself, at the fault's onset."""
        fault.struck = True
        onset_ns = fault.onset_ns
        state, row, node = self.state, self.row(fault), fault.node
        if fault.name in ("bus_lost", "heat"):
            if state.down[node]:
                return []
            state.lost[row] = True
            state.frozen[row] = fault.style < 0.5
            return kernel_text.bus_lost(self.node_name(node), self.address(fault), onset_ns)
        if fault.name == "hbm":
            state.ecc_uncorrected[row] += 1
            state.remapped_uncorrectable[row] += 1
            state.remap_pending[row] = 1.0
            state.recovery_action[row] = 1.0
            codes = [48, 63, 94] if fault.style < 0.6 else [48, 95]
            if fault.style > 0.93:
                codes, state.remap_failed[row] = [48, 64, 95], 1.0
            return [self.xid(fault, code, onset_ns + i) for i, code in enumerate(codes)]
        if fault.name == "nvlink":
            state.nvlink_active[row] -= 1
            state.recovery_action[row] = 1.0
            return [self.xid(fault, 74, onset_ns)]
        if fault.name == "gsp":
            state.hung[row] = True
            return [self.xid(fault, 119, onset_ns)]
        return self._strike_node(fault)

    def _strike_node(self, fault: Fault) -> list[Sample]:
        state, node = self.state, fault.node
        if fault.name == "ib_link":
            state.ib_down[node] = True
            state.ib_downed[node] += 1
            text = "mlx5_core 0000:41:00.0: Port module event: module 0, Cable error, Power budget"
            return [self._event(fault, "link", "down", text, 2.0, fault.onset_ns, "mlx5_0/1")]
        if fault.name == "fan":
            state.fan_stopped[node] = True
            text = "Fan FAN3 | Lower Critical going low"
            return [self._event(fault, "sel", "fan", text, 2.0, fault.onset_ns, "FAN3")]
        if fault.name == "psu":
            state.supply_failed[node] = True
            text = f"Power Supply {SUPPLY} | Failure detected | Asserted"
            return [
                self._event(fault, "sel", "power_supply_failure", text, 3.0, fault.onset_ns, SUPPLY)
            ]
        if fault.name == "ssd":
            state.readonly[node] = True
            text = "EXT4-fs (nvme0n1p2): Remounting filesystem read-only"
            return [
                self._event(fault, "filesystem", "readonly", text, 3.0, fault.onset_ns, "nvme0n1p2")
            ]
        state.down[node] = True  # host, dimm: nothing is heard any more
        if fault.name == "dimm":
            state.edac_uncorrected[node] += 1
            state.mce[node] += 1
            text = "mce: [Hardware Error]: Machine check events logged"
            return [self._event(fault, "mce", "uncorrected", text, 3.0, fault.onset_ns, "DIMM_A1")]
        return []

    def supply_warning(self, node: int, time_ns: int) -> Sample:
        """The BMC's log foresees the failure of a power supply."""
        text = f"Power Supply {SUPPLY} | Predictive failure | Asserted"
        name = self.node_name(node)
        return event(
            name,
            "sel",
            "power_supply_predictive",
            time_ns,
            text=text,
            severity=2.0,
            device=SUPPLY,
        )

    def xid(self, fault: Fault, code: int, time_ns: int) -> Sample:
        """An XID line of the fault's GPU."""
        pid = int(self.rng.integers(2000, 60000))
        return kernel_text.xid(
            self.node_name(fault.node), self.address(fault), code, time_ns, pid, "python3"
        )

    def _event(
        self,
        fault: Fault,
        kind: str,
        code: str,
        text: str,
        severity: float,
        time_ns: int,
        device: str,
    ) -> Sample:
        node = self.node_name(fault.node)
        return event(node, kind, code, time_ns, text=text, severity=severity, device=device)
