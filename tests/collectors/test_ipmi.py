"""The ``ipmi`` source against OpenIPMI's simulator, with ipmitool as the judge."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collectors import ipmi
from collectors.parsers import PARSERS
from collectors.sample import Batch, Context, Sample, SourceUnavailable
from daemon.bench.bmc_standin import Bmc, serve
from tests.collectors.contract import NODE, SourceContract, check_samples
from tests.testbed.bmc.bmcs import DcmiBmc, IpmiBmcs, missing

Start = Callable[..., ipmi.Ipmi]


def options(folder: Path, lines: dict[str, str], secret: Path, **more: object) -> ipmi.Options:
    """Options for the BMCs in ``lines``: node -> address."""
    file = folder / "bmcs"
    file.write_text("".join(f"{node} {address}\n" for node, address in lines.items()))
    given: dict[str, object] = {
        "file": str(file),
        "user": "admin",
        "password_file": str(secret),
        "period_seconds": 60,
        "timeout_seconds": 0.6,
        "tries": 2,
    }
    return ipmi.Options(**{**given, **more})


@pytest.fixture
def start(tmp_path: Path, bmc_password: Path) -> Iterator[Start]:
    """Makes sources: ``start({"n1": address}, tries=1)``; they are closed in the end."""
    made: list[ipmi.Ipmi] = []

    def make(lines: dict[str, str], **more: object) -> ipmi.Ipmi:
        state = tmp_path / "state"
        state.mkdir(exist_ok=True)
        source = ipmi.make(options(tmp_path, lines, bmc_password, **more), Context("head", state))
        made.append(source)
        return source

    yield make
    for source in made:
        source.close()


def values(batch: Batch, node: str) -> dict[str, float]:
    return {
        one.tag("sensor"): float(one.fields["value"])
        for one in batch.samples
        if one.measurement == "bmc" and one.tag("node") == node and "value" in one.fields
    }


def sensor(batch: Batch, node: str, name: str) -> dict[str, object]:
    found = [one for one in batch.samples if one.tag("node") == node and one.tag("sensor") == name]
    assert len(found) == 1
    return dict(found[0].fields)


def events(batch: Batch, node: str = "") -> list[Sample]:
    return [
        one
        for one in batch.samples
        if one.measurement == "event" and (not node or one.tag("node") == node)
    ]


def heard(batch: Batch) -> dict[str, dict[str, object]]:
    return {
        one.tag("node"): dict(one.fields)
        for one in batch.samples
        if one.measurement == "source" and one.tag("source") == "bmc"
    }


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def ipmitool(address: str, secret: Path, *arguments: str) -> str:
    host, _, port = address.partition(":")
    login = ["-I", "lanplus", "-H", host, "-p", port, "-U", "admin", "-f", str(secret)]
    if "-C" not in arguments:
        login += ["-C", "3"]
    answer = subprocess.run(
        ["ipmitool", *login, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return answer.stdout


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
    start: Start,
    bmc_password: Path,
) -> None:
    address = ipmi_bmcs.addresses[0]
    batch = start({"n1": address}).collect(time.time_ns())
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
    start: Start,
) -> None:
    source = start({"n1": ipmi_bmcs.addresses[0]})
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


def test_power_by_dcmi_is_read_from_a_bmc_of_another_make(start: Start) -> None:
    python = "/usr/bin/python3"  # the Debian package serves the system's Python
    known = subprocess.run([python, "-c", "import pyghmi"], capture_output=True, check=False)
    if known.returncode:
        pytest.skip("not installed: python3-pyghmi (tests/testbed/bmc/packages.txt)")
    bmc = DcmiBmc(python, watts=6543)
    try:
        source = start({"n1": bmc.address})
        assert values(source.collect(time.time_ns()), "n1") == {"DCMI Power": 6543.0}
        bmc.file.write_text("inactive")
        batch = source.collect(time.time_ns())
        assert sensor(batch, "n1", "DCMI Power") == {"present": 0.0}
    finally:
        bmc.close()


# ---- the log -----------------------------------------------------------------------------------


def test_log_entries_come_once_also_after_a_restart(
    ipmi_bmcs: IpmiBmcs,
    start: Start,
    bmc_password: Path,
) -> None:
    address = ipmi_bmcs.addresses[1]
    ipmi_bmcs.run("sel", "2", "0x0c", "0x87", "0x6f", "0x01", "0x03", "0x05")
    source = start({"n2": address})
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
    again = start({"n2": address})
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
    start: Start,
) -> None:
    source = start({"n3": ipmi_bmcs.addresses[2]})
    source.collect(time.time_ns())
    source.collect(time.time_ns())
    ipmi_bmcs.run("sel", "3", "0x0c", "0x87", "0x6f", "0x01")
    assert len(events(source.collect(time.time_ns()))) == 1
    # The head dies here, before anybody took the batch: the cursor on disk is the old one.
    again = start({"n3": ipmi_bmcs.addresses[2]})
    assert len(events(again.collect(time.time_ns()))) == 1


def test_a_log_that_somebody_cleared_is_noticed_and_read_from_its_beginning(
    ipmi_bmcs: IpmiBmcs,
    start: Start,
    bmc_password: Path,
) -> None:
    address = ipmi_bmcs.addresses[1]
    ipmi_bmcs.run("sel", "2", "0x0c", "0x87", "0x6f", "0x00")
    source = start({"n2": address})
    assert events(source.collect(time.time_ns()))
    ipmitool(address, bmc_password, "sel", "clear")
    ipmi_bmcs.run("sel", "2", "0x0c", "0x88", "0x6f", "0x01")
    codes = [one.tag("code") for one in events(source.collect(time.time_ns()))]
    assert codes[0] == "log_cleared"
    assert codes[-1] == "memory_uncorrectable"
    assert events(source.collect(time.time_ns())) == []


@pytest.fixture
def standin() -> Iterator[tuple[Bmc, str]]:
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


def test_the_stand_in_is_a_bmc_in_the_eyes_of_ipmitool(
    standin: tuple[Bmc, str], bmc_password: Path
) -> None:
    bmc, address = standin
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
    suite: int, standin: tuple[Bmc, str], start: Start, bmc_password: Path
) -> None:
    bmc, address = standin
    bmc.suites = (suite,)
    batch = start({"n1": address}).collect(time.time_ns())
    assert batch.fault == ""
    listing = ipmitool(address, bmc_password, "-C", str(suite), "sdr", "elist")
    told, _ = PARSERS["ipmitool-sdr"](listing, "n1", time.time_ns())
    mine = values(batch, "n1")
    assert mine.pop("DCMI Power") == 6700.0
    assert mine == pytest.approx(
        {one.tag("sensor"): one.fields["value"] for one in told if "value" in one.fields}, abs=0.01
    )


def test_a_bmc_without_a_suite_that_we_know_is_told_so(
    standin: tuple[Bmc, str], start: Start
) -> None:
    bmc, address = standin
    bmc.suites = ()
    assert "no cipher suite" in start({"n1": address}).collect(time.time_ns()).fault


def test_a_bmc_whose_sessions_are_all_taken_is_told_so(
    standin: tuple[Bmc, str], start: Start
) -> None:
    bmc, address = standin
    bmc.sessions = {number: Taken() for number in range(1, 9)}  # type: ignore[misc]
    assert "no session or no time" in start({"n1": address}).collect(time.time_ns()).fault


class Taken:
    """A session of somebody else."""

    session = object()


def test_a_log_of_five_thousand_entries_is_read_in_rounds_and_each_entry_once(
    standin: tuple[Bmc, str], start: Start
) -> None:
    bmc, address = standin
    source = start({"n3": address}, log_entries_per_round=2_000)
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


def test_a_quiet_log_costs_one_call_a_round(standin: tuple[Bmc, str], start: Start) -> None:
    bmc, address = standin
    source = start({"n3": address}, period_seconds=10)
    source.collect(time.time_ns())
    source.collect(time.time_ns())
    before = bmc.calls
    source.collect(time.time_ns())
    # repository, log, chassis, power and the 35 sensors; nothing is asked twice
    assert bmc.calls - before == 39


def test_the_first_contact_with_a_long_log_reads_its_end_only(
    standin: tuple[Bmc, str], start: Start
) -> None:
    bmc, address = standin
    for _ in range(300):
        bmc.add_log(0x0C, 0x99, 0x6F, b"\x00\xff\xff")
    source = start({"fresh": address}, log_backlog=20)
    assert len(events(source.collect(time.time_ns()))) == 20
    assert events(source.collect(time.time_ns())) == []


# ---- what goes wrong -----------------------------------------------------------------------------


def test_each_fault_has_its_own_words_and_costs_only_itself(
    ipmi_bmcs: IpmiBmcs,
    start: Start,
    tmp_path: Path,
    bmc_password: Path,
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("not-it\n")
    wrong.chmod(0o600)
    good, other = ipmi_bmcs.addresses[0], ipmi_bmcs.addresses[1]
    host = good.split(":")[0]
    (tmp_path / "bmcs-faults").write_text(
        f"good {good}\n"
        f"password {other} wrong\n"
        f"user {other} nobody\n"
        f"nofile {other} nofile\n"
        f"refused {host}:7999\n"
        f"noname no-such-bmc.invalid\n"
        f"silent {ipmi_bmcs.silent(1)}\n"
        f"halfdead {ipmi_bmcs.relay(2, '--mute-after', '120')}\n"
        f"slow {ipmi_bmcs.relay(3, '--delay', '0.045')}\n"
        f"hopeless {ipmi_bmcs.relay(3, '--delay', '60')}\n"
    )
    source = start(
        {},
        file=str(tmp_path / "bmcs-faults"),
        groups={
            "wrong": {"user": "admin", "password_file": str(wrong)},
            "nobody": {"user": "nobody", "password_file": str(bmc_password)},
            "nofile": {"user": "admin", "password_file": str(tmp_path / "absent")},
        },
        deadline_seconds=6.0,
        bmc_deadline_seconds=4.0,
        log_backlog=5,
    )
    begin = time.monotonic()
    batch = source.collect(time.time_ns())
    assert time.monotonic() - begin < 7.0
    assert batch.up
    assert len(values(batch, "good")) == 32
    told = heard(batch)
    assert told["good"]["up"] == 1.0
    words = {node: str(fields.get("fault", "")) for node, fields in told.items()}
    assert words["password"].startswith("the BMC refuses the password")
    assert words["user"].startswith("the BMC does not know the user")
    assert "absent cannot be read" in words["nofile"]
    assert words["refused"].startswith("the BMC does not answer: connection refused")
    assert words["noname"].startswith("the BMC's name no-such-bmc.invalid is not known")
    assert words["silent"] == "the BMC does not answer"
    assert words["hopeless"] == "the BMC does not answer"
    assert words["halfdead"].startswith("the BMC answered and then fell silent after")
    assert words["slow"].startswith("the BMC is slow")
    assert "9 of 10 BMCs not read" in batch.fault
    assert "not-it" not in repr(batch)
    assert "secret" not in repr(batch)


def test_a_slow_bmc_is_read_on_from_where_its_time_ran_out(
    ipmi_bmcs: IpmiBmcs,
    start: Start,
) -> None:
    address = ipmi_bmcs.relay(3, "--delay", "0.016")
    source = start({"slow": address}, deadline_seconds=8.0, bmc_deadline_seconds=0.5, sel=False)
    rounds: list[set[str]] = []
    for _ in range(20):
        rounds.append(set(values(source.collect(time.time_ns()), "slow")))
        if len(set().union(*rounds)) == 32:
            break
    assert len(set().union(*rounds)) == 32
    assert any(0 < len(names) < 32 for names in rounds), "what was read in time is kept"


def test_a_new_password_is_tried_at_once_although_the_old_one_was_refused(
    ipmi_bmcs: IpmiBmcs,
    start: Start,
    tmp_path: Path,
) -> None:
    file = tmp_path / "changing"
    file.write_text("old\n")
    file.chmod(0o600)
    source = start({"n1": ipmi_bmcs.addresses[0]}, password_file=str(file))
    assert "refuses the password" in source.collect(time.time_ns()).fault
    assert "next try in" in str(heard(source.collect(time.time_ns()))["n1"]["fault"])
    file.write_text("secret\n")
    assert len(values(source.collect(time.time_ns()), "n1")) == 32


def test_a_password_that_everybody_may_read_is_refused(
    ipmi_bmcs: IpmiBmcs,
    start: Start,
    tmp_path: Path,
) -> None:
    file = tmp_path / "open"
    file.write_text("secret\n")
    file.chmod(0o644)
    source = start({"n1": ipmi_bmcs.addresses[0]}, password_file=str(file))
    assert "can be read by everybody" in source.collect(time.time_ns()).fault


def test_sessions_are_closed_or_kept_and_never_pile_up(
    ipmi_bmcs: IpmiBmcs,
    start: Start,
    bmc_password: Path,
) -> None:
    address = ipmi_bmcs.addresses[0]  # it gives one user four sessions
    closing = start({"n1": address}, period_seconds=60)
    for _ in range(12):
        assert closing.collect(time.time_ns()).fault == ""
    keeping = start({"n1": address}, period_seconds=10)
    descriptors = 0
    for turn in range(12):
        assert keeping.collect(time.time_ns()).fault == ""
        if turn == 1:
            descriptors = open_files()
    assert open_files() == descriptors
    keeping.close()
    for _ in range(5):
        assert "Device ID" in ipmitool(address, bmc_password, "mc", "info")


def test_a_bmc_that_ran_out_of_time_holds_no_session_of_ours(
    standin: tuple[Bmc, str], start: Start
) -> None:
    bmc, address = standin
    slow = bmc.command

    def command(netfn: int, number: int, data: bytes) -> tuple[int, bytes]:
        time.sleep(0.03)
        return slow(netfn, number, data)

    bmc.command = command  # type: ignore[method-assign]
    source = start({"n1": address}, bmc_deadline_seconds=0.4, timeout_seconds=1.0)
    for _ in range(12):
        assert "slow" in source.collect(time.time_ns()).fault
        if values(source.collect(time.time_ns()), "n1"):
            break
    source.close()
    time.sleep(0.2)
    assert bmc.sessions == {}


def test_a_session_that_the_bmc_has_forgotten_costs_one_round_at_most(
    standin: tuple[Bmc, str], start: Start
) -> None:
    bmc, address = standin
    source = start({"n1": address}, period_seconds=10.0, timeout_seconds=0.05)
    assert source.collect(time.time_ns()).fault == ""
    bmc.sessions.clear()
    source.collect(time.time_ns())
    assert source.collect(time.time_ns()).fault == ""


@pytest.mark.parametrize(
    "text",
    ["n1\n", "n1 a b c\n", "n[1-3] host\n", "n1 host nogroup\n"],
)
def test_a_faulty_list_of_bmcs_is_told_with_its_line(
    text: str, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "list").write_text("# comment\n" + text)
    with pytest.raises(SourceUnavailable, match="line 2"):
        start({}, file=str(tmp_path / "list")).collect(time.time_ns())


def test_a_rule_names_the_bmc_of_every_node_of_a_host_list() -> None:
    from collectors.bmc_targets import Target, targets

    made = targets(ipmi.Options(nodes="gpu[01-02],login", address="{node}-ipmi.example:6230"))
    assert made == [
        Target("gpu01", "gpu01-ipmi.example", 6230),
        Target("gpu02", "gpu02-ipmi.example", 6230),
        Target("login", "login-ipmi.example", 6230),
    ]


# ---- many ----------------------------------------------------------------------------------------


def test_a_hundred_bmcs_with_dead_slow_and_locked_ones_keep_the_cadence_of_the_healthy(
    start: Start,
    tmp_path: Path,
    bmc_password: Path,
) -> None:
    reason = missing("ipmi_sim")
    if reason:
        pytest.skip(reason)
    wrong = tmp_path / "wrong"
    wrong.write_text("not-it\n")
    wrong.chmod(0o600)
    bmcs = IpmiBmcs(85, offset=1)
    try:
        lines = [f"ok{place} {address}" for place, address in enumerate(bmcs.addresses[:82])]
        lines += [f"locked{place} {address} wrong"
                  for place, address in enumerate(bmcs.addresses[82:])]  # fmt: skip
        silent = bmcs.silent(1)
        lines += [f"dead{place} {silent}" for place in range(10)]
        slow = bmcs.relay(2, "--delay", "60")
        lines += [f"slow{place} {slow}" for place in range(5)]
        (tmp_path / "hundred").write_text("\n".join(lines) + "\n")
        source = start(
            {},
            file=str(tmp_path / "hundred"),
            groups={"wrong": {"user": "admin", "password_file": str(wrong)}},
            period_seconds=2.0,
            deadline_seconds=5.0,
            timeout_seconds=0.7,
            tries=3,
            pause_max_seconds=4.0,
        )
        healthy = {f"ok{place}" for place in range(82)}
        source.collect(time.time_ns())
        threads = threading.active_count()
        took: list[float] = []
        count: Counter[str] = Counter()
        while len(took) < 12 and min(count[node] for node in healthy) < 4:
            begin = time.monotonic()
            batch = source.collect(time.time_ns())
            took.append(time.monotonic() - begin)
            readings = [one for one in batch.samples if one.measurement == "bmc"]
            check_samples(ipmi, readings, "")
            count.update({one.tag("node") for one in readings})
        assert set(count) == healthy
        assert min(count.values()) >= 4, f"read too seldom: {count.most_common()[-5:]}"
        # A dead BMC takes 3.3 s to be given up: no round of the healthy has to last as long.
        assert min(took) < 2.5, f"rounds took {took}"
        assert "18 of 100 BMCs not read" in batch.fault
        assert threading.active_count() == threads
        assert open_files() < 400
    finally:
        bmcs.close()
