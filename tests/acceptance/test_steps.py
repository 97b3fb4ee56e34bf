"""Beside a drain, in a whole head: the reboot that is advised, and the weight of a likely node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from daemon.slurm.soft import parse_shown
from tests.acceptance.house import XID79, House
from tests.testbed.slurm.cluster import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
POLICY = """
reboot.when = "advised"
soft.step = "weight"
soft.threshold = 0.01
soft.share_max = 1.0
# One agent alone is started.
fleet_coverage_min = 0.0
"""


def weight(house: House, node: str) -> int:
    return parse_shown(house.cluster.run("scontrol", "-o", "show", "node", node)).weight


def start(build_house: Callable[..., House]) -> House:
    house = build_house(mode="act", policy=POLICY)
    house.start_head()
    house.start_agent("n3")
    wait_for(lambda: house.status()["agents_heard"] >= 1, "the agent is heard")
    return house


def test_a_drained_node_is_rebooted_stays_drained_and_once_back_is_taken_last(
    build_house: Callable[..., House],
) -> None:
    house = start(build_house)
    house.kernel_says("n3", XID79)
    wait_for(lambda: house.drained("n3"), "n3 is drained")
    case = house.decisions("n3")[0]["id"][:6]

    def told(words: str) -> bool:
        return words in house.tocsin("explain", case).stdout

    wait_for(lambda: told("reboot_done: it is back"), "n3 was rebooted")
    assert house.drained("n3")
    assert weight(house, "n3") == 1, "a drained node needs no soft step"
    done = house.tocsin("resume", "n3")
    assert done.returncode == 0, done.stderr
    # It failed once: by its history it is likelier than others to fail again.
    wait_for(lambda: weight(house, "n3") == 1001, "n3 is taken last")
    assert [weight(house, node) for node in ("n1", "n2", "n4")] == [1, 1, 1]
    assert "soft_weight: weight 1 -> 1001: risk" in house.tocsin("explain", "n3").stdout
    assert not house.drained("n3")
    house.cluster.update("n3", weight="1")
