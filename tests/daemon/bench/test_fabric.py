"""The benchmark of the fabric sweep runs and measures what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.bench import fabric
from tests.testbed.ib.fabric import missing


def test_a_small_fabric_is_measured_beside_the_tools() -> None:
    if missing():
        pytest.skip(missing())
    found = fabric.figures(16, cycles=1)
    assert found["hosts"] == 16.0
    assert found["ports"] >= 32.0
    assert 0 < found["sweep_seconds"] <= found["round_seconds"]
    assert found["tools_seconds"] >= found["ibqueryerrors_seconds"] > 0
    for name in found:
        assert name.endswith(
            ("hosts", "ports", "requests", "_seconds", "_bytes", "_ratio", "load_1m")
        ), name


def test_without_the_testbed_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric, "TESTBED", Path("/nonexistent/ibfabric"))
    with pytest.raises(RuntimeError, match="source tree"):
        fabric.figures(4)
    (line,) = fabric.bench_fabric(4, 1)
    assert "not measured" in line.name
