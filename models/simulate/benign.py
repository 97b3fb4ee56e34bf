"""Look-alikes: what a healthy fleet does that a bad detector would call a fault."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.simulate.faults import DAY_NS, lognormal
from models.simulate.scenario import Benign

MINUTE_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Happening:
    """Something harmless at a time.

    ``what``: application_xid, harmless_remap, supply_warning, reboot, rollout, gap, and the
    bursts of :data:`BURSTS`, which last ``seconds`` at ``strength`` of the class they look like.
    """

    time_ns: int
    what: str
    node: int
    gpu: int = -1
    code: int = 0
    seconds: float = 0.0
    whole_agent: bool = False
    strength: float = 0.0


# Each burst looks like the precursor of a fault class, which says what an error rate means.
BURSTS = {
    "edac_burst": "dimm",
    "symbol_burst": "ib_link",
    "nvlink_burst": "nvlink",
    "ecc_burst": "hbm",
    "fan_dip": "fan",
}


class BenignSchedule:
    """Draws a day's harmless happenings from a generator seeded by (seed, day)."""

    def __init__(self, options: Benign, nodes: int, gpus: int, seed: int) -> None:
        self.options = options
        self.nodes, self.gpus, self.seed = nodes, gpus, seed

    def day(self, day: int, day_start_ns: int) -> list[Happening]:
        """All happenings of one day, in order of time."""
        rng = np.random.default_rng([self.seed, 13, day])
        options = self.options
        gpus = self.nodes * self.gpus
        found: list[Happening] = []

        def times(rate_per_1000: float, entities: int) -> list[int]:
            count = int(rng.poisson(rate_per_1000 * entities / 1000.0))
            return [day_start_ns + int(share * DAY_NS) for share in rng.random(count)]

        for time_ns in times(options.application_xids_per_1000_gpu_days.value, gpus):
            # Codes in the proportions of Fire-Flyer's table VI.
            code = int(rng.choice([13, 31, 43, 45], p=[0.01, 0.35, 0.61, 0.03]))
            found.append(self._on_gpu(rng, time_ns, "application_xid", code))
        found += [
            self._on_gpu(rng, time_ns, "harmless_remap", 63)
            for time_ns in times(options.harmless_remaps_per_1000_gpu_days.value, gpus)
        ]
        for time_ns in times(options.planned_reboots_per_1000_node_days.value, self.nodes):
            node = int(rng.integers(self.nodes))
            found.append(Happening(time_ns, "reboot", node, seconds=rng.uniform(240, 900)))
        for time_ns in times(options.monitoring_gaps_per_1000_node_days.value, self.nodes):
            minutes = lognormal(rng, options.monitoring_gap_median_minutes.value, 0.8)
            node, whole = int(rng.integers(self.nodes)), bool(rng.random() < 0.5)
            found.append(Happening(time_ns, "gap", node, seconds=60 * minutes, whole_agent=whole))
        for time_ns in times(options.harmless_supply_warnings_per_1000_node_days.value, self.nodes):
            found.append(Happening(time_ns, "supply_warning", int(rng.integers(self.nodes))))
        found += self._bursts(np.random.default_rng([self.seed, 19, day]), day_start_ns)
        found += self._rollout(rng, day, day_start_ns)
        return sorted(found, key=lambda one: one.time_ns)

    def _on_gpu(self, rng: np.random.Generator, time_ns: int, what: str, code: int) -> Happening:
        node, gpu = int(rng.integers(self.nodes)), int(rng.integers(self.gpus))
        return Happening(time_ns, what, node, gpu, code)

    def _bursts(self, rng: np.random.Generator, day_start_ns: int) -> list[Happening]:
        options = self.options
        gpus = self.nodes * self.gpus
        rates = (
            ("edac_burst", options.harmless_edac_bursts_per_1000_node_days, self.nodes),
            ("symbol_burst", options.harmless_symbol_bursts_per_1000_node_days, self.nodes),
            ("nvlink_burst", options.harmless_nvlink_bursts_per_1000_gpu_days, gpus),
            ("ecc_burst", options.harmless_ecc_bursts_per_1000_gpu_days, gpus),
            ("fan_dip", options.harmless_fan_dips_per_1000_node_days, self.nodes),
        )
        sigma = options.harmless_burst_log_sigma.value
        found = []
        for what, rate, entities in rates:
            for _ in range(int(rng.poisson(rate.value * entities / 1000.0))):
                hours = lognormal(rng, options.harmless_burst_median_hours.value, sigma)
                found.append(
                    Happening(
                        day_start_ns + int(rng.random() * DAY_NS),
                        what,
                        int(rng.integers(self.nodes)),
                        int(rng.integers(self.gpus)),
                        seconds=min(hours, 24 * 14) * 3600.0,
                        strength=lognormal(rng, options.harmless_burst_strength.value, sigma),
                    )
                )
        return found

    def _rollout(self, rng: np.random.Generator, day: int, day_start_ns: int) -> list[Happening]:
        """A driver roll-out: all nodes rebooted within a morning."""
        interval = int(self.options.driver_rollout_interval_days.value)
        if interval <= 0 or day == 0 or day % interval:
            return []
        begin_ns = day_start_ns + 8 * 60 * MINUTE_NS
        order = rng.permutation(self.nodes)
        step_ns = 240 * MINUTE_NS // max(self.nodes, 1)
        return [
            Happening(begin_ns + i * step_ns, "rollout", int(node), seconds=rng.uniform(300, 700))
            for i, node in enumerate(order)
        ]
