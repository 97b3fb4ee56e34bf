"""How often slurmctld is asked, by its own count: on a large cluster each look is dear."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

from daemon.bench import slurm as bench
from daemon.slurm.cli import CliAdapter
from tests.daemon.slurm.pyslurms import real_pyslurm
from tests.testbed.slurm.cluster import Cluster, missing, rest_writes

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

NODES, DRAINS = 50, 20
Costs = dict[str, bench.Cost]


def measured(way: str, pyslurm: Path | None = None) -> Costs:
    """One run of the benchmark. A folder of pytest's own has too long a path for sockets."""
    if missing():
        pytest.skip(missing())
    with tempfile.TemporaryDirectory(prefix="tocsin-slurm-", dir="/tmp") as folder:
        return bench.costs(Path(folder) / "slurm", NODES, DRAINS, way, pyslurm)[1]


@pytest.fixture(scope="module")
def costs() -> Costs:
    return measured("cli")


@pytest.fixture(scope="module")
def costs_by_pyslurm() -> Costs:
    return measured("pyslurm", real_pyslurm())


@pytest.fixture(scope="module")
def costs_by_rest() -> Costs:
    if not rest_writes():
        pytest.skip("the slurmrestd of this Slurm writes no nodes")
    return measured("rest")


def parts(cost: bench.Cost) -> tuple[int, int, int]:
    """Requests for nodes, for partitions, and writes; nothing else may have been asked."""
    looks = cost.asked("REQUEST_NODE_INFO", "REQUEST_NODE_INFO_SINGLE")
    partitions = cost.asked("REQUEST_PARTITION_INFO")
    writes = cost.asked("REQUEST_UPDATE_NODE")
    assert cost.asked() == looks + partitions + writes, cost.requests
    return looks, partitions, writes


@pytest.mark.parametrize("way", ["costs", "costs_by_pyslurm"])
def test_one_group_of_drains_costs_three_requests(request: pytest.FixtureRequest, way: str) -> None:
    """A look, the partitions that come with it, and the write; the log stands for the read-back."""
    found: Costs = request.getfixturevalue(way)
    assert parts(found["drain, one reason"]) == (1, 1, 1)


@pytest.mark.parametrize("way", ["costs", "costs_by_pyslurm", "costs_by_rest"])
def test_a_return_is_one_look_one_write_and_one_read_back(
    request: pytest.FixtureRequest, way: str
) -> None:
    """As well as what slurmrestd drains: no log is read that way."""
    found: Costs = request.getfixturevalue(way)
    assert parts(found["undrain"]) == (2, 2, 1)
    if way == "costs_by_rest":
        assert parts(found["drain, one reason"]) == (2, 2, 1)


@pytest.mark.parametrize("way", ["costs", "costs_by_pyslurm", "costs_by_rest"])
def test_a_reason_a_node_is_one_write_each_and_at_most_three_requests(
    request: pytest.FixtureRequest, way: str
) -> None:
    found: Costs = request.getfixturevalue(way)
    looks, partitions, writes = parts(found["drain, a reason a node"])
    assert writes == DRAINS
    assert 0 < looks == partitions <= DRAINS


def test_a_cycle_reads_nodes_once_and_jobs_once(costs: Costs) -> None:
    assert costs["read nodes"].asked("REQUEST_NODE_INFO") == 1
    assert costs["read jobs"].asked("REQUEST_JOB_INFO") == 1
    assert costs["read nodes"].asked("REQUEST_JOB_INFO", "REQUEST_UPDATE_NODE") == 0


def test_a_loop_of_scontrol_asks_twice_a_node_and_more_often_than_we_do(costs: Costs) -> None:
    loop = costs["scontrol loop, drain"]
    assert bench.node_requests(loop) == 2 * DRAINS
    assert costs["drain, one reason"].asked() < loop.asked()


def asked(slurm: Cluster) -> dict[str, int]:
    """What slurmctld was asked for since it was started, by its own count."""
    told = slurm.run("sdiag").partition("by message type")[2].partition("by user")[0]
    return {kind: int(count) for kind, count in re.findall(r"(\w+)\s*\(\s*\d+\) count:(\d+)", told)}


def more(slurm: Cluster, before: dict[str, int], *kinds: str) -> int:
    after = asked(slurm)
    return sum(after.get(kind, 0) - before.get(kind, 0) for kind in kinds)


NODE_INFO = ("REQUEST_NODE_INFO", "REQUEST_NODE_INFO_SINGLE")


@pytest.mark.parametrize("readable", [True, False])
def test_where_the_log_cannot_be_read_a_drain_is_read_back(
    slurm: Cluster, tmp_path: Path, readable: bool
) -> None:
    log = slurm.directory / "log/slurmctld.log" if readable else tmp_path / "none"
    before = asked(slurm)
    done = CliAdapter(log=log).drain({"n1": "tocsin:x79", "n2": "tocsin:x79"}, lambda node: "").done
    looks = 1 if readable else 2
    assert more(slurm, before, *NODE_INFO) == looks
    assert more(slurm, before, "REQUEST_PARTITION_INFO") == looks
    assert more(slurm, before, "REQUEST_UPDATE_NODE") == 1
    shown = CliAdapter().nodes(["n1", "n2"])
    for name in ("n1", "n2"):
        for field in ("words", "reason", "drained", "partitions", "jobs", "boot_time_ns"):
            assert getattr(done[name], field) == getattr(shown[name], field), (name, field)


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

    for look in LOOKS:
        before = asked(slurm)
        slurm.run(*look)
        assert more(slurm, before, *NODE_INFO) == 1, look
        assert more(slurm, before, "REQUEST_PARTITION_INFO") == 1, look


def test_without_the_testbed_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "TESTBED", Path("/nonexistent/slurm-testbed"))
    with pytest.raises(RuntimeError, match="source tree"):
        bench.costs(tmp_path / "slurm", 4, 2)
    (line,) = bench.bench_slurm(tmp_path / "slurm", 4, 2)
    assert "not measured" in line.name
