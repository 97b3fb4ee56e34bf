"""What a running job did: its GPUs by the store, its energy, what happened on its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daemon.clock import NANOSECONDS
from daemon.jobs.held import Held
from daemon.jobs.met import at_stake
from daemon.jobs.slow import CAUSES, Finding, GpuUse, HostUse, PortUse, findings
from daemon.policy.cost import CostOptions
from daemon.store.embedded import Store
from daemon.store.events import Event
from daemon.store.reader import Reader

_GPU_FIELDS = (
    "utilization_ratio", "power_watts", "power_limit_watts", "sm_clock_hertz",
    "temperature_celsius", "pcie_link_width",
)  # fmt: skip
_HOST_FIELDS = {
    "cpu_ratio": "pressure_cpu_ratio",
    "io_ratio": "pressure_io_ratio",
    "memory_ratio": "pressure_memory_ratio",
}
_PORT_ERRORS = (
    "symbol_errors_total", "link_recoveries_total", "receive_errors_total",
    "local_link_integrity_errors_total", "excessive_buffer_overruns_total",
)  # fmt: skip
# Energy is added up over so many node-hours at most; beyond it is reckoned from the window.
_NODE_HOURS_MOST = 500.0
_EVENTS_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Energy:
    """What its GPUs took since it began. ``measured``: by their own counters, else reckoned."""

    joules: float
    measured: bool


@dataclass(frozen=True, slots=True)
class JobLook:
    """A job in full. ``gpu_hours``: held so far; ``at_stake_gpu_hours``: lost if it died now."""

    gpus: Sequence[GpuUse]
    hosts: Sequence[HostUse]
    findings: Sequence[Finding]
    events: Sequence[Event]
    energy: Energy | None
    gpu_hours: float
    at_stake_gpu_hours: float
    shared: Sequence[str]  # nodes whose GPUs are not told apart from other jobs'


def look(store: Store, one: Held, cost: CostOptions, minutes: float, now_ns: int) -> JobLook:
    """Reads the store: not in the event loop. Raises StoreUnavailableError."""
    nodes = list(one.gpus)
    begin_ns = now_ns - int(one.job.elapsed_seconds * NANOSECONDS)
    start_ns = max(begin_ns, now_ns - int(minutes * 60 * NANOSECONDS))
    shared = sorted(name for name in nodes if name not in one.alone)
    gpus = _gpus(store, one, start_ns, now_ns)
    hosts = _hosts(store, nodes, start_ns, now_ns)
    ports = _ports(store, nodes, start_ns, now_ns)
    hours = one.job.elapsed_seconds / 3600
    events = [
        event
        for name in nodes[:64]
        for event in store.events(name, since_ns=begin_ns, limit=_EVENTS_SHOWN)
        if int(event.severity) >= 2
    ]
    events.sort(key=lambda event: -event.time_ns)
    return JobLook(
        gpus=gpus,
        hosts=hosts,
        findings=findings(gpus, hosts, ports),
        events=events[:_EVENTS_SHOWN],
        energy=_energy(store, one, gpus, begin_ns, now_ns),
        gpu_hours=one.total * hours,
        at_stake_gpu_hours=at_stake(one, one.job.elapsed_seconds, cost),
        shared=shared,
    )


def columns(table: Any, tags: Sequence[str], fields: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Keys (a tuple of tags for each row) and each field as floats, NaN where it was not read."""
    rows = table.num_rows
    texts = [
        table.column(name).cast("string").to_pylist() if name in table.column_names else [""] * rows
        for name in tags
    ]
    numbers = {}
    for name in fields:
        values = np.full(rows, np.nan)
        if name in table.column_names:
            read = table.column(name).to_pylist()
            values = np.array([v if isinstance(v, float | int) else np.nan for v in read], float)
        numbers[name] = values
    return list(zip(*texts, strict=True)), numbers


def _mean(values: Any) -> float | None:
    read = values[~np.isnan(values)]
    return float(read.mean()) if len(read) else None


