"""BMCs that are slow, silent, locked or lying: each has its own words and costs only itself."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.bmc import ipmi
from collectors.sample import SourceUnavailable
from daemon.bench.bmc_standin import Bmc
from tests.collectors.contract import check_samples
from tests.collectors.ipmi_help import (
    heard,
    ipmitool,
    open_files,
    values,
)
from tests.testbed.bmc.bmcs import IpmiBmcs, missing

Start = Callable[..., ipmi.Ipmi]


# ---- what goes wrong -----------------------------------------------------------------------------


def test_each_fault_has_its_own_words_and_costs_only_itself(
    ipmi_bmcs: IpmiBmcs,
    ipmi_start: Start,
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
        f"halfdead {ipmi_bmcs.relay(2, '--mute-after', '40')}\n"
        f"slow {ipmi_bmcs.relay(3, '--delay', '0.045')}\n"
        f"hopeless {ipmi_bmcs.relay(3, '--delay', '60')}\n"
    )
    source = ipmi_start(
        {},
        file=str(tmp_path / "bmcs-faults"),
        groups={
            "wrong": {"user": "admin", "password_file": str(wrong)},
            "nobody": {"user": "nobody", "password_file": str(bmc_password)},
            "nofile": {"user": "admin", "password_file": str(tmp_path / "absent")},
        },
        deadline_seconds=4.5,
        bmc_deadline_seconds=3.0,
        log_backlog=5,
    )
    begin = time.monotonic()
    batch = source.collect(time.time_ns())
    assert time.monotonic() - begin < 50
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
    ipmi_start: Start,
) -> None:
    address = ipmi_bmcs.relay(3, "--delay", "0.016")
    source = ipmi_start(
        {"slow": address}, deadline_seconds=8.0, bmc_deadline_seconds=0.5, sel=False
    )
    rounds: list[set[str]] = []
    end = time.monotonic() + 90.0
    while time.monotonic() < end:
        rounds.append(set(values(source.collect(time.time_ns()), "slow")))
        if len(set().union(*rounds)) == 32:
            break
    assert len(set().union(*rounds)) == 32
    assert any(0 < len(names) < 32 for names in rounds), "what was read in time is kept"


def test_a_new_password_is_tried_at_once_although_the_old_one_was_refused(
    ipmi_bmcs: IpmiBmcs,
    ipmi_start: Start,
    tmp_path: Path,
) -> None:
    file = tmp_path / "changing"
    file.write_text("old\n")
    file.chmod(0o600)
    source = ipmi_start({"n1": ipmi_bmcs.addresses[0]}, password_file=str(file))
    assert "refuses the password" in source.collect(time.time_ns()).fault
    assert "next try in" in str(heard(source.collect(time.time_ns()))["n1"]["fault"])
    file.write_text("secret\n")
    assert len(values(source.collect(time.time_ns()), "n1")) == 32


def test_a_password_that_everybody_may_read_is_refused(
    ipmi_bmcs: IpmiBmcs,
    ipmi_start: Start,
    tmp_path: Path,
) -> None:
    file = tmp_path / "open"
    file.write_text("secret\n")
    file.chmod(0o644)
    source = ipmi_start({"n1": ipmi_bmcs.addresses[0]}, password_file=str(file))
    assert "can be read by everybody" in source.collect(time.time_ns()).fault


def test_sessions_are_closed_or_kept_and_never_pile_up(
    ipmi_bmcs: IpmiBmcs,
    ipmi_start: Start,
    bmc_password: Path,
) -> None:
    address = ipmi_bmcs.addresses[0]  # it gives one user four sessions
    closing = ipmi_start({"n1": address}, period_seconds=60)
    for _ in range(12):
        assert closing.collect(time.time_ns()).fault == ""
    keeping = ipmi_start({"n1": address}, period_seconds=10)
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
    bmc_standin: tuple[Bmc, str], ipmi_start: Start
) -> None:
    bmc, address = bmc_standin
    slow = bmc.command

    def command(netfn: int, number: int, data: bytes) -> tuple[int, bytes]:
        time.sleep(0.03)
        return slow(netfn, number, data)

    bmc.command = command  # type: ignore[method-assign]
    source = ipmi_start({"n1": address}, bmc_deadline_seconds=0.4, timeout_seconds=1.0)
    for _ in range(12):
        assert "slow" in source.collect(time.time_ns()).fault
        if values(source.collect(time.time_ns()), "n1"):
            break
    source.close()
    time.sleep(0.2)
    assert bmc.sessions == {}


def test_a_session_that_the_bmc_has_forgotten_costs_one_round_at_most(
    bmc_standin: tuple[Bmc, str], ipmi_start: Start
) -> None:
    bmc, address = bmc_standin
    source = ipmi_start({"n1": address}, period_seconds=10.0, timeout_seconds=0.05)
    assert source.collect(time.time_ns()).fault == ""
    bmc.sessions.clear()
    source.collect(time.time_ns())
    assert source.collect(time.time_ns()).fault == ""


@pytest.mark.parametrize(
    "text",
    ["n1\n", "n1 a b c\n", "n[1-3] host\n", "n1 host nogroup\n"],
)
def test_a_faulty_list_of_bmcs_is_told_with_its_line(
    text: str, ipmi_start: Start, tmp_path: Path
) -> None:
    (tmp_path / "list").write_text("# comment\n" + text)
    with pytest.raises(SourceUnavailable, match="line 2"):
        ipmi_start({}, file=str(tmp_path / "list")).collect(time.time_ns())


def test_a_rule_names_the_bmc_of_every_node_of_a_host_list() -> None:
    from collectors.bmc.targets import Target, targets

    made = targets(ipmi.Options(nodes="gpu[01-02],login", address="{node}-ipmi.example:6230"))
    assert made == [
        Target("gpu01", "gpu01-ipmi.example", 6230),
        Target("gpu02", "gpu02-ipmi.example", 6230),
        Target("login", "login-ipmi.example", 6230),
    ]


# ---- many ----------------------------------------------------------------------------------------


def test_a_hundred_bmcs_with_dead_slow_and_locked_ones_keep_the_cadence_of_the_healthy(
    ipmi_start: Start,
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
        source = ipmi_start(
            {},
            file=str(tmp_path / "hundred"),
            groups={"wrong": {"user": "admin", "password_file": str(wrong)}},
            period_seconds=2.0,
            deadline_seconds=8.0,
            timeout_seconds=2.0,
            tries=2,
            pause_max_seconds=4.0,
        )
        healthy = {f"ok{place}" for place in range(82)}
        source.collect(time.time_ns())
        threads = threading.active_count()
        took: list[float] = []
        count: Counter[str] = Counter()
        end = time.monotonic() + 120.0  # a busy machine may need more rounds
        while time.monotonic() < end and min(count[node] for node in healthy) < 3:
            begin = time.monotonic()
            batch = source.collect(time.time_ns())
            took.append(time.monotonic() - begin)
            readings = [one for one in batch.samples if one.measurement == "bmc"]
            check_samples(ipmi, readings, "")
            count.update({one.tag("node") for one in readings})
        assert set(count) == healthy
        assert min(count.values()) >= 3, f"read too seldom: {count.most_common()[-5:]}"
        # A dead BMC takes 5 s to be given up: no round of the healthy has to last as long.
        assert min(took) < 4.0, f"rounds took {took}"
        assert "18 of 100 BMCs not read" in batch.fault
        assert threading.active_count() == threads
        assert open_files() < 400
    finally:
        bmcs.close()
