"""pytest fixtures of the simulated BMCs. Loaded by tests/conftest.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.bmc.bmcs import IpmiBmcs, RedfishBmcs, missing


@pytest.fixture(scope="module")
def ipmi_bmcs() -> Iterator[IpmiBmcs]:
    """Three BMCs, shared by the tests of one file."""
    reason = missing("ipmi_sim", "ipmitool")
    if reason:
        pytest.skip(reason)
    bmcs = IpmiBmcs(3)
    yield bmcs
    bmcs.close()


@pytest.fixture(scope="module")
def redfish_bmcs() -> Iterator[RedfishBmcs]:
    """Four Redfish BMCs, shared by the tests of one file."""
    reason = missing("openssl")
    if reason:
        pytest.skip(reason)
    bmcs = RedfishBmcs(4)
    yield bmcs
    bmcs.close()


@pytest.fixture
def bmc_password(tmp_path: Path) -> Path:
    """The file that holds the simulators' password."""
    path = tmp_path / "password"
    path.write_text("secret\n")
    path.chmod(0o600)
    return path
