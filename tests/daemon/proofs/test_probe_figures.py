"""The batch script of a probe, run for real: what it takes for a figure in the output of tools."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.proofs.proof import Probe
from daemon.slurm.probe import KNOWN, script

NCCL = """\
# nThread 1 nGpus 8 minBytes 1073741824 maxBytes 1073741824 step: 1048576(bytes)
#       size         count      type   redop    root     time   algbw   busbw #wrong
  1073741824     268435456     float     sum      -1   4012.3  267.61  468.32      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 468.32
#
"""
PERFTEST = """\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 800.000000 != 3800.000000
 65536      5000             392.10             391.85             0.747
---------------------------------------------------------------------------------------
"""
PERFTEST_MB = (
    PERFTEST.replace("Gb/sec", "MB/sec").replace("392.10", "46743.1").replace("391.85", "46712.5")
)
NVBANDWIDTH = """\
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.40     55.38
SUM host_to_device_memcpy_ce 110.78
"""


def run(folder: Path, said: str) -> dict[str, str]:
    """What the script writes into its job's Comment when a tool prints ``said``."""
    output, told = folder / "output", folder / "told"
    output.write_text(said)
    scontrol = folder / "scontrol"
    scontrol.write_text(f'#!/bin/sh\nprintf "%s" "$*" > {told}\n')
    scontrol.chmod(0o755)
    program = folder / "job.py"
    program.write_text(script({"p": Probe(command=("cat", str(output)))}, sys.executable))
    world = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    subprocess.run([sys.executable, str(program)], env=world, check=True, timeout=60)
    _, _, comment = told.read_text().partition("Comment=")
    state, *figures = comment.split(";")
    assert state == "tocsin=ok"
    return dict(one.split("=") for one in figures)


@pytest.mark.parametrize(
    ("said", "name", "value"),
    [
        (NCCL, "nccl_bus_bytes_per_second", 468.32e9),
        (PERFTEST, "ib_bytes_per_second", 391.85e9 / 8),
        (PERFTEST_MB, "ib_bytes_per_second", 46712.5 * 2**20),
        (NVBANDWIDTH, "host_to_device_bytes_per_second", 110.78e9),
        ("Performance= 4712.75 GFlop/s, Time= 0.028 msec", "gemm_flops", 4712.75e9),
        ("bf16_flops=6.9e14\n", "bf16_flops", 6.9e14),
    ],
)
def test_a_figure_is_read_from_what_the_tool_prints(
    tmp_path: Path, said: str, name: str, value: float
) -> None:
    figures = run(tmp_path, said)
    assert list(figures) == [name]
    assert float(figures[name]) == pytest.approx(value, rel=1e-5)


def test_other_words_are_no_figures(tmp_path: Path) -> None:
    said = (
        "# Avg bus bandwidth    : n/a\nSUM of all 3\nPerformance= inf GFlop/s\n65536 5000 1 2 3\n"
    )
    assert run(tmp_path, said) == {}


def test_long_output_costs_no_more_than_its_length(tmp_path: Path) -> None:
    rows = "BW average[Gb/sec]\n 65536      5000      x\n" * 24_000
    assert run(tmp_path, rows) == {}
    assert len(KNOWN) == len({pattern for pattern, _, _ in KNOWN})
