"""One small simulated history with many faults, for all tests of learning and judging."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.simulate import load
from models.simulate.write import write_simulation
from models.telemetry import Telemetry


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Telemetry:
    """24 nodes x 4 GPUs, 20 days by the hour, faults 60 times as often as usual."""
    directory: Path = tmp_path_factory.mktemp("history")
    scenario = load().scaled(60.0).with_hardware("a100-4")
    write_simulation(directory, nodes=24, days=20, seed=5, cadence_seconds=3600, scenario=scenario)
    return Telemetry(directory)
