"""pytest fixtures of the simulated BMCs. Loaded by tests/conftest.py."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collectors.bmc import ipmi
from collectors.sample import Context
from daemon.bench.bmc_standin import Bmc, serve
from tests.collectors.ipmi_help import options as ipmi_options
from tests.testbed.bmc.bmcs import IpmiBmcs, RedfishBmcs, missing

Start = Callable[..., ipmi.Ipmi]


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


@pytest.fixture
def ipmi_start(tmp_path: Path, bmc_password: Path) -> Iterator[Start]:
    """Makes sources: ``start({"n1": address}, tries=1)``; they are closed in the end."""
    made: list[ipmi.Ipmi] = []

    def make(lines: dict[str, str], **more: object) -> ipmi.Ipmi:
        state = tmp_path / "state"
        state.mkdir(exist_ok=True)
        source = ipmi.make(
            ipmi_options(tmp_path, lines, bmc_password, **more), Context("head", state)
        )
        made.append(source)
        return source

    yield make
    for source in made:
        source.close()


@pytest.fixture
def bmc_standin() -> Iterator[tuple[Bmc, str]]:
    """A stand-in for one BMC in this process, and its address."""
    bmc, loop = Bmc(), asyncio.new_event_loop()
    host = f"127.{90 + os.getpid() % 9}.{os.getpid() % 250 + 1}.1"
    transport = loop.run_until_complete(serve([host], 0, [bmc]))[0]
    port = transport.get_extra_info("sockname")[1]
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield bmc, f"{host}:{port}"
    loop.call_soon_threadsafe(transport.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()