def _groups(keys: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], list[int]] = {}
    for row, key in enumerate(keys):
        found.setdefault(key, []).append(row)
    return {key: np.array(rows) for key, rows in found.items()}


def _gpus(store: Reader, one: Held, start_ns: int, end_ns: int) -> list[GpuUse]:
    """The job's GPUs: where it holds some of a node alone, the busiest are taken for its own."""
    wanted = [name for name in one.gpus if name in one.alone]
    if not wanted:
        return []
    fields = [*_GPU_FIELDS, *CAUSES]
    table = store.read("gpu", start_ns, end_ns, {"node": wanted}, fields)
    keys, numbers = columns(table, ("node", "gpu"), fields)
    found: dict[str, list[GpuUse]] = {}
    for (node, gpu), rows in _groups(keys).items():
        means = {name: _mean(numbers[name][rows]) for name in _GPU_FIELDS}
        shares = {name: share for name in CAUSES if (share := _mean(numbers[name][rows]))}
        found.setdefault(node, []).append(GpuUse(node, gpu, **means, throttled=shares))
    made = []
    for node, own in found.items():
        own.sort(key=lambda use: -(use.utilization_ratio or 0.0))
        made += own[: one.gpus[node]] if one.gpus[node] < len(own) else own
    return sorted(made, key=lambda use: (use.node, len(use.gpu), use.gpu))


def _hosts(store: Reader, nodes: Sequence[str], start_ns: int, end_ns: int) -> list[HostUse]:
    fields = list(_HOST_FIELDS.values())
    table = store.read("host", start_ns, end_ns, {"node": nodes}, fields)
    keys, numbers = columns(table, ("node",), fields)
    return [
        HostUse(node, **{name: _mean(numbers[at][rows]) for name, at in _HOST_FIELDS.items()})
        for (node,), rows in _groups(keys).items()
    ]


def _ports(store: Reader, nodes: Sequence[str], start_ns: int, end_ns: int) -> list[PortUse]:
    fields = ["rate_bits_per_second", "link_downs_total", *_PORT_ERRORS]
    table = store.read("ib_port", start_ns, end_ns, {"node": nodes}, fields)
    keys, numbers = columns(table, ("node", "device", "port"), fields)
    made = []
    for (node, device, port), rows in _groups(keys).items():
        rates = numbers["rate_bits_per_second"][rows]
        read = rates[~np.isnan(rates)]
        made.append(
            PortUse(
                node, f"{device}/{port}", float(read[-1]) if len(read) else None,
                sum(grown(numbers[name][rows]) for name in _PORT_ERRORS),
                grown(numbers["link_downs_total"][rows]),
            )
        )  # fmt: skip
    return made


def grown(values: Any) -> float:
    """How far a counter grew over its readings, resets left out."""
    read = values[~np.isnan(values)]
    steps = np.diff(read)
    return float(steps[steps > 0].sum())


def _energy(
    store: Reader, one: Held, gpus: Sequence[GpuUse], begin_ns: int, end_ns: int
) -> Energy | None:
    seconds = one.job.elapsed_seconds
    watts = [use.power_watts for use in gpus if use.power_watts is not None]
    alone = [name for name in one.gpus if name in one.alone]
    if len(alone) < len(one.gpus):
        return None
    if len(alone) * seconds / 3600 <= _NODE_HOURS_MOST and seconds > 0:
        name = "energy_joules_total"
        table = store.read_coarse("gpu", begin_ns, end_ns, {"node": alone}, [name])
        keys, numbers = columns(table, ("node", "gpu"), [name])
        own = {(use.node, use.gpu) for use in gpus}
        by_gpu = {key: rows for key, rows in _groups(keys).items() if key in own}
        joules = [grown(numbers[name][rows]) for rows in by_gpu.values()]
        if joules and len(joules) == len(own) and any(joules):
            return Energy(sum(joules), True)
    return Energy(sum(watts) * seconds, False) if watts else None
