"""A GPU falls off the bus, and its node is drained with a reason people understand."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from tests.acceptance.house import TOKEN, XID79, House, post_lines
from tests.testbed.slurm.cluster import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def test_xid_79_drains_the_node_and_its_job_goes_on(house: House) -> None:
    slurm = house.cluster
    job = slurm.start_job("n3", "-n1")
    house.kernel_says("n3", XID79)
    wait_for(lambda: house.drained("n3"), "n3 is drained")
    reason = slurm.reason("n3")
    case = house.decisions("n3")[0]["id"]
    assert reason.startswith(f"tocsin:x79 gpu4 {case[:4]}")
    assert f"tocsin explain {case[:4]}" in reason
    assert len(reason) <= 200
    assert reason.isascii()
    shown = slurm.run("sinfo", "-R", "-h", "-o", "%20E %N")
    assert "tocsin:x79 gpu4" in shown
    assert slurm.jobs()[job][0] == "RUNNING"
    other = slurm.submit("-N3", "-n3")
    wait_for(lambda: slurm.jobs()[other][0] == "RUNNING", "a new job goes elsewhere")
    assert slurm.jobs()[other][1] == "n[1-2,4]"
    for node in ("n1", "n2", "n4"):
        assert not house.drained(node)


def test_application_xids_never_drain(house: House) -> None:
    for number, code in enumerate((13, 31, 43, 45)):
        line = f"NVRM: Xid (PCI:0000:9b:00): {code}, pid=1{number}, name=python3, text"
        house.kernel_says(f"n{number + 1}", line)
    wait_for(lambda: _events(house) >= {"13", "31", "43", "45"}, "all four lines are read")
    house.looks()
    assert not any(house.drained(node) for node in house.cluster.nodes)
    assert not [one for one in house.decisions() if one["action"] in ("drain", "hold")]


def _events(house: House) -> set[str]:
    found = set()
    for node in house.cluster.nodes:
        for entry in house.ask(f"/api/v1/nodes/{node}")["timeline"]:
            words = entry["text"].split()
            if entry["kind"] == "event":
                found.update(word.rstrip(",:") for word in words)
    return found


def test_the_same_line_acts_once(house: House) -> None:
    stamp = datetime.now(UTC).isoformat(timespec="microseconds")
    line = f"{stamp} n2 kernel: [  100.0] {XID79}"
    house.kernel_says("n2", line)
    wait_for(lambda: house.drained("n2"), "n2 is drained")
    done = house.tocsin("resume", "n2")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not house.drained("n2"), "n2 is back")
    house.kernel_says("n2", line)
    house.kill("n2")
    # What comes last in the log tells that the line before it was read and sent once more.
    house.log_of("n2").write_text(f"{line}\n{XID79.replace('79,', '31,')}\n")
    house.start_agent("n2")
    house.kill("head")
    house.start_head()
    wait_for(lambda: "31" in _events(house), "the agent has read its log again")
    house.looks()
    assert not house.drained("n2")
    drains = [one for one in house.decisions("n2") if one["action"] == "drain"]
    assert len({one["id"] for one in drains}) == 1


def test_an_operators_drain_is_never_touched(house: House) -> None:
    slurm = house.cluster
    slurm.drain("n1", "swap PSU")
    house.kernel_says("n1", XID79)
    wait_for(lambda: house.guard("n1") == "foreign", "the refusal is recorded")
    assert slurm.reason("n1") == "swap PSU"
    refused = house.tocsin("resume", "n1")
    assert refused.returncode == 1
    assert slurm.reason("n1") == "swap PSU"
    assert house.drained("n1")


def test_a_relabelled_drain_is_theirs(house: House) -> None:
    slurm = house.cluster
    house.kernel_says("n4", XID79)
    wait_for(lambda: house.drained("n4"), "n4 is drained")
    slurm.update("n4", reason="mine now")
    house.looks()
    refused = house.tocsin("resume", "n4")
    assert refused.returncode == 1, refused.stdout
    assert house.drained("n4")
    assert slurm.reason("n4") == "mine now"


def test_the_gateway_refuses_clearly_and_keeps_the_good_lines(house: House) -> None:
    now_ns = time.time_ns()
    good = f"host,node=n1 load_1m=0.25 {now_ns}".encode()
    assert post_lines(house.port, "unknown-token-of-nobody", good)[0] == 401
    status, answer = post_lines(house.port, TOKEN + "n1", good + b"\nhost,node=n1 load_1m=\n")
    assert status == 400
    assert b"line" in answer
    status, answer = post_lines(house.port, TOKEN + "n2", good)
    assert status in (400, 403)
    assert b"n1" in answer
    assert post_lines(house.port, TOKEN + "n1", b"x" * (40 << 20))[0] == 413


def test_explain_says_why_and_why_not(house: House) -> None:
    house.kernel_says("n3", XID79)
    wait_for(lambda: house.drained("n3"), "n3 is drained")
    case = house.decisions("n3")[0]["id"][:4]
    told = house.tocsin("explain", case)
    assert told.returncode == 0, told.stderr
    for word in ("xid", "79", "gpu4", "guards", "timeline", "NVRM: Xid"):
        assert word in told.stdout, told.stdout
    ticket = house.tocsin("explain", case, "--ticket")
    assert ticket.returncode == 0, ticket.stderr
    words = ("Node n3, gpu4", "serial 1", "UUID GPU-", "VBIOS 96", "NVRM: Xid", "row_remap_failed")
    for word in (*words, "Step now: reboot the node", "nvidia-bug-report.sh"):
        assert word in ticket.stdout, ticket.stdout
    assert house.tocsin("explain", "n1", "--ticket").returncode == 1
    well = house.tocsin("explain", "n1")
    assert well.returncode == 0
    assert "not drained" in well.stdout
    assert house.tocsin("explain", "no-such-node").returncode == 1
    house.kill("head")
    house.start_head()
    assert house.tocsin("explain", case).stdout.splitlines()[0] == told.stdout.splitlines()[0]
