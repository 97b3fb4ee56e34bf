"""Idle nodes are probed by the whole head over a real Slurm, and a slow one is told to people."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.house import House
from tests.testbed.slurm.cluster import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

SPEED = "case $SLURMD_NODENAME in n3) echo speed_ratio=0.5;; *) echo speed_ratio=1.0;; esac"
POLICY = f"""
idle.every_hours = 0.001
idle.idle_seconds = 0
idle.nodes_at_once = 4
idle.per_hour = 1000
proof.probes.speed.command = ["/bin/sh", "-c", {json.dumps(SPEED)}]
"""


def told(house: House, node: str) -> list[dict[str, Any]]:
    return [one for one in house.decisions(node) if one["rule"] == "idle_probe"]


def test_a_node_slower_than_its_peers_is_told_and_stays_in_service(
    build_house: Callable[..., House],
) -> None:
    house = build_house(policy=POLICY)
    house.start_head()
    wait_for(lambda: told(house, "n3"), "people are told of n3", 90)
    (only,) = told(house, "n3")
    assert only["action"] == "alert"
    assert "speed_ratio 0.5, its 3 peers have 1" in only["reason"]
    assert not any(told(house, node) for node in ("n1", "n2", "n4"))
    assert not house.drained("n3")
    assert house.cluster.reason("n3") == ""
    said = house.tocsin("explain", "n3")
    assert "idle probes in a row" in said.stdout, said.stdout + said.stderr


def test_in_shadow_mode_no_job_is_ever_submitted(build_house: Callable[..., House]) -> None:
    house = build_house(mode="shadow", policy=POLICY)
    before = set(house.cluster.jobs())
    house.start_head()
    wait_for(lambda: house.status()["uptime_seconds"] > 8, "some cycles")
    assert set(house.cluster.jobs()) == before
