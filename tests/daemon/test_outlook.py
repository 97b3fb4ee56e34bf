"""The risk within an hour, a day and a week: from the parts of a node to what people read."""

from __future__ import annotations

import pytest

from daemon.cli.nodes import table
from daemon.explain import by_horizon
from daemon.points import risk_samples, risks_by_node
from daemon.policy.candidates import ahead, of_risks
from daemon.policy.cases import LedgerView
from models.horizons import by_label
from models.voices import Entity, Risk
from models.watch import Judgement

HOUR, DAY, WEEK = 3600.0, 86_400.0, 604_800.0


def risk(kind: str, device: str, hour: float, day: float, week: float) -> Risk:
    outlook = ((HOUR, hour), (DAY, day), (WEEK, week))
    return Risk(Entity(kind, "n1", device), day, DAY, "trees", "risk", (), outlook)


PARTS = [risk("gpu", "gpu3", 0.1, 0.5, 0.8), risk("node", "", 0.0, 0.2, 0.5)]


def test_parts_combine_to_their_node_within_each_horizon() -> None:
    assert by_label(ahead(PARTS)) == pytest.approx({"1h": 0.1, "24h": 0.6, "7d": 0.9})
    assert ahead(PARTS[:1]) == PARTS[0].outlook
    assert ahead([]) == ()


def test_a_model_that_tells_of_one_horizon_alone_is_shown_with_that_one() -> None:
    plain = [Risk(Entity("node", "n1"), 0.5, DAY, "m", "risk"), PARTS[1]]
    assert ahead(plain[:1]) == ()
    assert risks_by_node(plain[:1])["n1"][""].outlook == ()


def test_the_whole_node_is_told_within_each_horizon() -> None:
    whole = risks_by_node(PARTS)["n1"][""]
    assert whole.probability == pytest.approx(0.6)
    assert by_label(whole.outlook)["24h"] == pytest.approx(whole.probability)


def test_a_decision_holds_what_was_said_of_each_horizon() -> None:
    (candidate,) = of_risks(PARTS, 0.3, LedgerView(), 0)
    assert candidate.said["outlook"] == pytest.approx({"1h": 0.1, "24h": 0.6, "7d": 0.9})
    assert by_horizon(candidate.said["outlook"]) == "1h: 0.1000, 24h: 0.6000, 7d: 0.9000"


def test_points_hold_the_horizons_beside_the_model_s_own() -> None:
    fields = {
        one.tag("component"): dict(one.fields)
        for one in risk_samples(Judgement(0, risks=tuple(PARTS)))
    }
    assert fields["gpu"]["probability"] == 0.5
    assert fields["gpu"]["probability_1h"] == 0.1
    assert fields["gpu"]["probability_7d"] == 0.8
    assert "probability_24h" not in fields["gpu"]


@pytest.mark.parametrize(
    ("outlook", "shown"),
    [({"1h": 0.01, "24h": 0.2, "7d": 0.4}, "0.010 / 0.400"), ({}, "-"), ({"1h": 0.0}, "0.000 / -")],
)
def test_tocsin_nodes_shows_hour_and_week_beside_the_day(
    outlook: dict[str, float], shown: str
) -> None:
    row = {
        "name": "n1", "slurm_state": "IDLE", "gpu_marks": "....", "gpus": 4, "risk": 0.2,
        "heard_seconds": 1.0, "voice": "", "code": "", "device": "", "guard": "", "reason": "",
        "outlook": outlook,
    }  # fmt: skip
    line = table([row]).splitlines()[1]
    assert f"0.200  {shown}" in line
