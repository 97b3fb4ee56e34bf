"""What a parser holds and tells grows with its text at most, and stops at its bounds.

Compared are bytes and records, never times; 100 MB of each text by hand: docs/gpu.md.
"""

from __future__ import annotations

import random
import re
import tracemalloc
from pathlib import Path

import pytest

from collectors.bmc.points import Reading, Readings
from collectors.parsers import PARSERS

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
NOW_NS = 1_796_007_000_000_000_000

# A text of each parser's own tool.
OWN = {
    "dcgm-exporter": "gpu/dcgm/metrics_4.8.prom",
    "dcgmi-diag": "gpu/dcgm/diag_r1_3.3.json",
    "dcgmi-dmon": "gpu/dcgm/dmon_4.6.txt",
    "dcgmi-health": "gpu/dcgm/health_ok_4.json",
    "ibdiagnet": "ib/made-ibdiagnet2.db_csv",
    "iblinkinfo": "ib/iblinkinfo-l.txt",
    "ibnetdiscover": "ib/ibnetdiscover-p.txt",
    "ibqueryerrors": "ib/ibqueryerrors-counters.txt",
    "ibstat": "ib/sysfs-ibstat.txt",
    "ibstatus": "ib/reported/ibstatus-roce-ndr.txt",
    "ipmi-dcmi": "ipmi/freeipmi-dcmi-power.txt",
    "ipmi-sel": "ipmi/freeipmi-sel-csv.txt",
    "ipmi-sensors": "ipmi/freeipmi-sensors-csv.txt",
    "ipmitool-chassis": "ipmi/ipmitool-chassis-status.txt",
    "ipmitool-dcmi": "ipmi/ipmitool-dcmi-power.txt",
    "ipmitool-sdr": "ipmi/ipmitool-sdr-csv.txt",
    "ipmitool-sel": "ipmi/ipmitool-sel-elist-csv.txt",
    "ipmitool-sensor": "ipmi/ipmitool-sensor.txt",
    "kernel-log": "kernel/system.log",
    "nvidia-smi": "gpu/smi/table_418.txt",
    "nvidia-smi-csv": "gpu/smi/query_590_new-fields.csv",
    "nvidia-smi-dmon": "gpu/smi/dmon_590.txt",
    "nvidia-smi-list": "gpu/smi/L_one-bad_550.txt",
    "nvidia-smi-nvlink": "gpu/smi/nvlink-e_550.txt",
    "nvidia-smi-topo": "gpu/smi/topo-m_550.txt",
    "nvidia-smi-xml": "gpu/smi/q-x_v12_535.xml",
    "nvme-smart-log": "reported/nvme-smart-log.json",
    "perfquery": "ib/perfquery-al.txt",
    "rasdaemon": "host/ras-mc-ctl-full-errors.txt",
    "rdma-link": "ib/reported/rdma-link.txt",
    "redfish": "redfish/own-sel-page2.json",
    "slurm-nodes": "slurm/22.05/scontrol-nodes.txt",
    "smartctl": "reported/nvme-smart-log.json",
}
SMALL_BYTES = 25_000
# Where each bound stands, lowered so that a small text passes it.
BOUNDS = {
    "gpu.findings.SAMPLES_MOST": ("nvidia-smi-list", "nvidia-smi-csv", "dcgmi-dmon"),
    "ib.text.POINTS_LIMIT": ("iblinkinfo", "ibqueryerrors"),
    "bmc.ipmi_sensors.TEXT_RECORDS_LIMIT": ("ipmitool-sdr", "ipmitool-sensor"),
    "bmc.ipmi_freeipmi.TEXT_RECORDS_LIMIT": ("ipmi-sensors",),
    "bmc.ipmi_sel.TEXT_RECORDS_LIMIT": ("ipmitool-sel", "ipmi-sel"),
}
LOWERED = 50


