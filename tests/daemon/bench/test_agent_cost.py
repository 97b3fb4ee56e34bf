"""The agent's own cost is measured on the real agent, and stays within its bounds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from daemon.bench.agent import bench_agent


@pytest.mark.slow
def test_the_agent_with_eight_gpus_stays_within_its_memory(tmp_path: Path) -> None:
    if shutil.which("make") is None or shutil.which("gcc") is None:
        pytest.skip("needs make and gcc to build the fake NVML library")
    figures = {figure.name: figure for figure in bench_agent(tmp_path / "bench", 10.0)}
    memory = figures["agent, resident memory, all"].value
    assert 10 < memory < 60
    assert figures["agent, bodies sent"].value >= 1
    # A busy machine measures badly: ten times the reach is a fault all the same.
    assert 0 < figures["agent, 8 fake GPUs, all its processes"].value < 5
