"""Probes of idle nodes on a real Slurm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from collectors.command import Runner
from collectors.slurm.nodes import with_jobs
from collectors.slurm.reader import SlurmReader, Tools, jobs_by_node
from collectors.slurm.source import Options
from daemon.drains.ledger import Ledger
from daemon.policy.decisions import Mode
from daemon.proofs.idle import IdleOptions
from daemon.proofs.idle_prober import IdleProber
from daemon.proofs.proof import Probe, ProofOptions
from daemon.slurm.idling import IdleSlurm
from daemon.store.database import Database
from tests.testbed.slurm.cluster import Cluster, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
QUICK = {"true": Probe(command=("/bin/echo", "speed_ratio=1.0"))}
LONG = {"slow": Probe(command=("/bin/sleep", "60"))}


class House:
    """A prober over the real cluster; ``cycle`` is what the head does at each reading."""

    def __init__(self, probes: dict[str, Probe], mode: Mode = Mode.ACT, **changes: object) -> None:
        values = {"every_hours": 24, "idle_seconds": 0, "job_seconds": 60, **changes}
        idle = IdleOptions(**values)  # type: ignore[arg-type]
        proof = ProofOptions(probes=probes)
        self.ledger = Ledger(Database(":memory:"))
        self.tools = IdleSlurm(idle, proof, Options())
        self.prober = IdleProber(self.tools, self.ledger, idle, proof, mode)
        self.reader = SlurmReader(Tools(), Runner())

    def cycle(self) -> None:
        nodes, _ = self.reader.nodes()
        jobs = self.reader.jobs()
        nodes = with_jobs(nodes, jobs_by_node(jobs.values()))
        self.prober.step(nodes, frozenset(), time.time_ns())

    def until(self, condition: Callable[[], object], what: str) -> None:
        def reached() -> object:
            self.cycle()
            return condition()

        wait_for(reached, what)

    def open(self) -> list[str]:
        return [one.node for one in self.prober.records.open()]

    def ends(self) -> list[str]:
        return [one.text for one in self.ledger.audit() if one.verb == "idle_probe_ends"]


@pytest.fixture(autouse=True)
def nothing_left(slurm: Cluster) -> Iterator[None]:
    yield
    slurm.run("scancel", "--user=root")


def test_idle_nodes_are_probed_one_after_the_other_and_left_as_they_were(slurm: Cluster) -> None:
    house = House(QUICK)
    house.until(lambda: len(house.prober.records.told()) == 4, "all four probed")
    assert all(rows[0].key == "" for rows in house.prober.records.told().values())
    house.cycle()
    assert house.open() == []  # none is due again
    for node in ("n1", "n2", "n3", "n4"):
        assert slurm.reason(node) == ""
        assert "DRAIN" not in slurm.words(node)


def test_a_waiting_job_ends_the_probe_and_gets_the_node(slurm: Cluster) -> None:
    house = House(LONG, nodes_at_once=4)
    house.until(lambda: len(house.open()) == 4, "four probes")
    wait_for(lambda: [state for state, _ in slurm.jobs().values()].count("RUNNING") == 4, "running")
    user = slurm.submit("-N2", "--exclusive")
    house.until(lambda: slurm.jobs()[user][0] == "RUNNING", "the user's job")
    assert any("a job waits for it" in text for text in house.ends())
    house.cycle()
    assert house.prober.facts == ()


def test_no_probe_runs_where_somebody_drained_or_a_job_waits(slurm: Cluster) -> None:
    slurm.drain("n1", "ops: swap the PSU")
    held = slurm.submit("-N4", "--exclusive")  # waits: n1 is drained
    house = House(QUICK)
    for _ in range(3):
        house.cycle()
    assert house.open() == []
    slurm.run("scancel", held)
    house.until(lambda: len(house.prober.records.told()) == 3, "the three others probed")
    assert "n1" not in house.prober.records.told()
    assert slurm.reason("n1") == "ops: swap the PSU"


def test_the_job_is_short_of_low_priority_and_dropped_by_slurm_when_it_cannot_start(
    slurm: Cluster,
) -> None:
    house = House(LONG)
    house.until(house.open, "a probe")
    (probe,) = house.prober.records.open()
    job = house.tools.find_job(probe.job_name)
    assert job is not None
    shown = slurm.run("scontrol", "-o", "show", "job", job.id)
    for word in ("TimeLimit=00:01:00", "Nice=10000", "Requeue=0", f"ReqNodeList={probe.node}"):
        assert word in shown, shown
    assert "Deadline=" in shown
    assert "Deadline=N/A" not in shown


def test_shadow_mode_submits_nothing(slurm: Cluster) -> None:
    before = set(slurm.jobs())
    house = House(QUICK, Mode.SHADOW)
    for _ in range(3):
        house.cycle()
    assert set(slurm.jobs()) == before