def others(name: str, size: int) -> bytes:
    """The tool's text again and again, each time about other boards, ports and sensors."""
    chance = random.Random(name)
    unit = (FIXTURES / OWN[name]).read_bytes().rstrip(b"\n") + b"\n"

    def another(found: re.Match[bytes]) -> bytes:
        # GUIDs and UUIDs, and the numbers in names: what tells records apart.
        digits = "0123456789abcdef" if re.search(rb"[a-f]", found[0]) else "0123456789"
        return "".join(chance.choice(digits[1:]) for _ in found[0]).encode()

    parts, total = [], 0
    while total < size:
        part = re.sub(rb"[0-9a-f]{12,16}|(?<=[A-Za-z_-])\d{2,4}", another, unit)
        parts.append(part)
        total += len(part)
    return b"".join(parts)


def grown(name: str, text: bytes) -> tuple[int, int]:
    """(bytes at the peak beside the text, records) of one parse."""
    tracemalloc.start()
    try:
        samples, problems = PARSERS[name](text, "n1", NOW_NS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak, len(samples) + len(problems)


def test_every_parser_has_a_text_of_its_own_here() -> None:
    assert sorted(OWN) == sorted(PARSERS)


@pytest.mark.parametrize("name", sorted(OWN))
def test_four_times_the_text_takes_at_most_four_times_the_memory(name: str) -> None:
    small, large = others(name, SMALL_BYTES), others(name, 4 * SMALL_BYTES)
    PARSERS[name](small[:1000], "n1", NOW_NS)  # what is made once is not growth
    peak, records = grown(name, small)
    more_peak, more_records = grown(name, large)
    assert more_peak <= 5 * peak + 2_000_000, (peak, more_peak)
    assert more_records <= 5 * records + 300, (records, more_records)
    # Records are a few hundred bytes each; beside them nothing grows faster than the text.
    assert more_peak <= 12 * len(large) + 2500 * more_records, (more_peak, more_records)


@pytest.mark.parametrize(
    ("bound", "name"), [(bound, name) for bound, names in BOUNDS.items() for name in names]
)
def test_past_a_bound_nothing_more_is_kept_and_that_is_told(
    bound: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = others(name, 4 * SMALL_BYTES)
    before = len(PARSERS[name](text, "n1", NOW_NS)[0])
    assert before > 2 * LOWERED
    monkeypatch.setattr(f"collectors.{bound}", LOWERED)
    samples, problems = PARSERS[name](text, "n1", NOW_NS)
    assert len(samples) <= LOWERED + 1
    assert any("left out" in one.problem and str(LOWERED) in one.problem for one in problems)


@pytest.mark.parametrize("name", ["ipmitool-dcmi", "ipmi-dcmi", "ipmitool-chassis"])
def test_what_one_bmc_says_in_a_few_lines_is_not_looked_for_without_end(name: str) -> None:
    short = len(PARSERS[name](others(name, SMALL_BYTES), "n1", NOW_NS)[0])
    samples, problems = PARSERS[name](others(name, 40 * SMALL_BYTES), "n1", NOW_NS)
    assert len(samples) == short
    assert any("lines: the rest is left out" in one.problem for one in problems)


def test_many_sensors_of_one_name_each_get_their_own() -> None:
    found = Readings()
    for place in range(3):
        found.add(Reading("n1", "Fan", "rpm", value=float(place)))
    found.add(Reading("n1", "Fan #2", "rpm", value=9.0))
    names = [one.tag("sensor") for one in found.samples(NOW_NS)]
    assert names == ["Fan", "Fan #2", "Fan #3", "Fan #2 #2"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("ipmitool-sdr", "Fan1,4200,RPM,ok\n"),
        ("ipmitool-sensor", "Fan1             | 4200.000   | RPM        | ok    | 300.000\n"),
    ],
)
def test_very_many_sensors_of_one_name_are_read_to_the_end(source: str, line: str) -> None:
    # Once each looked through all the places taken by those before it: minutes.
    samples, problems = PARSERS[source](line * 40_000, "n1", NOW_NS)
    assert len({one.tag("sensor") for one in samples}) == len(samples)
    assert samples or problems
