"""How much tocsin may do: shadow, approve, and the caps of a cluster in act mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.house import XID79, House
from tests.testbed.slurm.cluster import Cluster, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


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
        house.looks()
        out = [node for node in cluster.nodes if house.drained(node)]
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
    wait_for(lambda: house.guard("n3") == "shadow", "the decision is recorded")
    house.looks()
    assert not house.drained("n3")
    assert log.read_text().count("update_node") == before
    assert house.decisions("n3")[0]["reason"].startswith("tocsin:x79 gpu4 ")


def test_approve_mode_waits_for_a_person(build_house: Callable[..., House]) -> None:
    house = build_house(mode="approve")
    house.start()
    house.kernel_says("n3", XID79)
    wait_for(lambda: house.guard("n3") == "approval", "the drain waits")
    assert not house.drained("n3")
    case = house.decisions("n3")[0]["id"]
    done = house.tocsin("approve", case[:6])
    assert done.returncode == 0, done.stderr
    wait_for(lambda: house.drained("n3"), "n3 is drained after the yes")
