"""Samples as a node sends them, for the tests of rules: node n3, GPUs of 4, a host, its sources."""

from __future__ import annotations

from collections.abc import Iterable

from collectors.events import event
from collectors.sample import Sample, sample, source_reading
from models.rules import Rules

SECOND = 10**9
NOW = 1_796_000_000 * SECOND
BOOT = NOW - 86_400 * SECOND
LINE = "NVRM: Xid (PCI:0000:9b:00): {}, pid=1, name=a, words"


def xid(
    code: int, at: int = NOW, pci: str = "0000:9b:00", node: str = "n3", text: str = ""
) -> Sample:
    line = text or LINE.format(code).replace("0000:9b:00", pci)
    return event(node, "xid", str(code), at, text=line, severity=2, device=pci)


def gpu(index: int, at: int, node: str = "n3", **fields: float) -> Sample:
    full = {
        "temperature_celsius": 40.0 + index,
        "power_watts": 100.0 + at % 7,
        "utilization_ratio": 0.5,
        "sm_clock_hertz": 1.4e9,
        "memory_used_bytes": 1e9,
        "energy_joules_total": at / SECOND,
        "pcie_replays_total": 0.0,
    } | fields
    return sample("gpu", at, full, node=node, gpu=str(index), uuid=f"GPU-{node}-{index}")


def source(name: str, at: int, up: bool = True, node: str = "n3", fault: str = "") -> Sample:
    return source_reading(node, name, at, up=up, duration_seconds=0.1, age_seconds=0.0, fault=fault)


def inventory(index: int, pci: str, at: int = NOW, node: str = "n3") -> Sample:
    text = f"gpu={index} uuid=GPU-1 serial=1 model=NVIDIA H100 80GB HBM3"
    return event(node, "inventory", "gpu", at, text=text, severity=0, device=pci)


def host(at: int, node: str = "n3", **fields: float) -> Sample:
    return sample("host", at, {"boot_time_seconds": BOOT / SECOND} | fields, node=node)


def feed(rules: Rules, samples: Iterable[Sample], delay: int = 0) -> None:
    for one in samples:
        rules.observe(one, one.time_ns + delay)


def told(
    rules: Rules, now: int = NOW, expected: int = 0, node: str = "n3"
) -> list[tuple[str, str]]:
    return [(fact.code, fact.entity.device) for fact in rules.facts(now, {node: expected})]


def cycle(at: int, indices: Iterable[int], up: bool = True) -> list[Sample]:
    return [*(gpu(index, at) for index in indices), source("nvml", at, up)]
