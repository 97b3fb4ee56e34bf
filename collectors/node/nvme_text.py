"""Reads SMART of NVMe drives: ``nvme smart-log -o json`` and ``smartctl -j -a``.

nvme-cli gives kelvin where smartctl gives degrees Celsius, large numbers as text, and, in newer
versions, the critical warning as an object. Source: NVM Express base specification, SMART / Health
Information log page; nvme-cli and smartmontools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from collectors.gpu.findings import Findings, Text, accepted
from collectors.sample import Metric, Problem, Sample, clip, sample

INPUT_LIMIT = 8 * 1024 * 1024
KELVIN = 273.0  # the log page counts whole kelvin

DISK_METRICS: tuple[Metric, ...] = (
    Metric(
        "disk",
        "critical_warning",
        "state",
        "Bits: 1 spare low, 2 temperature, 4 reliability, 8 read only, 16 backup, 32 memory.",
        0,
        255,
    ),
    Metric("disk", "media_errors_total", "counter", "Data that could not be read back.", 0, 1e15),
    Metric("disk", "available_spare_ratio", "gauge", "Spare left; 1 is all.", 0, 1),
    Metric("disk", "percentage_used_ratio", "gauge", "Endurance used; may pass 1.", 0, 2.56),
    Metric("disk", "temperature_celsius", "gauge", "Composite temperature.", -60, 150),
)
_FIELDS = {metric.name: metric for metric in DISK_METRICS}

_DEVICE = re.compile(r"^#\s*device:\s*(\S{1,64})\s*$", re.M)
# Our field: keys of nvme-cli and smartctl, and the factor.
_KEYS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("media_errors_total", ("media_errors",), 1),
    ("available_spare_ratio", ("avail_spare", "available_spare"), 0.01),
    ("percentage_used_ratio", ("percent_used", "percentage_used"), 0.01),
)


def parse(text: Text, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """One drive's SMART. ``# device: nvme0`` before the JSON names the drive. Never raises."""
    return parse_drive(text, node, now_ns, "")


def parse_drive(
    text: Text, node: str, now_ns: int, device: str
) -> tuple[list[Sample], list[Problem]]:
    """The same for the drive ``device`` (``nvme0``)."""
    findings = Findings()
    # A piece more than the limit, so that it is seen to be passed.
    head = text[: INPUT_LIMIT + 1]
    whole = head.decode("utf-8", "replace") if isinstance(head, bytes) else head
    document = _load(whole, findings)
    if document is not None:
        named = _DEVICE.search(whole[:1000])
        where = device or (named[1] if named else "") or _name(document)
        fields = accepted(_values(document, findings), findings, where or "nvme", _FIELDS)
        if not fields and not findings.problems:
            findings.problem("no SMART of an NVMe drive in this text", whole[:200])
        findings.add(sample("disk", now_ns, fields, node=node, device=where))
    return findings.close()


def _load(whole: str, findings: Findings) -> Mapping[str, Any] | None:
    start = whole.find("{")
    if len(whole) > INPUT_LIMIT:
        findings.problem(f"more than {INPUT_LIMIT} characters: no SMART log")
    elif start < 0:
        findings.problem("no JSON in this text", whole.strip()[:300])
    else:
        try:
            document, _ = json.JSONDecoder().raw_decode(whole, start)
        except (ValueError, RecursionError) as error:
            findings.problem(f"broken JSON: {clip(str(error), 200)}", whole[start : start + 200])
        else:
            if isinstance(document, Mapping):
                return document
            findings.problem("JSON, and no SMART log")
    return None


def _values(document: Mapping[str, Any], findings: Findings) -> dict[str, float]:
    inner = document.get("nvme_smart_health_information_log")
    of_smartctl = isinstance(inner, Mapping)
    log: Mapping[str, Any] = inner if isinstance(inner, Mapping) else document
    values: dict[str, float] = {}
    warning = log.get("critical_warning")
    number = _number(warning.get("value") if isinstance(warning, Mapping) else warning)
    if number is not None:
        values["critical_warning"] = number
    for name, keys, scale in _KEYS:
        for key in keys:
            number = _number(log.get(key))
            if number is not None:
                values[name] = number * scale
                break
    temperature = _number(log.get("temperature"))
    if temperature is not None and temperature != 0:  # 0 K and "0 C": not reported
        # smartctl converts; older nvme-cli prints kelvin, as the drive does.
        kelvin = not of_smartctl and temperature > 150
        values["temperature_celsius"] = temperature - KELVIN if kelvin else temperature
    messages = document.get("smartctl")
    if isinstance(messages, Mapping):
        for one in list(messages.get("messages") or [])[:20]:
            if isinstance(one, Mapping) and one.get("severity") == "error":
                findings.problem(clip(str(one.get("string", "")), 300) or "smartctl failed")
    return values


def _name(document: Mapping[str, Any]) -> str:
    device = document.get("device")
    name = device.get("name") if isinstance(device, Mapping) else None
    return clip(name.rpartition("/")[2], 64) if isinstance(name, str) else ""


def _number(value: Any) -> float | None:
    """A JSON number, or digits in a string as nvme-cli writes counts beyond 32 bits."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return None
    if isinstance(value, str) and re.fullmatch(r"\d{1,39}", value.strip().replace(",", "")):
        return float(value.strip().replace(",", ""))
    return None
