"""The ``ipmi`` source against OpenIPMI's simulator, with ipmitool as the judge."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.bmc import ipmi
from collectors.parsers import PARSERS
from collectors.sample import Context
from daemon.bench.bmc_standin import Bmc
from tests.collectors.contract import NODE, SourceContract, check_samples
from tests.collectors.ipmi_help import (
    events,
    ipmitool,
    options,
    sensor,
    values,
)
from tests.testbed.bmc.bmcs import DcmiBmc, IpmiBmcs

Start = Callable[..., ipmi.Ipmi]


class TestIpmi(SourceContract):
    module = ipmi

    @pytest.fixture
    def healthy(
        self,
        context: Context,
        ipmi_bmcs: IpmiBmcs,
        tmp_path: Path,
        bmc_password: Path,
    ) -> ipmi.Ipmi:
        lines = {NODE: ipmi_bmcs.addresses[0]}
        return ipmi.make(options(tmp_path, lines, bmc_password), context)

    @pytest.fixture
    def unavailable(self, context: Context) -> ipmi.Ipmi:
        return ipmi.make(ipmi.Options(), context)


# ---- what is read ------------------------------------------------------------------------------


def test_readings_are_those_that_ipmitool_prints(
    ipmi_bmcs: IpmiBmcs,
    ipmi_start: Start,
    bmc_password: Path,
) -> None:
    address = ipmi_bmcs.addresses[0]
    batch = ipmi_start({"n1": address}).collect(time.time_ns())
    assert batch.up
    assert batch.fault == ""
    listing = ipmitool(address, bmc_password, "-c", "sdr", "elist", "all")
    told, problems = PARSERS["ipmitool-sdr"](listing, "n1", time.time_ns())
    assert problems == []
    ours = {
        (one.tag("sensor"), one.tag("kind")): dict(one.fields)
        for one in batch.samples
        if one.measurement == "bmc"
    }
    for one in told:
        mine = ours[(one.tag("sensor"), one.tag("kind"))]
        assert mine.get("value") == pytest.approx(one.fields.get("value")), one.tags
        assert mine.get("critical") == one.fields.get("critical"), one.tags
        assert mine.get("present") == one.fields.get("present"), one.tags
    assert len(told) == 41
    assert "System Power" in {name for name, _ in ours}


def test_what_changes_at_the_bmc_is_seen_in_the_next_round(
    ipmi_bmcs: IpmiBmcs,
    ipmi_start: Start,
) -> None:
    source = ipmi_start({"n1": ipmi_bmcs.addresses[0]})
    assert sensor(source.collect(time.time_ns()), "n1", "FAN3")["critical"] == 0.0
    try:
        ipmi_bmcs.run("set", "1", "FAN3", "600")
        ipmi_bmcs.run("set", "1", "FAN4", "na")
        ipmi_bmcs.run("set", "1", "CPU1 Temp", "250")
        ipmi_bmcs.run("bit", "1", "PSU2 Status", "3", "1")
        ipmi_bmcs.run("bit", "1", "PSU5 Status", "0", "0")
        time.sleep(1.1)  # the simulator looks at its files twice a second
        batch = source.collect(time.time_ns())
    finally:
        for name, value in (("FAN3", "9300"), ("FAN4", "9400"), ("CPU1 Temp", "58")):
            ipmi_bmcs.run("set", "1", name, value)
        ipmi_bmcs.run("bit", "1", "PSU2 Status", "3", "0")
        ipmi_bmcs.run("bit", "1", "PSU5 Status", "0", "1")
    assert sensor(batch, "n1", "FAN3") == {"value": 600.0, "critical": 1.0, "present": 1.0}
    assert sensor(batch, "n1", "FAN4") == {"present": 0.0}
    assert sensor(batch, "n1", "PSU2 Status") == {"critical": 1.0, "present": 1.0}
    assert sensor(batch, "n1", "PSU5 Status") == {"present": 0.0}
    assert "CPU1 Temp" not in values(batch, "n1"), "250 degrees cannot be"
    assert any("CPU1 Temp: 250 celsius cannot be" in one.problem for one in batch.problems)
    codes = [one.tag("code") for one in events(batch)]
    assert {"fan_lower_critical", "power_supply_input_lost", "power_supply_removed"} <= set(codes)


def test_power_by_dcmi_is_read_from_a_bmc_of_another_make(ipmi_start: Start) -> None:
    python = "/usr/bin/python3"  # the Debian package serves the system's Python
    known = subprocess.run([python, "-c", "import pyghmi"], capture_output=True, check=False)
    if known.returncode:
        pytest.skip("not installed: python3-pyghmi (tests/testbed/bmc/packages.txt)")
    bmc = DcmiBmc(python, watts=6543)
    try:
        source = ipmi_start({"n1": bmc.address})
        assert values(source.collect(time.time_ns()), "n1") == {"DCMI Power": 6543.0}
        bmc.file.write_text("inactive")
        batch = source.collect(time.time_ns())
        assert sensor(batch, "n1", "DCMI Power") == {"present": 0.0}
    finally:
        bmc.close()


# ---- the log -----------------------------------------------------------------------------------


def test_log_entries_come_once_also_after_a_restart(
    ipmi_bmcs: IpmiBmcs,
    ipmi_start: Start,
    bmc_password: Path,
) -> None:
    address = ipmi_bmcs.addresses[1]
    ipmi_bmcs.run("sel", "2", "0x0c", "0x87", "0x6f", "0x01", "0x03", "0x05")
    source = ipmi_start({"n2": address})
    first = events(source.collect(time.time_ns()))
    assert [one.tag("code") for one in first][-1] == "memory_uncorrectable"
    assert first[-1].fields["severity"] == 3.0
    assert str(first[-1].fields["text"]).startswith("SEL 0x")
    assert events(source.collect(time.time_ns())) == []
    ipmi_bmcs.run("sel", "2", "0x13", "0x90", "0x6f", "0x08")
    ipmi_bmcs.run("sel", "2", "0x23", "0x00", "0x6f", "0x01")
    assert [one.tag("code") for one in events(source.collect(time.time_ns()))] == [
        "bus_uncorrectable",
        "watchdog",
    ]
    source.close()
    again = ipmi_start({"n2": address})
    assert events(again.collect(time.time_ns())) == []
    ipmi_bmcs.run("sel", "2", "0x0c", "0x87", "0x6f", "0x00")
    codes = [one.tag("code") for one in events(again.collect(time.time_ns()))]
    assert codes == ["memory_correctable"]
    # ipmitool reads the same log: nothing was cleared, and it says the same of it.
    listing = ipmitool(address, bmc_password, "sel", "elist")
    told, problems = PARSERS["ipmitool-sel"](listing, "n2", time.time_ns())
    assert problems == []
    assert [one.tag("code") for one in told][-4:] == [
        "memory_uncorrectable",
        "bus_uncorrectable",
        "watchdog",
        "memory_correctable",
    ]


def test_entries_that_were_not_handed_over_before_a_crash_come_again(
    ipmi_bmcs: IpmiBmcs,
    ipmi_start: Start,
) -> None:
    source = ipmi_start({"n3": ipmi_bmcs.addresses[2]})
    source.collect(time.time_ns())
    source.collect(time.time_ns())
    ipmi_bmcs.run("sel", "3", "0x0c", "0x87", "0x6f", "0x01")
    assert len(events(source.collect(time.time_ns()))) == 1
    # The head dies here, before anybody took the batch: the cursor on disk is the old one.
    again = ipmi_start({"n3": ipmi_bmcs.addresses[2]})
    assert len(events(again.collect(time.time_ns()))) == 1


def test_a_log_that_somebody_cleared_is_noticed_and_read_from_its_beginning(
    ipmi_bmcs: IpmiBmcs,
    ipmi_start: Start,
    bmc_password: Path,
) -> None:
    address = ipmi_bmcs.addresses[1]
    ipmi_bmcs.run("sel", "2", "0x0c", "0x87", "0x6f", "0x00")
    source = ipmi_start({"n2": address})
    assert events(source.collect(time.time_ns()))
    ipmitool(address, bmc_password, "sel", "clear")
    ipmi_bmcs.run("sel", "2", "0x0c", "0x88", "0x6f", "0x01")
    codes = [one.tag("code") for one in events(source.collect(time.time_ns()))]
    assert codes[0] == "log_cleared"
    assert codes[-1] == "memory_uncorrectable"
    assert events(source.collect(time.time_ns())) == []


def test_the_stand_in_is_a_bmc_in_the_eyes_of_ipmitool(
    bmc_standin: tuple[Bmc, str], bmc_password: Path
) -> None:
    bmc, address = bmc_standin
    bmc.add_log(0x0C, 0x87, 0x6F, b"\x01\xff\xff")
    for suite in ("3", "17"):
        listing = ipmitool(address, bmc_password, "-C", suite, "sdr", "elist")
        told, problems = PARSERS["ipmitool-sdr"](listing, "n1", time.time_ns())
        assert problems == []
        assert len(told) == 35
    assert "Uncorrectable ECC" in ipmitool(address, bmc_password, "sel", "elist")
    assert "6700 Watts" in ipmitool(address, bmc_password, "dcmi", "power", "reading")


@pytest.mark.parametrize("suite", [3, 17])
def test_both_cipher_suites_read_what_ipmitool_reads(
    suite: int, bmc_standin: tuple[Bmc, str], ipmi_start: Start, bmc_password: Path
) -> None:
    bmc, address = bmc_standin
    bmc.suites = (suite,)
    batch = ipmi_start({"n1": address}).collect(time.time_ns())
    assert batch.fault == ""
    listing = ipmitool(address, bmc_password, "-C", str(suite), "sdr", "elist")
    told, _ = PARSERS["ipmitool-sdr"](listing, "n1", time.time_ns())
    mine = values(batch, "n1")
    assert mine.pop("DCMI Power") == 6700.0
    assert mine == pytest.approx(
        {one.tag("sensor"): one.fields["value"] for one in told if "value" in one.fields}, abs=0.01
    )


def test_a_bmc_without_a_suite_that_we_know_is_told_so(
    bmc_standin: tuple[Bmc, str], ipmi_start: Start
) -> None:
    bmc, address = bmc_standin
    bmc.suites = ()
    assert "no cipher suite" in ipmi_start({"n1": address}).collect(time.time_ns()).fault


def test_a_bmc_whose_sessions_are_all_taken_is_told_so(
    bmc_standin: tuple[Bmc, str], ipmi_start: Start
) -> None:
    bmc, address = bmc_standin
    bmc.sessions = {number: Taken() for number in range(1, 9)}  # type: ignore[misc]
    assert "no session or no time" in ipmi_start({"n1": address}).collect(time.time_ns()).fault


class Taken:
    """A session of somebody else."""

    session = object()


def test_a_log_of_five_thousand_entries_is_read_in_rounds_and_each_entry_once(
    bmc_standin: tuple[Bmc, str], ipmi_start: Start
) -> None:
    bmc, address = bmc_standin
    source = ipmi_start({"n3": address}, log_entries_per_round=2_000)
    source.collect(time.time_ns())
    for _ in range(5_000):
        bmc.add_log(0x0C, 0x99, 0x6F, b"\x00\xff\xff")
    texts: list[str] = []
    for expected in (2_000, 2_000, 1_000, 0):
        batch = source.collect(time.time_ns())
        assert values(batch, "n3"), "sensors are read in every round"
        check_samples(ipmi, events(batch), node="n3")
        assert len(events(batch)) == expected
        texts += [str(one.fields["text"]) for one in events(batch)]
    assert len(set(texts)) == 5_000


@pytest.mark.skipif(not os.environ.get("TOCSIN_SLOW"), reason="takes a minute (set TOCSIN_SLOW=1)")
@pytest.mark.timeout(300)
def test_a_real_simulators_log_grows_to_five_thousand_entries_beside_its_sensors(
    ipmi_start: Start,
) -> None:
    bmcs = IpmiBmcs(1, offset=30)
    try:
        source = ipmi_start({"n3": bmcs.addresses[0]})
        assert not events(source.collect(time.time_ns()))
        bmcs.fill_log(1, 5_000)
        texts: list[str] = []
        for expected in (*[500] * 10, 0):
            batch = source.collect(time.time_ns())
            assert values(batch, "n3"), "sensors are read in every round"
            assert len(events(batch)) == expected
            texts += [str(one.fields["text"]) for one in events(batch)]
        assert len(set(texts)) == 5_000
    finally:
        bmcs.close()


def test_a_quiet_log_costs_one_call_a_round(
    bmc_standin: tuple[Bmc, str], ipmi_start: Start
) -> None:
    bmc, address = bmc_standin
    source = ipmi_start({"n3": address}, period_seconds=10)
    source.collect(time.time_ns())
    source.collect(time.time_ns())
    before = bmc.calls
    source.collect(time.time_ns())
    # repository, log, chassis, power and the 35 sensors; nothing is asked twice
    assert bmc.calls - before == 39


def test_the_first_contact_with_a_long_log_reads_its_end_only(
    bmc_standin: tuple[Bmc, str], ipmi_start: Start
) -> None:
    bmc, address = bmc_standin
    for _ in range(300):
        bmc.add_log(0x0C, 0x99, 0x6F, b"\x00\xff\xff")
    source = ipmi_start({"fresh": address}, log_backlog=20)
    assert len(events(source.collect(time.time_ns()))) == 20
    assert events(source.collect(time.time_ns())) == []
