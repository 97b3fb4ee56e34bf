"""Fault classes, when they strike, and the record of what was true.

The schedule is drawn one day of simulated time at a time from a generator seeded by
(seed, day), so that the cadence of readings does not change which faults happen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.simulate.scenario import FaultRates, Repair, Scenario

HOUR_NS = 3_600_000_000_000
DAY_NS = 24 * HOUR_NS


@dataclass(frozen=True, slots=True)
class FaultClass:
    """What a class of fault is about: ``per`` gpu or node; ``component`` as in Truth."""

    name: str
    per: str
    component: str
    text: str
    stops_jobs: bool = True


CLASSES: dict[str, FaultClass] = {
    one.name: one
    for one in (
        FaultClass("bus_lost", "gpu", "gpu", "GPU falls off the bus without warning"),
        FaultClass("heat", "gpu", "gpu", "cooling of one GPU gets worse until it is lost"),
        FaultClass("hbm", "gpu", "gpu", "GPU memory errors and row remaps"),
        FaultClass("nvlink", "gpu", "nvlink", "NVLink errors grow, then a link fails"),
        FaultClass("gsp", "gpu", "gpu", "the GPU's system processor stops answering"),
        FaultClass("host", "node", "node", "host crashes without warning"),
        FaultClass("dimm", "node", "memory", "main memory errors grow, then stop the host"),
        FaultClass("ib_link", "node", "link", "InfiniBand errors grow, then the link is down"),
        FaultClass("fan", "node", "chassis", "a fan slows down and stops"),
        FaultClass("psu", "node", "chassis", "a power supply fails", stops_jobs=False),
        FaultClass("ssd", "node", "disk", "a disk gives errors, then is read-only"),
    )
}


@dataclass(slots=True)
class Fault:
    """One fault under way. Times in ns; ``node``, ``gpu`` and ``port`` are indices."""

    name: str
    node: int
    gpu: int  # index within the node, -1 for a fault of the node
    start_ns: int
    onset_ns: int
    notice_ns: int
    repair_seconds: float
    strength: float
    predictable: bool
    style: float  # uniform in [0, 1): picks between the faces one class can have
    relapse_hours: float = 0.0  # above 0: only half mended, comes back after that time
    struck: bool = False
    noticed_ns: int = 0
    repaired_ns: int = 0
    carry: float = 0.0  # part of a count not yet emitted

    def progress(self, now_ns: int) -> float:
        """0 before the precursor starts, 1 from the onset on."""
        if now_ns >= self.onset_ns:
            return 1.0
        span = self.onset_ns - self.start_ns
        return min(1.0, max(0.0, (now_ns - self.start_ns) / span)) if span > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Truth:
    """What really happened; the row of truth.csv. ``repaired_ns`` 0: not yet repaired."""

    node: str
    device: str
    component: str
    fault_class: str
    onset_ns: int
    noticed_ns: int
    repaired_ns: int
    predictable: bool


class Schedule:
    """Draws the faults of each day. ``frailty`` [nodes] multiplies a node's rates, mean 1."""

    def __init__(self, scenario: Scenario, nodes: int, gpus: int, seed: int) -> None:
        self.scenario = scenario
        self.nodes = nodes
        self.gpus = gpus
        self.seed = seed
        shape = scenario.frailty.gamma_shape.value
        frailty = np.random.default_rng([seed, 7]).gamma(shape, 1.0 / shape, nodes)
        self.frailty: NDArray[np.float64] = frailty / frailty.mean()

    def day(self, day: int, day_start_ns: int) -> list[Fault]:
        """All faults whose precursor (or strike) begins on this day, by start time."""
        rng = np.random.default_rng([self.seed, 11, day])
        faults: list[Fault] = []
        for name in sorted(self.scenario.faults):
            rates = self.scenario.faults[name]
            per_gpu = CLASSES[name].per == "gpu"
            entities = self.nodes * (self.gpus if per_gpu else 1)
            mean = rates.rate_per_1000_entity_days.value * entities / 1000.0
            count = int(rng.poisson(mean))
            nodes = rng.choice(self.nodes, count, p=self.frailty / self.nodes)
            for node in nodes.tolist():
                gpu = int(rng.integers(self.gpus)) if per_gpu else -1
                start_ns = day_start_ns + int(rng.random() * DAY_NS)
                faults.append(
                    draw_fault(name, node, gpu, start_ns, rates, self.scenario.repair, rng)
                )
        return sorted(faults, key=lambda fault: fault.start_ns)


def draw_fault(
    name: str,
    node: int,
    gpu: int,
    start_ns: int,
    rates: FaultRates,
    repair: Repair,
    rng: np.random.Generator,
) -> Fault:
    """One fault of class ``name`` that begins at ``start_ns``."""
    predictable = bool(rng.random() < rates.predictable_share.value)
    lead_hours = lognormal(rng, rates.lead_median_hours.value, rates.lead_log_sigma.value)
    onset_ns = start_ns + (int(min(lead_hours, 24 * 14) * HOUR_NS) if predictable else 0)
    sigma = repair.log_sigma.value
    notice_hours = lognormal(rng, repair.notice_median_hours.value, sigma)
    repair_hours = lognormal(rng, repair.repair_median_hours.value, sigma)
    half_mended = rng.random() < repair.half_mended_share.value
    relapse_hours = lognormal(rng, repair.half_mended_relapse_median_hours.value, sigma)
    return Fault(
        name=name,
        node=node,
        gpu=gpu,
        start_ns=start_ns,
        onset_ns=onset_ns,
        notice_ns=onset_ns + int(min(notice_hours, 24 * 7) * HOUR_NS),
        repair_seconds=min(repair_hours, 24 * 7) * 3600.0,
        strength=rates.strength.value * float(rng.uniform(0.6, 1.4)),
        predictable=predictable,
        style=float(rng.random()),
        relapse_hours=relapse_hours if half_mended else 0.0,
    )


def lognormal(rng: np.random.Generator, median: float, log_sigma: float) -> float:
    """A log-normal draw with the given median."""
    return median * math.exp(log_sigma * float(rng.standard_normal()))
