"""Idle jobs are found from what was read, and from nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collectors.sample import Sample, sample
from collectors.slurm.reader import Job
from daemon.alerts.active import Alert
from daemon.jobs.held import held
from daemon.jobs.idle import IdleJobs
from daemon.jobs.options import JobOptions
from daemon.latest import Latest
from tests.daemon.worlds import START_NS, idle

SECOND_NS = 10**9
MINUTE_NS = 60 * SECOND_NS
NODES = {
    name: replace(idle(name), base="allocated", gpus_allocated=8, jobs=(job,))
    for name, job in (("n1", "7"), ("n2", "7"), ("n3", "8"))
}
JOBS = [
    Job("7", "7", "RUNNING", "ann", ("n1", "n2"), partition="batch", gpus_per_node=8),
    Job("8", "8_1", "RUNNING", "bob", ("n3",), partition="batch"),
]


class World:
    """Readings each minute; ``use`` by node, None: not read."""

    def __init__(self, **options: object) -> None:
        self.idle = IdleJobs(JobOptions(**{"idle_severity": 1, **options}))  # type: ignore[arg-type]
        self.latest = Latest()
        self.now_ns = START_NS

    def run(
        self, minutes: int, use: dict[str, float | None], jobs: list[Job] = JOBS
    ) -> list[Alert]:
        found: list[Alert] = []
        for _ in range(minutes):
            self.now_ns += MINUTE_NS
            for node, ratio in use.items():
                self.latest.observe(self.gpus(node, ratio), self.now_ns)
            found = self.idle.look(jobs, NODES, self.latest, self.now_ns)
        return found

    def gpus(self, node: str, ratio: float | None) -> list[Sample]:
        if ratio is None:
            return []
        return [
            sample("gpu", self.now_ns, {"utilization_ratio": ratio if gpu == 7 else 0.0},
                   node=node, gpu=str(gpu))
            for gpu in range(8)
        ]  # fmt: skip


def test_a_job_that_idles_for_long_is_told_with_its_owner_and_a_busy_one_is_not() -> None:
    world = World()
    use: dict[str, float | None] = {"n1": 0.0, "n2": 0.0, "n3": 0.9}
    assert world.run(119, use) == []
    (alert,) = world.run(3, use)
    assert alert.title == "job 7 holds 16 GPUs that do nothing"
    assert alert.text == "job 7 of ann (batch): 16 GPUs on n1, n2 idle for 2.0 h"
    assert alert.jobs == (("7", "ann"),)
    assert alert.nodes == ("n1", "n2")
    (both,) = world.run(130, {"n1": 0.0, "n2": 0.0, "n3": 0.0})
    assert both.title == "2 jobs hold 24 GPUs that do nothing"
    assert "job 8_1 of bob" in both.text
    assert world.run(1, {"n1": 0.0, "n2": 0.3, "n3": 0.9}) == []


def test_one_gpu_of_one_node_that_works_is_enough() -> None:
    assert World().run(300, {"n1": 0.0, "n2": 0.02, "n3": 0.9}) == []


def test_what_is_not_read_is_not_idle_and_a_pause_begins_the_count_anew() -> None:
    world = World()
    assert world.run(300, {"n1": 0.0, "n2": None, "n3": 0.9}) == []
    both: dict[str, float | None] = {"n1": 0.0, "n2": 0.0}
    world.run(100, both)
    world.run(10, {})
    assert world.run(119, both) == []
    assert len(world.run(3, both)) == 1
    world.run(3, {})  # a short pause of the readings
    assert len(world.run(1, both)) == 1


@pytest.mark.parametrize("options", [{"idle_hours": 0}, {"idle_partitions": {"batch"}}])
def test_where_jobs_may_idle_nobody_is_told(options: dict[str, object]) -> None:
    world = World(**options)
    assert world.run(300, {"n1": 0.0, "n2": 0.0, "n3": 0.0}) == []
    assert set(world.idle.found) == {"7", "8_1"}


def test_a_job_that_ended_is_forgotten() -> None:
    world = World()
    world.run(130, {"n1": 0.0, "n2": 0.0, "n3": 0.0})
    assert world.run(1, {"n1": 0.0, "n2": 0.0, "n3": 0.9}, []) == []
    assert world.idle.found == {}


def test_what_a_job_holds_as_far_as_slurm_tells() -> None:
    shared = {**NODES, "n3": replace(NODES["n3"], gpus_allocated=6, jobs=("8", "9"))}
    jobs = [*JOBS, Job("9", "9", "RUNNING", "cy", ("n3",), gpus_per_node=2)]
    cpu = Job("10", "10", "RUNNING", "dee", ("n4",))
    found = held([*jobs, cpu], {**shared, "n4": idle("n4")})
    assert set(found) == {"7", "8_1", "9"}  # one without GPUs is none of ours
    assert (found["7"].total, found["7"].whole, found["7"].alone) == (16, True, {"n1", "n2"})
    assert (found["9"].total, found["9"].whole, found["9"].alone) == (2, True, frozenset())
    assert (found["8_1"].total, found["8_1"].whole) == (0, False)
