"""Nodes that are not the usual: long names, dynamic, cloud, planned, in a federation's clothes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from collectors.slurm.source import Options
from daemon.policy.cases import State
from daemon.policy.decisions import Action, Guard
from daemon.slurm.cli import CliAdapter
from tests.daemon.worlds import House, lost
from tests.testbed.slurm.cluster import Cluster, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

LONG = "gpu-rack07-chassis03-node-017"
# Words behind the number: Slurm 22.05 takes no brackets in the midst of a name.
MIDST = ("g01-ib", "g02-ib", "g10-ib", "g2.b")
EXTRA = f"""
MaxNodeCount=20
TreeWidth=65533
FederationParameters=fed_display
PrivateData=cloud
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=INFINITE
NodeName={LONG} NodeAddr=127.0.0.1 Port=@PORT@ SocketsPerBoard=2 CoresPerSocket=32 RealMemory=1000000
NodeName=cloud[1-2] NodeAddr=127.0.0.1 Port=9 SocketsPerBoard=2 CoresPerSocket=32 RealMemory=1000000 State=CLOUD
PartitionName=every Nodes=ALL State=UP
"""  # noqa: E501


@pytest.fixture(scope="module")
def odd() -> Iterator[Cluster]:
    """A cluster of two usual nodes and of all kinds of others."""
    from tests.ports import free_port

    midst = "".join(
        f"NodeName={name} NodeAddr=127.0.0.1 Port={free_port()} SocketsPerBoard=2 "
        "CoresPerSocket=32 RealMemory=1000000\n"
        for name in MIDST
    )
    before, rest = EXTRA.replace("@PORT@", str(free_port())).split("PartitionName", 1)
    cluster = Cluster(2, f"{before}{midst}PartitionName{rest}")
    try:
        own = (LONG, *MIDST)
        for name in own:
            cluster.node("start-node", name)
        wait_for(lambda: all(cluster.words(name) == {"IDLE"} for name in own), f"{own} are idle")
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def house(odd: Cluster, monkeypatch: pytest.MonkeyPatch) -> House:
    """Policy, ledger and drains over it."""
    monkeypatch.setenv("SLURM_CONF", str(odd.conf))
    return House(CliAdapter(Options(conf=odd.conf)), now_ns=time.time_ns)


def dynamic(odd: Cluster, name: str) -> None:
    """A node that registers itself (slurmd -Z) and stands in no slurm.conf."""
    (odd.directory / "spool" / name).mkdir(parents=True, exist_ok=True)
    conf = "RealMemory=1000 Sockets=2 CoresPerSocket=2 ThreadsPerCore=1"
    odd.run("slurmd", "-f", str(odd.conf), "-Z", "-N", name, "--conf", conf)
    wait_for(lambda: name in odd.show() and "IDLE" in odd.words(name), f"{name} is idle")


def guards(house: House) -> dict[str, Guard | None]:
    return {one.node: one.guard for one in house.cycle()}


def test_a_name_of_over_twenty_characters_is_drained_found_and_returned(
    odd: Cluster, house: House
) -> None:
    assert len(LONG) > 20
    house.facts = [lost(LONG, onset_ns=time.time_ns())]
    assert guards(house) == {LONG: None}
    assert odd.words(LONG) == {"IDLE", "DRAIN"}
    assert guards(house) == {LONG: Guard.OURS}
    house.drains.resume(LONG, "ann", time.time_ns())
    wait_for(lambda: odd.words(LONG) == {"IDLE"}, "it is back")


def test_numbers_in_the_midst_of_names_are_drained_together_and_returned(
    odd: Cluster, house: House
) -> None:
    adapter = house.adapter
    assert set(adapter.nodes(MIDST)) == set(MIDST)
    outcome = adapter.drain(dict.fromkeys(MIDST, "tocsin:x79 gpu3 9f2c"), lambda node: node.reason)
    assert set(outcome.done) == set(MIDST)
    assert all(odd.reason(name) == "tocsin:x79 gpu3 9f2c" for name in MIDST)
    assert set(adapter.undrain(MIDST, lambda node: "").done) == set(MIDST)
    wait_for(lambda: all(odd.words(name) == {"IDLE"} for name in MIDST), "they are back")


def test_nodes_that_are_powered_off_in_the_cloud_are_read_and_never_drained(
    odd: Cluster, house: House
) -> None:
    nodes = house.adapter.nodes()
    assert {"CLOUD", "POWERED_DOWN"} <= nodes["cloud1"].flags
    assert not nodes["cloud1"].registered
    house.facts = [lost("cloud1", onset_ns=time.time_ns())]
    begin = odd.log_size()
    assert guards(house) == {"cloud1": Guard.NOT_REGISTERED}
    assert odd.updates_since(begin) == []


def test_a_dynamic_node_is_drained_and_when_it_is_deleted_no_longer_held(
    odd: Cluster, house: House
) -> None:
    dynamic(odd, "dyn1")
    assert "DYNAMIC_NORM" in house.adapter.nodes()["dyn1"].flags
    house.facts = [lost("dyn1", onset_ns=time.time_ns())]
    decision = house.cycle()[0]
    assert decision.action is Action.DRAIN
    odd.run("scontrol", "delete", "nodename=dyn1")
    house.facts = []
    house.cycle()
    case = house.ledger.find(decision.id)
    assert case.state is State.FOREIGN
    assert "no longer knows the node" in house.ledger.audit(subject=case.id)[0].text
    # The name comes back: nothing of the old drain is written over the new node.
    odd.script("stop-node", "-d", str(odd.directory), "dyn1")
    dynamic(odd, "dyn1")
    house.facts = [lost("dyn1", onset_ns=case.onset_ns)]
    assert guards(house) == {"dyn1": Guard.SPENT}
    assert odd.words("dyn1") == {"IDLE", "DYNAMIC_NORM"}


def test_a_fact_of_a_node_that_slurm_does_not_have_is_held(house: House) -> None:
    house.facts = [lost("dyn9", onset_ns=time.time_ns())]
    assert guards(house) == {"dyn9": Guard.UNKNOWN_NODE}


def test_a_node_that_the_scheduler_plans_for_a_job_is_drained_like_an_idle_one(
    odd: Cluster, house: House
) -> None:
    job = odd.start_job("n1", "-t", "5")
    large = odd.submit("-N2", "--exclusive", "-w", "n1,n2", "-t", "5")
    wait_for(lambda: "PLANNED" in odd.words("n2"), "n2 is planned")
    assert "PLANNED" in house.adapter.nodes()["n2"].flags
    house.facts = [lost("n2", onset_ns=time.time_ns())]
    assert guards(house) == {"n2": None}
    assert "DRAIN" in odd.words("n2")
    odd.run("scancel", job, large)
    house.drains.resume("n2", "ann", time.time_ns())


@pytest.mark.parametrize("read", ["nodes", "jobs"])
def test_only_this_cluster_of_a_federation_is_asked_for(odd: Cluster, read: str) -> None:
    from collectors.command import Result, Runner
    from collectors.slurm.reader import SlurmReader, Tools

    asked: list[tuple[str, ...]] = []

    class Listens(Runner):
        def run(self, argv, **more) -> Result:  # type: ignore[no-untyped-def, override]
            asked.append(tuple(argv))
            return super().run(argv, **more)

    reader = SlurmReader(Tools(conf=odd.conf), Listens())
    act: Callable[[], object] = reader.nodes if read == "nodes" else reader.jobs
    act()
    assert asked
    assert all("--local" in argv for argv in asked)
