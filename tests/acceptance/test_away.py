"""Something is away (the head, slurmctld, agents, a driver): a drain is late, and no more."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.acceptance.house import XID79, House
from tests.testbed.slurm.cluster import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def test_head_killed_at_any_moment_drains_once(house: House) -> None:
    slurm = house.cluster
    controller_log = slurm.directory / "log" / "slurmctld.log"
    before = len(controller_log.read_text())
    house.kernel_says("n2", XID79)
    for pause_seconds in (0.02, 0.3, 0.6, 0.05, 0.9):
        time.sleep(pause_seconds)
        house.kill("head")
        house.start_head()
    wait_for(lambda: house.drained("n2"), "n2 is drained")
    house.looks()
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
    wait_for(lambda: house.drained("n1"), "the drain arrives when it is back")
    assert [node for node in slurm.nodes if house.drained(node)] == ["n1"]
    house.looks()
    assert slurm.reason("n1").startswith("tocsin:x79 gpu4 ")


def test_a_killed_agent_is_silence_and_no_fault(house: House) -> None:
    house.kill("n2")
    wait_for(lambda: house.node("n2")["voice"] == "silence", "the silence is told")
    house.looks()
    assert not house.drained("n2")
    detail = house.ask("/api/v1/explain/n2")
    assert any("hear" in sentence or "silen" in sentence for sentence in detail["sentences"])


def test_a_fleet_that_falls_silent_is_one_alert_and_no_drain(house: House) -> None:
    for node in house.cluster.nodes:
        house.kill(node)

    def told() -> list[dict[str, object]]:
        return [one for one in house.status()["alerts"] if "silen" in str(one["title"]).lower()]

    wait_for(told, "the alert")
    house.looks()
    # Silent sources may be told first: "4 nodes without nvml", until the nodes are known to be.
    wait_for(lambda: len(told()) == 1, "one alert of all", seen=told)
    reasons = {node: house.cluster.reason(node) for node in house.cluster.nodes}
    assert not any(house.drained(node) for node in reasons), reasons


def test_a_hung_driver_costs_only_its_own_source(house: House) -> None:
    house.set_gpus("n3", lambda text: text.replace("[system]", "[system]\ndelay.* = D:600000"))

    def hung() -> bool:
        rows = house.ask("/api/v1/nodes/n3")["sources"]
        return any(row["name"] == "nvml" and row["down"] and row["fault"] for row in rows)

    wait_for(hung, "the nvml source says that it hangs")
    house.kernel_says("n3", "EXT4-fs (sda1): mounted filesystem with ordered data mode")
    house.looks()
    assert not house.drained("n3")
    sources = {row["name"]: row for row in house.ask("/api/v1/nodes/n3")["sources"]}
    assert sources["host"]["up"]
    assert sources["kernel_log"]["up"]
    house.kernel_says("n3", XID79)
    wait_for(lambda: house.drained("n3"), "the kernel log still drains")


def test_readings_are_neither_lost_nor_doubled_while_the_head_is_away(house: House) -> None:
    log = house.folder / "n1.log"
    before = log.stat().st_size
    house.kill("head")
    house.kernel_says("n1", XID79.replace("79,", "31,"))
    wait_for(lambda: log.stat().st_size > before, "the agent says that the head is away")
    house.start_head()

    def lines() -> int:
        timeline = house.ask("/api/v1/nodes/n1")["timeline"]
        return sum(one["kind"] == "event" and "31" in one["text"] for one in timeline)

    wait_for(lambda: lines() > 0, "the line that came meanwhile")
    house.looks()
    assert lines() == 1
