"""Every field that tocsin stores: its kind, unit and meaning, by measurement and name."""

from __future__ import annotations

from functools import cache

from collectors.bmc import ipmi
from collectors.gpu import nvml
from collectors.ib import fabric, infiniband
from collectors.kernel import log as kernel_log
from collectors.node import checks, host, nvme, pcie
from collectors.sample import Metric
from collectors.slurm import source as slurm
from daemon import metrics
from daemon.drains import record

SOURCES = (
    nvml,
    host,
    kernel_log,
    pcie,
    nvme,
    checks,
    infiniband,
    fabric,
    ipmi,
    slurm,
    metrics,
    record,
)


@cache
def fields() -> dict[tuple[str, str], Metric]:
    """(measurement, field) to its Metric, from the METRICS of every source."""
    return {
        (metric.measurement, metric.name): metric for module in SOURCES for metric in module.METRICS
    }


def metric_of(measurement: str, field: str) -> Metric | None:
    """What a field is, or None for one that no source of ours writes."""
    return fields().get((measurement, field))
