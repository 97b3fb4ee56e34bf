"""Leaf switches from Slurm's topology, and repeat offenders."""

from __future__ import annotations

import pytest

from daemon.policy.cases import LedgerView
from daemon.slurm.cli import CliAdapter
from daemon.slurm.topology import leaf_switches, of_topology
from tests.daemon.policy.test_policy import NOW_NS, judge, lost
from tests.testbed.slurm.cluster import Cluster

SHOWN = (
    "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-4]\n"
    "SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[5-8]\n"
    "SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=leaf[1-2]\n"
)
FILE = (
    "# racks\nSwitchName=leaf1 Nodes=n[1-4]\nSwitchName=spine Switches=leaf[1-2]\n"
    "BlockName=b1 Nodes=n[1-2]\nSwitchName=bad Nodes=n[1-\n"
)


def test_leaf_switches_of_both_forms() -> None:
    four = ["n1", "n2", "n3", "n4"]
    assert leaf_switches(SHOWN) == {"leaf leaf1": four, "leaf leaf2": ["n5", "n6", "n7", "n8"]}
    assert leaf_switches(FILE) == {"leaf leaf1": four, "block b1": ["n1", "n2"]}
    assert leaf_switches("garbage \x00 = Nodes=") == {}


def test_nodes_know_their_leaf_and_block() -> None:
    nodes = [f"n{i}" for i in range(1, 9)]
    groups = of_topology(SHOWN + "BlockName=b1 Nodes=n[1-2],gone\n", nodes)
    assert groups["n1"] == ("block b1", "leaf leaf1")
    assert groups["n8"] == ("leaf leaf2",)


def test_a_group_that_is_the_whole_cluster_or_one_node_is_none() -> None:
    assert of_topology("SwitchName=s Level=0 Nodes=n[1-2]", ["n1", "n2"]) == {}
    assert of_topology("SwitchName=s Level=0 Nodes=n1", ["n1", "n2"]) == {}


def test_a_repeat_offender_is_advised_to_be_replaced() -> None:
    ledger = LedgerView(drains_of={"n1": (NOW_NS - 3, NOW_NS - 2, NOW_NS - 1)})
    assert "drained 3 times in 30 days" in judge(lost("n1"), ledger=ledger)[0].advice
    assert "RMA" not in judge(lost("n1"))[0].advice


@pytest.mark.slurm
def test_the_topology_of_a_real_controller(slurm_start) -> None:  # type: ignore[no-untyped-def]
    cluster: Cluster = slurm_start(nodes=2)
    assert leaf_switches(CliAdapter().topology()) == {}
    (cluster.directory / "topology.conf").write_text(
        "SwitchName=leaf1 Nodes=n1\nSwitchName=leaf2 Nodes=n2\nSwitchName=top Switches=leaf[1-2]\n"
    )
    with cluster.conf.open("a") as conf:
        conf.write("TopologyPlugin=topology/tree\n")
    cluster.stop_controller()
    cluster.start_controller()
    assert leaf_switches(CliAdapter().topology()) == {
        "leaf leaf1": ["n1"],
        "leaf leaf2": ["n2"],
    }
