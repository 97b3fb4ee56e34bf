"""A GPU falls off the bus, and its node is drained with a reason people understand."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.acceptance.house import TOKEN, XID79, House, post_lines
from tests.testbed.slurm.cluster import Cluster, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def drained(cluster: Cluster, node: str) -> bool:
    return "DRAIN" in cluster.words(node)


def test_xid_79_drains_the_node_and_its_job_goes_on(house: House) -> None:
    slurm = house.cluster
    job = slurm.start_job("n3", "-n1")
    house.kernel_says("n3", XID79)
    wait_for(lambda: drained(slurm, "n3"), "n3 is drained")
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
        assert not drained(slurm, node)


def test_application_xids_never_drain(house: House) -> None:
    for number, code in enumerate((13, 31, 43, 45)):
        line = f"NVRM: Xid (PCI:0000:9b:00): {code}, pid=1{number}, name=python3, text"
        house.kernel_says(f"n{number + 1}", line)
    wait_for(lambda: _events(house) >= {"13", "31", "43", "45"}, "all four lines are read")
    time.sleep(3)  # three judgements
    assert not any(drained(house.cluster, node) for node in house.cluster.nodes)
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
    slurm = house.cluster
    stamp = datetime.now(UTC).isoformat(timespec="microseconds")
    line = f"{stamp} n2 kernel: [  100.0] {XID79}"
    house.kernel_says("n2", line)
    wait_for(lambda: drained(slurm, "n2"), "n2 is drained")
    done = house.tocsin("resume", "n2")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not drained(slurm, "n2"), "n2 is back")
    house.kernel_says("n2", line)
    house.kill("n2")
    house.log_of("n2").write_text(line + "\n")
    house.start_agent("n2")
    house.kill("head")
    house.start_head()
    time.sleep(4)
    assert not drained(slurm, "n2")
    drains = [one for one in house.decisions("n2") if one["action"] == "drain"]
    assert len({one["id"] for one in drains}) == 1


def test_an_operators_drain_is_never_touched(house: House) -> None:
    slurm = house.cluster
    slurm.drain("n1", "swap PSU")
    house.kernel_says("n1", XID79)
    wait_for(lambda: _guard(house, "n1") == "foreign", "the refusal is recorded")
    assert slurm.reason("n1") == "swap PSU"
    refused = house.tocsin("resume", "n1")
    assert refused.returncode == 1
    assert slurm.reason("n1") == "swap PSU"
    assert drained(slurm, "n1")


def test_a_relabelled_drain_is_theirs(house: House) -> None:
    slurm = house.cluster
    house.kernel_says("n4", XID79)
    wait_for(lambda: drained(slurm, "n4"), "n4 is drained")
    slurm.update("n4", reason="mine now")
    time.sleep(5)  # two readings of Slurm
    refused = house.tocsin("resume", "n4")
    assert refused.returncode == 1, refused.stdout
    assert drained(slurm, "n4")
    assert slurm.reason("n4") == "mine now"


def _guard(house: House, node: str) -> str:
    return next((one["guard"] for one in house.decisions(node) if one["guard"]), "")


def test_one_drain_an_hour_and_five_nodes_fail(
    slurm_start: Callable[..., Cluster], nvml_libraries: Path
) -> None:
    cluster = slurm_start(nodes=5)
    # The share of a cluster this small would hold the others back too.
    policy = "drains_per_hour = 1\ndrained_share_max = 1.0\npartition_share_max = 1.0"
    house = House(cluster, nvml_libraries, policy=policy)
    try:
        house.start()
        for node in cluster.nodes:
            house.kernel_says(node, XID79)
        wait_for(lambda: len(_held(house)) == 4, "four refusals")
        time.sleep(3)
        out = [node for node in cluster.nodes if drained(cluster, node)]
        assert len(out) == 1
        held = _held(house)
        assert set(held) == set(cluster.nodes) - set(out)
        assert set(held.values()) == {"cap_hour"}
        alerts = [one for one in house.status()["alerts"] if "refused" in one["title"]]
        assert len(alerts) == 1
        assert "4" in alerts[0]["title"]
    finally:
        house.close()


def _held(house: House) -> dict[str, str]:
    return {one["node"]: one["guard"] for one in house.decisions() if one["action"] == "hold"}


def test_shadow_mode_writes_nothing_to_slurm(build_house: Callable[..., House]) -> None:
    # What is opt-in beside drains is switched on: it writes nothing in shadow either.
    house = build_house(
        mode="shadow",
        policy='reboot.when = "advised"\nsoft.step = "weight"\nsoft.threshold = 0.01\n',
    )
    log = house.cluster.directory / "log" / "slurmctld.log"
    house.start()
    before = log.read_text().count("update_node")
    house.kernel_says("n3", XID79)
    wait_for(lambda: _guard(house, "n3") == "shadow", "the decision is recorded")
    time.sleep(2)
    assert not drained(house.cluster, "n3")
    assert log.read_text().count("update_node") == before
    assert house.decisions("n3")[0]["reason"].startswith("tocsin:x79 gpu4 ")


def test_approve_mode_waits_for_a_person(build_house: Callable[..., House]) -> None:
    house = build_house(mode="approve")
    house.start()
    house.kernel_says("n3", XID79)
    wait_for(lambda: _guard(house, "n3") == "approval", "the drain waits")
    assert not drained(house.cluster, "n3")
    case = house.decisions("n3")[0]["id"]
    done = house.tocsin("approve", case[:6])
    assert done.returncode == 0, done.stderr
    wait_for(lambda: drained(house.cluster, "n3"), "n3 is drained after the yes")


def test_head_killed_at_any_moment_drains_once(house: House) -> None:
    slurm = house.cluster
    controller_log = slurm.directory / "log" / "slurmctld.log"
    before = len(controller_log.read_text())
    house.kernel_says("n2", XID79)
    for pause_seconds in (0.02, 0.3, 0.6, 0.05, 0.9):
        time.sleep(pause_seconds)
        house.kill("head")
        house.start_head()
    wait_for(lambda: drained(slurm, "n2"), "n2 is drained")
    time.sleep(3)
    log = controller_log.read_text()[before:]
    words = "n2 reason set to: tocsin"
    written = [line for line in log.splitlines() if words in line]
    assert len(written) == 1, written
    drains = [one for one in house.decisions("n2") if one["action"] == "drain"]
    assert len({one["id"] for one in drains}) == 1
    assert house.node("n2")["owner"] == "tocsin"


@pytest.mark.parametrize("fault", ["stopped", "hung", "restarted"])
def test_slurmctld_away_delays_the_drain_and_nothing_else(house: House, fault: str) -> None:
    slurm = house.cluster
    pid = int((slurm.directory / "run" / "slurmctld.pid").read_text())
    if fault == "hung":
        os.kill(pid, signal.SIGSTOP)
    else:
        slurm.stop_controller()
    house.kernel_says("n1", XID79)
    if fault == "restarted":
        slurm.start_controller()
    else:
        wait_for(lambda: not house.status()["slurm"]["up"], "the head sees that Slurm is away")
        assert house.alive("head")
        if fault == "hung":
            os.kill(pid, signal.SIGCONT)
        else:
            slurm.start_controller()
    wait_for(lambda: drained(slurm, "n1"), "the drain arrives when it is back")
    assert [node for node in slurm.nodes if drained(slurm, node)] == ["n1"]
    time.sleep(3)
    assert slurm.reason("n1").startswith("tocsin:x79 gpu4 ")


def test_a_killed_agent_is_silence_and_no_fault(house: House) -> None:
    house.kill("n2")
    wait_for(lambda: house.node("n2")["voice"] == "silence", "the silence is told")
    time.sleep(2)
    assert not drained(house.cluster, "n2")
    detail = house.ask("/api/v1/explain/n2")
    assert any("hear" in sentence or "silen" in sentence for sentence in detail["sentences"])


def test_a_fleet_that_falls_silent_is_one_alert_and_no_drain(house: House) -> None:
    for node in house.cluster.nodes:
        house.kill(node)

    def told() -> list[dict[str, object]]:
        return [one for one in house.status()["alerts"] if "silen" in str(one["title"]).lower()]

    wait_for(told, "the alert")
    time.sleep(3)
    assert len(told()) == 1
    assert not any(drained(house.cluster, node) for node in house.cluster.nodes)


def test_a_hung_driver_costs_only_its_own_source(house: House) -> None:
    house.set_gpus("n3", lambda text: text.replace("[system]", "[system]\ndelay.* = D:600000"))

    def hung() -> bool:
        rows = house.ask("/api/v1/nodes/n3")["sources"]
        return any(row["name"] == "nvml" and row["down"] and row["fault"] for row in rows)

    wait_for(hung, "the nvml source says that it hangs")
    house.kernel_says("n3", "EXT4-fs (sda1): mounted filesystem with ordered data mode")
    time.sleep(4)
    assert not drained(house.cluster, "n3")
    sources = {row["name"]: row for row in house.ask("/api/v1/nodes/n3")["sources"]}
    assert sources["host"]["up"]
    assert sources["kernel_log"]["up"]
    house.kernel_says("n3", XID79)
    wait_for(lambda: drained(house.cluster, "n3"), "the kernel log still drains")


def test_readings_are_neither_lost_nor_doubled_while_the_head_is_away(house: House) -> None:
    house.kill("head")
    house.kernel_says("n1", XID79.replace("79,", "31,"))
    time.sleep(3)
    house.start_head()

    def lines() -> int:
        timeline = house.ask("/api/v1/nodes/n1")["timeline"]
        return sum(one["kind"] == "event" and "31" in one["text"] for one in timeline)

    wait_for(lambda: lines() > 0, "the line that came meanwhile")
    time.sleep(2)
    assert lines() == 1


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
    wait_for(lambda: drained(house.cluster, "n3"), "n3 is drained")
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
