"""Judging: thresholds come before what is judged, and figures say what they should."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from models.evaluation.alarms import alarms, node_days, threshold_at
from models.evaluation.evaluate import Costs, Evaluation, decide_gate, evaluate
from models.evaluation.events import Record, Target, from_truth
from models.evaluation.report import html
from models.simulate import Truth
from models.telemetry import Telemetry

HOUR_NS = 3_600_000_000_000
DAY_NS = 24 * HOUR_NS


def recorded(scores: Sequence[Sequence[float]], targets: list[Target]) -> Record:
    """One row of scores an hour; nodes n0, n1 ..."""
    matrix = np.array(scores, float)
    steps, nodes = matrix.shape
    return Record(
        np.arange(1, steps + 1) * HOUR_NS,
        [f"n{i}" for i in range(nodes)],
        {"x": matrix},
        np.ones((steps, nodes), bool),
        targets,
    )


def failure(node: str, hour: float) -> Target:
    onset_ns = int(hour * HOUR_NS)
    return Target(node, onset_ns, onset_ns + 6 * HOUR_NS, "heat", True)


def test_alarm_before_a_failure_is_right_and_has_its_lead() -> None:
    whole = recorded([[0.0], [0.9], [0.9], [0.0]], [failure("n0", 5.5)])
    (alarm,) = alarms(whole, whole.scores["x"], 0.5, 0, 4, DAY_NS)
    assert alarm.target == whole.targets[0]
    assert alarm.lead_ns == int(3.5 * HOUR_NS)


def test_alarm_without_a_failure_within_the_horizon_is_false_and_counts_once() -> None:
    whole = recorded([[0.9]] * 30, [failure("n0", 60)])
    found = alarms(whole, whole.scores["x"], 0.5, 0, 30, DAY_NS)
    assert [one.target for one in found] == [None, None]
    assert found[1].time_ns - found[0].time_ns == DAY_NS


def test_node_out_of_service_gives_no_alarm() -> None:
    whole = recorded([[0.9]] * 4, [])
    whole.service[:] = False
    assert alarms(whole, whole.scores["x"], 0.5, 0, 4, DAY_NS) == []
    assert node_days(whole, 0, 4) == 0


@pytest.mark.parametrize(("budget", "false"), [(0.0, 0), (1000 / 40, 1), (3000 / 40, 3)])
def test_threshold_keeps_the_budget(budget: float, false: int) -> None:
    # 40 nodes for a day; node i is once loud, at score i
    scores = np.zeros((24, 40))
    scores[5, :] = np.arange(40) / 40
    whole = recorded(scores.tolist(), [])
    threshold = threshold_at(whole, whole.scores["x"], budget, 0, 24, DAY_NS)
    assert len(alarms(whole, whole.scores["x"], threshold, 0, 24, DAY_NS)) == false


def test_scorer_that_says_the_same_of_all_gets_no_threshold() -> None:
    whole = recorded([[0.3] * 10] * 24, [])
    assert threshold_at(whole, whole.scores["x"], 1.0, 0, 24, DAY_NS) == float("inf")


def test_failure_of_a_node_that_has_failed_already_is_not_another_one() -> None:
    truths = [
        Truth("n1", "gpu0", "gpu", "heat", HOUR_NS, 2 * HOUR_NS, 9 * HOUR_NS, True),
        Truth("n1", "", "node", "host", 3 * HOUR_NS, 0, 9 * HOUR_NS, False),
        Truth("n1", "", "node", "host", 10 * HOUR_NS, 0, 0, False),
    ]
    assert [one.onset_ns for one in from_truth(truths)] == [HOUR_NS, 10 * HOUR_NS]


def test_costs_weigh_jobs_saved_against_nodes_taken() -> None:
    costs = Costs(job_gpus=10, lost_hours=2, node_gpus=8, drained_hours=1)
    assert costs.net(early=3, false=2) == 60 - 16


@pytest.fixture(scope="session")
def judged(history: Telemetry) -> Evaluation:
    return evaluate(history, step_ns=6 * HOUR_NS, bootstraps=20)


def test_every_rival_is_judged_at_every_budget(judged: Evaluation) -> None:
    assert {
        "never",
        "xid-table",
        "static-thresholds",
        "history-28d",
        "sibling-z",
        "rival",
        "learned",
        "logistic",
        "isolation-forest",
    } == set(judged.result["scorers"])
    for entry in judged.result["scorers"].values():
        assert set(entry["budgets"]) == {"1", "2", "5"}


def test_never_drains_nothing_and_the_figures_are_json(judged: Evaluation) -> None:
    text = json.dumps(judged.result, allow_nan=False)
    never = json.loads(text)["scorers"]["never"]["budgets"]["2"]
    assert never["alarms"] == 0
    assert never["net_gpu_hours"] == 0
    assert never["recall"]["15min"] == 0


def test_recall_falls_with_the_lead_asked_for_and_counts_agree(judged: Evaluation) -> None:
    total = judged.result["failures_in_test"]
    assert total > 10
    for entry in judged.result["scorers"].values():
        for at in entry["budgets"].values():
            recall = at["recall"]
            assert recall["15min"] >= recall["1h"] >= recall["6h"]
            assert at["early"] == len(at["lead_hours"])
            by_class = [text.split("/") for text in at["recall_by_class"].values()]
            assert sum(int(early) for early, _ in by_class) == at["early"]
            assert sum(int(count) for _, count in by_class) == total


def test_gate_says_on_or_off_and_why(judged: Evaluation) -> None:
    gate = judged.result["gate"]
    scorers = judged.result["scorers"]
    ours, theirs = (scorers[name]["budgets"]["2"]["net_gpu_hours"] for name in ("learned", "rival"))
    assert gate["learned"] == ("on" if ours > max(theirs, 0.0) else "off")
    assert f"{ours:g}" in gate["why"]


def test_report_is_one_page_that_needs_nothing_else(judged: Evaluation) -> None:
    page = html(judged)
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") >= 3
    for name in judged.result["scorers"]:
        assert name in page
    assert "src=" not in page
    assert "href=" not in page


@pytest.mark.parametrize(
    ("ours", "theirs", "gate"),
    [(100.0, 50.0, "on"), (40.0, 50.0, "off"), (-96.0, -224.0, "off"), (0.0, 0.0, "off")],
)
def test_model_that_only_loses_less_than_the_rival_stays_off(
    ours: float, theirs: float, gate: str
) -> None:
    scorers = {
        name: {"budgets": {"2": {"net_gpu_hours": net}}}
        for name, net in (("learned", ours), ("rival", theirs))
    }
    assert decide_gate(scorers)["learned"] == gate
