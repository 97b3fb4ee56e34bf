"""How often slurmctld is asked, by its own count: on a large cluster each look is dear."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.bench import slurm as bench
from tests.testbed.slurm.cluster import Cluster, missing

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

NODES, DRAINS = 50, 20
Costs = dict[str, bench.Cost]


@pytest.fixture(scope="module")
def costs() -> Iterator[Costs]:
    """One run of the benchmark. A folder of pytest's own has too long a path for sockets."""
    if missing():
        pytest.skip(missing())
    with tempfile.TemporaryDirectory(prefix="tocsin-slurm-", dir="/tmp") as folder:
        yield bench.costs(Path(folder) / "slurm", NODES, DRAINS)


@pytest.mark.parametrize("step", ["drain, one reason", "undrain"])
def test_one_group_is_one_look_one_write_and_one_read_back(costs: Costs, step: str) -> None:
    assert costs[step].asked("REQUEST_UPDATE_NODE") == 1
    assert costs[step].asked("REQUEST_NODE_INFO", "REQUEST_NODE_INFO_SINGLE") == 2
    # scontrol itself asks for partitions with each look; nothing else is asked.
    assert costs[step].asked() == 3 + costs[step].asked("REQUEST_PARTITION_INFO") <= 5


def test_a_reason_a_node_is_one_write_each_and_at_most_three_requests(costs: Costs) -> None:
    cost = costs["drain, a reason a node"]
    assert cost.asked("REQUEST_UPDATE_NODE") == DRAINS
    assert DRAINS < bench.node_requests(cost) <= bench.REQUESTS_PER_GROUP_MOST * DRAINS


def test_a_cycle_reads_nodes_once_and_jobs_once(costs: Costs) -> None:
    assert costs["read nodes"].asked("REQUEST_NODE_INFO") == 1
    assert costs["read jobs"].asked("REQUEST_JOB_INFO") == 1
    assert costs["read nodes"].asked("REQUEST_JOB_INFO", "REQUEST_UPDATE_NODE") == 0


def test_a_loop_of_scontrol_asks_twice_a_node_and_more_often_than_we_do(costs: Costs) -> None:
    loop = costs["scontrol loop, drain"]
    assert bench.node_requests(loop) == 2 * DRAINS
    assert costs["drain, one reason"].asked() < loop.asked()


LOOKS = (
    ("scontrol", "show", "node", "n1"),
    ("scontrol", "--oneliner", "show", "node", "n1"),
    ("scontrol", "--all", "--local", "--oneliner", "show", "nodes"),
    ("sinfo", "-h", "-N", "-n", "n1", "-o", "%N %T %E"),
    ("sinfo", "-h", "-O", "NodeHost,StateLong,Reason", "-n", "n1"),
    ("sinfo", "-h", "-N", "-o", "%N %T %E"),
    ("sinfo", "-R"),
    ("sinfo", "--json"),
    ("sinfo", "--json", "-n", "n1"),
)


def test_none_of_slurms_commands_reads_nodes_without_the_partitions(slurm: Cluster) -> None:
    """Where one does, a lone group need no longer cost five requests."""

    def asked() -> dict[str, int]:
        told = slurm.run("sdiag").partition("by message type")[2].partition("by user")[0]
        return {
            kind: int(count) for kind, count in re.findall(r"(\w+)\s*\(\s*\d+\) count:(\d+)", told)
        }

    def more(before: dict[str, int], *kinds: str) -> int:
        after = asked()
        return sum(after.get(kind, 0) - before.get(kind, 0) for kind in kinds)

    for look in LOOKS:
        before = asked()
        slurm.run(*look)
        assert more(before, "REQUEST_NODE_INFO", "REQUEST_NODE_INFO_SINGLE") == 1, look
        assert more(before, "REQUEST_PARTITION_INFO") == 1, look


def test_without_the_testbed_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "TESTBED", Path("/nonexistent/slurm-testbed"))
    with pytest.raises(RuntimeError, match="source tree"):
        bench.costs(tmp_path / "slurm", 4, 2)
    (line,) = bench.bench_slurm(tmp_path / "slurm", 4, 2)
    assert "not measured" in line.name
