"""Judging: thresholds come before what is judged, and figures say what they should."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from models.evaluation.alarms import alarms, node_days, threshold_at, worth_threshold
from models.evaluation.evaluate import Costs, Evaluation, decide_gate, evaluate
from models.evaluation.events import Record, Target, from_truth
from models.evaluation.operating import tune
from models.evaluation.report import html
from models.evaluation.rivals import Never
from models.simulate import Truth
from models.telemetry import Telemetry

# Training takes its time where other programs do as well.
pytestmark = pytest.mark.timeout(400)

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


def test_the_horizons_beside_the_model_s_own_are_judged_for_calibration(
    judged: Evaluation,
) -> None:
    own = judged.result["scorers"]["learned"]
    beside = judged.result["horizons"]
    assert set(beside) == {"1h", "7d"}
    assert beside["1h"]["prevalence"] < own["prevalence"] < beside["7d"]["prevalence"]
    assert beside["1h"]["mean_probability"] < own["mean_probability"]
    assert own["mean_probability"] < beside["7d"]["mean_probability"]


def test_gate_says_on_or_off_and_why(judged: Evaluation) -> None:
    gate = judged.result["gate"]
    scorers = judged.result["scorers"]
    ours = scorers["learned"]["worth"]["net_gpu_hours"]
    assert gate["learned"] in ("on", "off")
    assert gate["learned"] == "off" or ours > scorers["rival"]["worth"]["net_gpu_hours"]
    assert f"{ours:g}" in gate["why"]


def test_report_is_one_page_that_needs_nothing_else(judged: Evaluation) -> None:
    page = html(judged)
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") >= 3
    for horizon in ("1h", "7d"):
        assert f"learned, within {horizon}" in page
        assert f"<tr><td>{horizon}</td>" in page
    for name in judged.result["scorers"]:
        assert name in page
    assert "src=" not in page
    assert "href=" not in page


def worth(net: float, false: float = 1.0) -> dict[str, object]:
    return {"worth": {"net_gpu_hours": net, "false_per_1000_node_days": false}}


@pytest.mark.parametrize(
    ("ours", "theirs", "gate"),
    [(100.0, 50.0, "on"), (40.0, 50.0, "off"), (-96.0, -224.0, "off"), (0.0, 0.0, "off")],
)
def test_model_that_only_loses_less_than_a_rival_stays_off(
    ours: float, theirs: float, gate: str
) -> None:
    scorers = {"learned": worth(ours), "rival": worth(-500.0), "logistic": worth(theirs)}
    assert decide_gate(scorers)["learned"] == gate


@pytest.mark.parametrize(("least", "gate"), [(10.0, "on"), (0.0, "off"), (-40.0, "off")])
def test_gain_that_other_nodes_might_not_show_keeps_the_gate_off(least: float, gate: str) -> None:
    ours: dict[str, object] = {
        "net_gpu_hours": 64.0,
        "net_gpu_hours_95": [least, 190.0],
        "false_per_1000_node_days": 0.1,
    }
    assert decide_gate({"learned": {"worth": ours}, "rival": worth(0.0)})["learned"] == gate


def test_gate_counts_nothing_that_was_won_far_past_the_budget() -> None:
    assert decide_gate({"learned": worth(90.0, 5.0), "rival": worth(0.0)})["learned"] == "off"
    assert decide_gate({"learned": worth(50.0), "rival": worth(90.0, 5.0)})["learned"] == "on"


def test_worth_is_where_most_is_won_and_not_where_the_budget_is_used_up() -> None:
    # Node 0 fails and is loudest; nodes 1 to 9 are loud for nothing.
    scores = np.zeros((24, 10))
    scores[4, :] = 0.5
    scores[4, 0] = 0.9
    whole = recorded(scores.tolist(), [failure("n0", 10)])

    def net(early: float, false: float) -> float:
        return early * 48 - false * 32

    used_up = threshold_at(whole, whole.scores["x"], 1e6, 0, 24, DAY_NS)
    most = worth_threshold(whole, whole.scores["x"], 1e6, 0, 24, DAY_NS, net)
    assert len(alarms(whole, whole.scores["x"], used_up, 0, 24, DAY_NS)) == 10
    assert [one.node for one in alarms(whole, whole.scores["x"], most, 0, 24, DAY_NS)] == [0]


def test_never_is_best_where_nothing_is_won() -> None:
    scores = np.full((24, 10), 0.5)
    whole = recorded(scores.tolist(), [])
    assert worth_threshold(whole, whole.scores["x"], 1e6, 0, 24, DAY_NS, lambda e, f: e - f) == (
        float("inf")
    )


def test_thresholds_may_come_from_another_history(history: Telemetry) -> None:
    never = tune(history, [Never()], budgets=(2.0,), horizon_ns=DAY_NS, step_ns=12 * HOUR_NS)
    assert never["never"].facts() == {"2": None, "worth": None}
