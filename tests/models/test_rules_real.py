"""The frozen-and-vanished rule on real lost GPUs (GWDG, A100, 10-minute readings)."""

from __future__ import annotations

import csv
import lzma
import os
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

from collectors.sample import Sample, Value, sample
from models.rules import Rules

COLUMNS = {
    "gpu_temp_c": ("temperature_celsius", 1.0),
    "mem_temp_c": ("memory_temperature_celsius", 1.0),
    "power_w": ("power_watts", 1.0),
    "gpu_util_pct": ("utilization_ratio", 0.01),
    "sm_clock_mhz": ("sm_clock_hertz", 1e6),
    "fb_used_mib": ("memory_used_bytes", 1024.0**2),
    "energy_mj": ("energy_joules_total", 0.001),
    "pcie_replay": ("pcie_replays_total", 1.0),
    "corr_remapped_rows": ("remapped_rows_corrected_total", 1.0),
    "uncorr_remapped_rows": ("remapped_rows_uncorrected_total", 1.0),
}


def folder() -> Path:
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    path = Path(os.environ.get("TOCSIN_DATA", beside)) / "gwdg-gpu" / "derived"
    if not path.exists():
        pytest.skip(f"{path} is not here (set TOCSIN_DATA to the folder that holds it)")
    return path


def time_ns(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**9


def readings() -> dict[int, list[Sample]]:
    """GPU samples by time; an empty cell is a field that was not read."""
    by_time: dict[int, list[Sample]] = defaultdict(list)
    with lzma.open(folder() / "gpu_10min.csv.xz", "rt") as file:
        for row in csv.DictReader(file):
            fields: dict[str, Value] = {
                name: float(row[column]) * factor
                for column, (name, factor) in COLUMNS.items()
                if row[column]
            }
            if fields:
                at = time_ns(row["timeUtc"])
                by_time[at].append(
                    sample("gpu", at, fields, node=row["host_alias"], gpu=row["gpu"])
                )
    return by_time


def test_every_real_loss_is_found_at_its_second_reading_and_nothing_else() -> None:
    with open(folder() / "xid_gauge_episodes.csv", newline="") as file:
        onsets = sorted(
            (row["host_alias"], f"gpu{index}", time_ns(row["onset_utc"]))
            for row in csv.DictReader(file)
            for index in row["gpus_showing"].split("|")
            if row["xid"] == "79"
        )
    rules = Rules()
    found: set[tuple[str, str, int]] = set()
    for at, samples in sorted(readings().items()):
        for one in samples:
            rules.observe(one, at)
        for fact in rules.facts(at, {}):
            assert fact.code == "vanish", fact
            found.add((fact.entity.node, fact.entity.device, fact.onset_ns))
    assert len(onsets) == 8
    assert sorted(found) == onsets
