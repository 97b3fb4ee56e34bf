"""The scenario: every rate, ramp, lead and precursor share by name, with its evidence.

A scenario is a TOML file. Each number is a :class:`Parameter`: a value, how well it is
known (``grade``) and where it comes from (``source``). Nothing in the simulator that says
how often or how early something fails is hidden in code.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

DEFAULT_PATH = Path(__file__).parent / "scenarios" / "default.toml"

Grade = Literal["published", "derived", "measured", "assumed"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Parameter(_Strict):
    """One number and its evidence. ``derived``: reckoned from a published figure."""

    value: float = Field(ge=0)
    grade: Grade
    source: str = Field(min_length=3)


class FaultRates(_Strict):
    """How often one class of fault happens and how it announces itself.

    ``rate_per_1000_entity_days`` counts GPUs for GPU classes and nodes for node classes.
    ``predictable_share`` of the cases have a precursor; the others strike from nothing.
    The precursor grows over the lead: lead is log-normal with a median and a log-sigma.
    """

    rate_per_1000_entity_days: Parameter
    predictable_share: Parameter
    lead_median_hours: Parameter
    lead_log_sigma: Parameter
    strength: Parameter


class Benign(_Strict):
    """Things that look like faults and are none."""

    application_xids_per_1000_gpu_days: Parameter
    planned_reboots_per_1000_node_days: Parameter
    monitoring_gaps_per_1000_node_days: Parameter
    monitoring_gap_median_minutes: Parameter
    driver_rollout_interval_days: Parameter
    harmless_remaps_per_1000_gpu_days: Parameter
    harmless_edac_bursts_per_1000_node_days: Parameter
    harmless_symbol_bursts_per_1000_node_days: Parameter
    harmless_nvlink_bursts_per_1000_gpu_days: Parameter
    harmless_ecc_bursts_per_1000_gpu_days: Parameter
    harmless_fan_dips_per_1000_node_days: Parameter
    harmless_burst_median_hours: Parameter
    harmless_burst_log_sigma: Parameter
    harmless_burst_strength: Parameter
    harmless_single_errors_per_1000_entity_days: Parameter
    harmless_supply_warnings_per_1000_node_days: Parameter
    harmless_warm_cards_share: Parameter
    harmless_warm_strength: Parameter


class Repair(_Strict):
    """How long people take to notice and to mend."""

    notice_median_hours: Parameter
    repair_median_hours: Parameter
    log_sigma: Parameter
    half_mended_share: Parameter
    half_mended_relapse_median_hours: Parameter


class Workload(_Strict):
    """Jobs: how full the cluster is and how long jobs last."""

    occupancy: Parameter
    duration_median_hours: Parameter
    duration_log_sigma: Parameter
    whole_node_share: Parameter


class Frailty(_Strict):
    """How unequal nodes are: gamma shape of the multiplier on a node's rates."""

    gamma_shape: Parameter


# The look-alikes of single classes of fault, by the name of their rate.
LOOK_ALIKES = {
    "fan": ("harmless_fan_dips_per_1000_node_days",),
    "psu": ("harmless_supply_warnings_per_1000_node_days",),
    "dimm": ("harmless_edac_bursts_per_1000_node_days",),
    "ib_link": ("harmless_symbol_bursts_per_1000_node_days",),
    "nvlink": ("harmless_nvlink_bursts_per_1000_gpu_days",),
    "hbm": (
        "harmless_ecc_bursts_per_1000_gpu_days",
        "harmless_remaps_per_1000_gpu_days",
    ),
}


class Scenario(_Strict):
    """The whole scenario. ``faults`` is keyed by fault class (see models/simulate/faults.py)."""

    name: str
    hardware: str = "h100-8"
    faults: dict[str, FaultRates]
    benign: Benign
    repair: Repair
    workload: Workload
    frailty: Frailty

    def scaled(self, factor: float, without: tuple[str, ...] = ()) -> Scenario:
        """This scenario with every fault rate times ``factor``, and classes left out."""
        return self._times({name: 0.0 if name in without else factor for name in self.faults})

    def crowded(self, factor: float, only: tuple[str, ...] = ()) -> Scenario:
        """Faults, bursts and warnings ``factor`` times as often: as much to tell apart per fault.

        A fleet whose faults alone were more frequent would teach that every error foretells one.
        ``only`` names classes of fault: then these and what looks like them, and nothing else.
        """
        alike = {rate for name in only for rate in LOOK_ALIKES.get(name, ())}
        frequent = {
            name: rate.model_copy(update={"value": rate.value * factor})
            for name, rate in self.benign
            if name.startswith("harmless_")
            and "_per_1000_" in name
            and "single" not in name
            and (not only or name in alike)
        }
        benign = self.benign.model_copy(update=frequent)
        times = {name: factor if not only or name in only else 1.0 for name in self.faults}
        return self._times(times).model_copy(update={"benign": benign})

    def _times(self, factors: Mapping[str, float]) -> Scenario:
        faults = {}
        for name, rates in self.faults.items():
            rate = rates.rate_per_1000_entity_days
            scaled = rate.model_copy(update={"value": rate.value * factors[name]})
            faults[name] = rates.model_copy(update={"rate_per_1000_entity_days": scaled})
        return self.model_copy(update={"faults": faults})

    def with_hardware(self, hardware: str) -> Scenario:
        """This scenario on other nodes."""
        return self.model_copy(update={"hardware": hardware})


def load(path: Path = DEFAULT_PATH) -> Scenario:
    """Reads a scenario file. Raises pydantic.ValidationError naming every wrong key."""
    with path.open("rb") as file:
        return Scenario.model_validate(tomllib.load(file))
