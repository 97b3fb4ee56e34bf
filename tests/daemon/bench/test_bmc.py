"""The benchmarks of BMCs run and measure what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.bench import bmc, bmc_redfish
from tests.testbed.bmc.bmcs import missing


def test_simulators_are_measured_beside_the_other_tools() -> None:
    reason = missing("ipmi_sim", "ipmitool", "ipmi-sensors")
    if reason:
        pytest.skip(reason)
    found = bmc.real(2, cycles=1)
    assert found["bmcs"] == 2.0
    assert found["readings"] > 60
    for name in ("round_seconds", "ipmitool_seconds", "freeipmi_seconds"):
        assert 0 < found[name] < 30, name


def test_stand_ins_are_measured() -> None:
    found = bmc.standins(20, cycles=1)
    assert found["bmcs"] == 20.0
    assert found["readings"] >= 20 * 30
    assert 0 < found["cpu_seconds"] < 10


def test_redfish_is_measured_beside_curl() -> None:
    reason = missing("openssl", "curl")
    if reason:
        pytest.skip(reason)
    found = bmc_redfish.figures(2, cycles=1)
    assert found["sensors_readings"] == found["reports_readings"] > 100
    for kind in ("sensors", "reports"):
        seconds = found[f"{kind}_round_seconds"], found[f"{kind}_curl_seconds"]
        assert found[f"{kind}_curl_ratio"] == pytest.approx(seconds[0] / seconds[1])


def test_without_the_testbed_each_kind_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bmc, bmc_redfish):
        monkeypatch.setattr(module, "TESTBED", Path("/nonexistent"))
    lines = [figure.name for figure in bmc.bench_bmc(3, 1)]
    assert "IPMI simulators: not measured: needs the source tree" in lines[0]
    assert "Redfish emulators: not measured: needs the source tree" in lines[1]
    assert lines[2] == "3 IPMI stand-ins: bmcs"
