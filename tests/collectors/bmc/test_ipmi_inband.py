"""The ``ipmi_inband`` source with the real ipmitool. The simulator has no kernel driver, so
ipmitool is sent over the network; all else is as on a node."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from collectors.bmc import ipmi_inband
from collectors.sample import Batch, Context, SourceUnavailable
from tests.collectors.contract import SourceContract
from tests.testbed.bmc.bmcs import IpmiBmcs


def options(address: str, secret: Path, **more: object) -> ipmi_inband.Options:
    host, _, port = address.partition(":")
    login = ["-I", "lanplus", "-C", "3", "-H", host, "-p", port, "-U", "admin", "-f", str(secret)]
    return ipmi_inband.Options(**{"arguments": tuple(login), "deadline_seconds": 20.0, **more})


def codes(batch: Batch) -> list[str]:
    return [one.tag("code") for one in batch.samples if one.measurement == "event"]


class TestIpmiInband(SourceContract):
    module = ipmi_inband

    @pytest.fixture
    def healthy(
        self, context: Context, ipmi_bmcs: IpmiBmcs, bmc_password: Path
    ) -> ipmi_inband.IpmiInband:
        return ipmi_inband.make(options(ipmi_bmcs.addresses[0], bmc_password), context)

    @pytest.fixture
    def unavailable(self, context: Context) -> ipmi_inband.IpmiInband:
        # No machine that runs tests has a BMC of this number.
        return ipmi_inband.make(ipmi_inband.Options(arguments=("-I", "open", "-d", "250")), context)


def test_log_entries_come_once_also_after_a_restart_and_a_clearing(
    ipmi_bmcs: IpmiBmcs, bmc_password: Path, tmp_path: Path
) -> None:
    given = options(ipmi_bmcs.addresses[1], bmc_password)
    context = Context("n7", tmp_path)
    source = ipmi_inband.make(given, context)
    source.collect(time.time_ns())
    ipmi_bmcs.run("sel", "2", "0x0c", "0x87", "0x6f", "0x01")
    assert codes(source.collect(time.time_ns())) == ["memory_uncorrectable"]
    assert codes(source.collect(time.time_ns())) == []
    source.close()
    again = ipmi_inband.make(given, context)
    assert codes(again.collect(time.time_ns())) == []
    ipmi_bmcs.run("sel", "2", "0x13", "0x90", "0x6f", "0x08")
    assert codes(again.collect(time.time_ns())) == ["bus_uncorrectable"]
    again._run("sel", "clear")
    ipmi_bmcs.run("sel", "2", "0x23", "0x00", "0x6f", "0x01")
    assert codes(again.collect(time.time_ns()))[-1] == "watchdog"


def test_a_burst_longer_than_the_end_that_is_looked_at_is_read_whole(
    ipmi_bmcs: IpmiBmcs, bmc_password: Path, tmp_path: Path
) -> None:
    source = ipmi_inband.make(
        options(ipmi_bmcs.addresses[2], bmc_password), Context("n7", tmp_path)
    )
    ipmi_bmcs.fill_log(3, 50)
    source.collect(time.time_ns())
    ipmi_bmcs.fill_log(3, 200)
    assert len(codes(source.collect(time.time_ns()))) == 200


def test_entries_of_the_log_are_told_also_where_no_sensor_can_be_read(tmp_path: Path) -> None:
    tool = tmp_path / "ipmitool"
    line = "1 | 11/30/2026 | 08:00:00 | Memory #0x87 | Uncorrectable ECC | Asserted"
    tool.write_text(f'#!/bin/sh\ncase "$*" in *sel*) echo "{line}";; esac\n')
    tool.chmod(0o755)
    given = ipmi_inband.Options(ipmitool=str(tool))
    source = ipmi_inband.make(given, Context("n7", tmp_path))
    batch = source.collect(time.time_ns())
    assert codes(batch) == ["memory_uncorrectable"]
    assert not batch.up
    assert "no sensor could be read" in batch.fault
    assert codes(source.collect(time.time_ns())) == []


def test_a_missing_ipmitool_and_a_wrong_password_are_told_apart(
    ipmi_bmcs: IpmiBmcs, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("not-it\n")
    context = Context("n7", tmp_path)
    source = ipmi_inband.make(options(ipmi_bmcs.addresses[0], wrong), context)
    with pytest.raises(SourceUnavailable, match="refuses user or password"):
        source.collect(time.time_ns())
    missing = ipmi_inband.make(ipmi_inband.Options(ipmitool="no-such-ipmitool"), context)
    with pytest.raises(SourceUnavailable, match="not found"):
        missing.collect(time.time_ns())
