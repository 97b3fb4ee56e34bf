"""One code on many nodes of one job is one cause, also when the job has ended since."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.slurm.reader import Job
from daemon.past_jobs import JOBS_LIMIT, KEEP_NS, PastJobs
from daemon.policy.cases import LedgerView
from daemon.policy.decide import Situation, decide
from daemon.policy.decisions import Action, Decision, Guard, Mode
from daemon.policy.limits import Limits
from daemon.policy.ran import SLACK_NS, RanOn
from daemon.store.database import Database
from tests.daemon.worlds import GENEROUS, SECOND_NS, START_NS, by_node, cluster, lost

NOW_NS = START_NS + 60 * SECOND_NS


def job(key: str, *numbers: int, elapsed_seconds: float = 3600.0) -> Job:
    nodes = tuple(f"n{i}" for i in numbers)
    return Job(key, key, "RUNNING", "ann", nodes, elapsed_seconds=elapsed_seconds)


def past(*jobs: Job, at_ns: int = NOW_NS, database: Database | None = None) -> PastJobs:
    made = PastJobs(database or Database(":memory:"), Limits().common_cause_job_nodes)
    if jobs:
        made.observe({one.id: one for one in jobs}, at_ns)
    return made


def judged(
    ran: RanOn, sick: range, limits: Limits = GENEROUS, onset_ns: int = START_NS
) -> dict[str, Decision]:
    nodes = cluster(40)
    facts = tuple(lost(f"n{i}", onset_ns=onset_ns) for i in sick)
    situation = Situation(nodes, 1.0, facts, coverage=dict.fromkeys(nodes, 1.0), ran=ran)
    return by_node(decide(situation, limits, LedgerView(), Mode.ACT, NOW_NS))


@pytest.mark.parametrize("count", [4, 7, 10])
def test_one_code_on_several_nodes_of_one_job_is_one_cause(count: int) -> None:
    ran = past(job("12", *range(1, 17))).on
    found = judged(ran, range(1, count + 1))
    assert {one.guard for one in found.values()} == {Guard.COMMON_CAUSE}
    assert f"{count} of the 16 nodes of job 12 show x79" in found["n1"].guard_text


def test_a_few_nodes_of_one_job_may_be_faults_of_their_own() -> None:
    ran = past(job("12", *range(1, 17))).on
    assert {one.action for one in judged(ran, range(1, 4)).values()} == {Action.DRAIN}


def test_nodes_of_different_jobs_have_no_job_in_common() -> None:
    ran = past(job("12", 1, 2, 3, 11, 12), job("13", 4, 5, 6, 14, 15)).on
    assert {one.action for one in judged(ran, range(1, 7)).values()} == {Action.DRAIN}


def test_what_began_long_before_or_after_the_job_is_not_its_doing() -> None:
    ran = past(job("12", *range(1, 17), elapsed_seconds=10.0)).on
    before = judged(ran, range(1, 8), onset_ns=NOW_NS - SLACK_NS - 20 * SECOND_NS)
    assert {one.action for one in before.values()} == {Action.DRAIN}
    ended = past(job("12", *range(1, 17)), at_ns=NOW_NS - 3600 * SECOND_NS).on
    after = judged(ended, range(1, 8))
    assert {one.action for one in after.values()} == {Action.DRAIN}


def test_it_stays_one_cause_after_the_job_ended_and_after_a_restart(tmp_path: Path) -> None:
    database = Database(tmp_path / "head.db")
    made = past(job("12", *range(1, 17)), database=database)
    for minute in range(1, 5):
        made.observe({}, NOW_NS + minute * 60 * SECOND_NS)
    assert {one.guard for one in judged(made.on, range(1, 8)).values()} == {Guard.COMMON_CAUSE}
    again = past(database=database)
    assert {one.guard for one in judged(again.on, range(1, 8)).values()} == {Guard.COMMON_CAUSE}


def test_a_job_that_is_requeued_on_other_nodes_leaves_its_first_run_known() -> None:
    made = past(job("12", *range(1, 9)))
    later_ns = NOW_NS + 900 * SECOND_NS
    made.observe({"12": job("12", *range(21, 29), elapsed_seconds=60.0)}, later_ns)
    assert {one.guard for one in judged(made.on, range(1, 8)).values()} == {Guard.COMMON_CAUSE}
    moved = judged(made.on, range(21, 28), onset_ns=START_NS)
    assert {one.action for one in moved.values()} == {Action.DRAIN}


def test_memory_is_bounded_and_small_jobs_take_none(tmp_path: Path) -> None:
    database = Database(tmp_path / "head.db")
    made = past(database=database)
    made.observe({"1": job("1", 1, 2, 3)}, NOW_NS)
    assert made.on == {}
    many = {str(i): job(str(i), 1, 2, 3, 4) for i in range(JOBS_LIMIT + 50)}
    made.observe(many, NOW_NS)
    assert len(made.on["n1"]) == JOBS_LIMIT
    assert len(past(database=database).on["n1"]) == JOBS_LIMIT
    made.observe({}, NOW_NS + KEEP_NS + SECOND_NS)
    assert made.on == {}
    assert past(database=database).on == {}


def test_a_job_that_goes_on_is_written_once_a_minute(tmp_path: Path) -> None:
    database = Database(tmp_path / "head.db")
    made = past(job("12", 1, 2, 3, 4), database=database)
    made.observe({"12": job("12", 1, 2, 3, 4)}, NOW_NS + 15 * SECOND_NS)
    assert database.query("SELECT seen_ns FROM ran")[0]["seen_ns"] == NOW_NS
    made.observe({"12": job("12", 1, 2, 3, 4)}, NOW_NS + 75 * SECOND_NS)
    assert database.query("SELECT seen_ns FROM ran")[0]["seen_ns"] == NOW_NS + 75 * SECOND_NS
