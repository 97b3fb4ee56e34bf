"""Which job met which fault: what is written down, and what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collectors.slurm.reader import Job
from daemon.cli.jobs import faults
from daemon.jobs.met import Met
from daemon.page.view import plain
from daemon.policy.cost import CostOptions
from daemon.store.database import Database
from models.voices import Fact
from tests.daemon.worlds import START_NS, idle, lost

SECOND_NS = 10**9
HOUR_NS = 3600 * SECOND_NS
NODES = {
    name: replace(idle(name), base="allocated", gpus_allocated=8, jobs=(job,))
    for name, job in (("n1", "7"), ("n2", "7"), ("n3", "8"))
}
JOBS = {
    "7": Job("7", "7", "RUNNING", "ann", ("n1", "n2"), 0, 5 * 3600.0, 8, "batch"),
    "8": Job("8", "8", "RUNNING", "bob", ("n3",), 0, 600.0, 8, "batch"),
}


def make() -> tuple[Met, Database]:
    database = Database(":memory:")
    return Met(database, CostOptions()), database


def of(met: Met) -> list[tuple[str, str, str]]:
    return [(one.job, one.node, one.code) for one in met.newest(0)]


def test_a_fault_is_written_down_once_for_each_job_that_ran_there() -> None:
    met, database = make()
    fault = lost("n2", onset_ns=START_NS)
    for seconds in (5, 10, 15):
        met.observe([fault], JOBS, NODES, START_NS + seconds * SECOND_NS)
    (one,) = met.newest(0)
    assert (one.job, one.user, one.node, one.device, one.code) == ("7", "ann", "n2", "gpu3", "x79")
    assert (one.gpus, one.elapsed_seconds) == (16, 5 * 3600.0 - 5)
    # 16 GPUs: half of the two hours between checkpoints, and half an hour to start anew.
    assert one.at_stake_gpu_hours == pytest.approx(24.0)
    # A head that starts again finds the same fact, and writes nothing twice.
    Met(database, CostOptions()).observe([fault], JOBS, NODES, START_NS + 20 * SECOND_NS)
    assert len(met.newest(0)) == 1
    assert met.newest(0, job="8") == []
    assert met.newest(START_NS + 1) == []


@pytest.mark.parametrize(
    ("fault", "at_ns"),
    [
        (lost("n3", onset_ns=START_NS - HOUR_NS), START_NS),  # before the job began
        (lost("n2", onset_ns=START_NS - 2 * HOUR_NS), START_NS),  # old, found by a new head
        (replace(lost("n2"), severity=1), START_NS),
        (lost("n9"), START_NS),
    ],
)
def test_what_no_job_met_is_not_written(fault: Fact, at_ns: int) -> None:
    met, _ = make()
    met.observe([fault], JOBS, NODES, at_ns)
    assert of(met) == []


def test_people_read_what_was_at_stake_once_a_job() -> None:
    met, _ = make()
    met.observe([lost("n1"), lost("n2"), lost("n3")], JOBS, NODES, START_NS + SECOND_NS)
    assert of(met) == [("7", "n1", "x79"), ("7", "n2", "x79"), ("8", "n3", "x79")]
    text = faults(plain(met.newest(0))).splitlines()
    assert text[0].split()[:3] == ["SINCE", "(UTC)", "JOB"]
    assert "gpu3 fell off the bus (x79)" in text[1]
    # 24 of job 7, and of job 8: its ten minutes, and half an hour, of eight GPUs.
    assert text[-1] == "2 jobs had about 29.3 GPU-hours to lose"
    assert faults([]) == "no job met a fault"
