"""Whoever receives an alert of a drain learns whose jobs run there."""

from __future__ import annotations

from pathlib import Path

from collectors.slurm.reader import Job
from daemon.alerts.active import Alert, with_owners
from daemon.alerts.tell import AlertOptions, Alerts, Notice
from daemon.policy.decisions import Guard
from tests.daemon.alerts.test_alerting import NOW_NS, alerts_of, decision

JOBS = (
    Job("4711", "4711", "RUNNING", "zoe", ("n3", "n4")),
    Job("4720", "4713_7", "SUSPENDED", "ann", ("n3",)),
    Job("4730", "4730", "COMPLETING", "bob", ("n3",)),
    Job("4740", "4740", "RUNNING", "bob", ("n9",)),
)


def told(*alerts: Alert) -> list[Alert]:
    return with_owners(alerts, JOBS)


def test_a_drain_names_the_jobs_that_run_there_and_their_owners() -> None:
    (alert,) = told(*alerts_of([decision("n3")]))
    assert alert.text.endswith("\njobs there: 4711 of zoe, 4713_7 of ann")
    message = Notice("new", alert, NOW_NS, NOW_NS).message("alpine")
    assert message["jobs"] == [{"job": "4711", "user": "zoe"}, {"job": "4713_7", "user": "ann"}]
    (asked,) = told(*alerts_of([decision("n4", guard=Guard.APPROVAL)]))
    assert asked.jobs == (("4711", "zoe"),), "before the yes is said"


def test_nobody_is_told_of_what_drains_nothing() -> None:
    for guard in (Guard.SHADOW, Guard.FOREIGN, Guard.LOCKED, Guard.CAP_HOUR):
        for alert in told(*alerts_of([decision("n3", guard=guard)])):
            assert alert.jobs == ()
            assert "jobs there" not in alert.text
    (alert,) = told(*alerts_of([decision("n1")]))
    assert alert.jobs == ()


def test_a_job_on_many_nodes_is_named_once_and_a_crowd_in_few_words() -> None:
    (alert,) = told(*alerts_of([decision("n3")]))
    jobs = [Job(str(i), str(i), "RUNNING", f"user{i}", ("n3",)) for i in range(5000)]
    (crowd,) = with_owners([alert], [*jobs, *jobs])
    assert len(crowd.jobs) == 1000
    assert "7 of user7 and 4992 more" in crowd.text
    assert len(crowd.text) < 1000


def test_jobs_that_come_and_go_are_no_news_and_a_restart_keeps_them(tmp_path: Path) -> None:
    file = tmp_path / "alerts.json"
    first = Alerts(AlertOptions(), cluster="alpine", state_file=file)
    plain = alerts_of([decision("n3")])
    assert [one.event for one in first.update(with_owners(plain, JOBS), NOW_NS)] == ["new"]
    assert first.update(plain, NOW_NS + 10**9) == []
    again = Alerts(AlertOptions(), cluster="alpine", state_file=file)
    assert again.update(with_owners(plain, JOBS), NOW_NS + 2 * 10**9) == []
