"""A log file with the lines of many hosts: another host's fault is never taken for ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.kernel import log as kernel_log
from collectors.kernel.hosts import Hosts
from collectors.kernel.lines import parse
from collectors.kernel.log import KernelLog, Options
from collectors.sample import Batch, Context

NOW_NS = 1_796_007_000_000_000_000
XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid=1, name=a, words\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.log"
    path.write_text("")
    return path


def start(log: Path, node: str = "gpu07", machine: str = "gpu07", **more: object) -> KernelLog:
    root = log.parent / "root"
    (root / "proc/sys/kernel").mkdir(parents=True, exist_ok=True)
    (root / "proc/sys/kernel/hostname").write_text(machine + "\n")
    state = log.parent / "state"
    state.mkdir(exist_ok=True)
    context = Context(node, state, root, lambda: NOW_NS)
    return kernel_log.make(Options(path=str(log), **more), context)


def syslog(host: str, code: int) -> str:
    return f"2026-11-30T02:41:49+00:00 {host} kernel: [  100.5] {XID.format(code)}"


def codes(batch: Batch) -> list[str]:
    return [one.tag("code") for one in batch.samples]


def test_lines_of_another_host_are_no_faults_of_this_node_and_that_is_said(log: Path) -> None:
    log.write_text(syslog("gpu08", 79) + syslog("gpu07", 48) + syslog("gpu09", 119))
    batch = start(log).collect(NOW_NS)
    assert codes(batch) == ["48"]
    assert batch.up
    assert "gpu08, gpu09" in batch.fault
    assert "host_names" in batch.fault


@pytest.mark.parametrize(
    "front",
    [
        "Nov 30 02:41:49 gpu08 kernel: [  100.5] ",
        "<4>1 2026-11-30T02:41:51.500000Z gpu08 kernel - - - ",
        "Nov 30 02:41:49 gpu08 ",
        "[  100.5] gpu08 kernel: ",
    ],
)
def test_each_way_in_which_a_line_names_its_host_is_known(log: Path, front: str) -> None:
    log.write_text(front + XID.format(79))
    assert codes(start(log).collect(NOW_NS)) == []


def test_the_journal_of_another_host_is_not_ours(log: Path) -> None:
    entry = '{{"MESSAGE": "{}", "_TRANSPORT": "kernel", "_HOSTNAME": "{}"}}\n'
    text = XID.format(79).strip()
    log.write_text(entry.format(text, "gpu08") + entry.format(text.replace("79", "48"), "gpu07"))
    assert codes(start(log).collect(NOW_NS)) == ["48"]


def test_in_a_shared_log_a_line_that_names_nobody_is_nobodys(log: Path) -> None:
    log.write_text(syslog("localhost", 79) + "2026-11-30T02:41:49+00:00 gpu08 sshd[1]: hello\n")
    assert codes(start(log, trust_mixed_log=True).collect(NOW_NS)) == []


def test_in_a_log_of_our_own_a_line_from_before_the_host_had_its_name_counts(log: Path) -> None:
    log.write_text(syslog("localhost", 79) + XID.format(48) + syslog("gpu07.cluster.example", 119))
    batch = start(log).collect(NOW_NS)
    assert codes(batch) == ["79", "48", "119"]
    assert not batch.fault


def test_that_a_log_is_shared_is_known_after_a_restart(log: Path) -> None:
    log.write_text(syslog("gpu08", 79))
    first = start(log)
    assert codes(first.collect(NOW_NS)) == []
    first.close()
    with open(log, "a") as file:
        file.write(syslog("localhost", 79))
    assert codes(start(log).collect(NOW_NS)) == []


def test_nodename_host_name_and_configured_names_are_all_ours(log: Path) -> None:
    log.write_text(syslog("node-a", 48) + syslog("machine-a", 79) + syslog("10.0.0.7", 119))
    source = start(log, "node-a", "machine-a", host_names={"10.0.0.7"})
    assert codes(source.collect(NOW_NS)) == ["48", "79", "119"]


def test_hosts_of_one_name_in_two_domains_and_addresses_are_told_apart() -> None:
    hosts = Hosts(["gpu07.a.example", "10.0.0.7"])
    assert hosts.ours("GPU07")
    assert not hosts.ours("gpu07.b.example")
    assert not hosts.ours("10.0.0.8")
    assert not hosts.ours("10")


def test_a_log_of_ten_thousand_hosts_costs_bounded_words() -> None:
    hosts = Hosts(["a"])
    for number in range(10_000):
        hosts.look(f"gpu{number}")
    assert len(hosts.words) < 500


def test_parse_says_where_a_text_holds_the_lines_of_several_hosts() -> None:
    samples, problems = parse(syslog("gpu08", 79) + syslog("gpu09", 48), "gpu07", NOW_NS)
    assert [one.tag("code") for one in samples] == ["79", "48"]
    assert [one.problem for one in problems] == [
        "lines of several hosts (gpu08, gpu09): all are told as of gpu07"
    ]
