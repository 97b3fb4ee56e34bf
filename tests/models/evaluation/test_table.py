"""The tables and the picture of the page say what the JSON files say, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from models.evaluation.table import cases_table, page, picture, read, scorers_table


def at(early: int, false: float, told: float) -> dict[str, Any]:
    return {
        "early": early,
        "false": round(10 * false),  # in 10,000 node-days
        "false_per_1000_node_days": false,
        "recall": {"15min": early / 40},
        "recall_of_predictable": told,
        "net_gpu_hours": 48.0 * early - 320 * false,
        "net_gpu_hours_95": [-100.0, 100.0],
    }


def scorer(*, early: int = 0, false: float = 0.0, told: float = 0.0) -> dict[str, Any]:
    return {
        "prevalence": 0.004,
        "auprc": 0.1 if early else None,
        "budgets": {
            "1": at(early // 2, false / 2, told / 2),
            "2": at(early, false, told),
            "5": at(early, false, told),
        },
        "worth": at(0, 0.0, 0.0),
    }


def reliable(skill: float) -> dict[str, Any]:
    bins = [{"said": 0.001, "was": 0.0, "count": 900}, {"said": 0.1, "was": 0.2, "count": 100}]
    return {
        "prevalence": 0.004,
        "mean_probability": 0.005,
        "brier_skill": skill,
        "auprc": 0.1,
        "reliability": bins,
    }


def result() -> dict[str, Any]:
    return {
        "horizon_seconds": 86_400.0,
        "test_node_days": 10_000.0,
        "failures_in_test": 40,
        "predictable_in_test": 12,
        "gate": {"learned": "off"},
        "scorers": {
            "never": scorer(),
            "static-thresholds": scorer(early=3, false=1.0, told=0.25),
            "learned": scorer(early=8, false=2.5, told=0.5) | reliable(0.087),
            "logistic": scorer(early=4, false=0.5, told=0.25),
        },
        "horizons": {"1h": reliable(-0.03), "7d": reliable(0.02)},
    }


def test_every_scorer_is_a_row_with_what_each_budget_brought() -> None:
    rows = scorers_table(result()).splitlines()
    assert len(rows) == 2 + 4
    assert "| **learned** | 4, 3 | 1.25 | 8, 6 | 2.50 |" in rows[4]
    assert rows[2].startswith("| never | 0, 0 | 0.00 |")
    assert rows[2].endswith("| - |")  # it tells nothing, so there is no AUPRC
    assert len({row.count("|") for row in rows}) == 1


def test_every_case_is_a_row_and_a_broken_budget_is_said() -> None:
    named = ("usual", "rates-up", "without-hbm")
    rows = cases_table({name: result() for name in named}).splitlines()
    assert [row.split(" | ")[0] for row in rows[2:5]] == [f"| {name}" for name in named]
    # Only what one model said is added up.
    assert rows[5].startswith("| all above of one model | 20000 | 80, 24 | **16 (12) at 2.50** |")
    assert "**8 (6) at 2.50: over**" in rows[2]
    assert "-0.030, 0.087, 0.020" in rows[2]
    assert len({row.count("|") for row in rows}) == 1


def test_cases_come_in_their_order_and_what_was_not_judged_is_left_out(tmp_path: Path) -> None:
    for name in ("rates-up", "usual", "something-else"):
        (tmp_path / f"{name}.json").write_text(json.dumps(result()))
    assert list(read(tmp_path)) == ["usual", "rates-up"]
    assert page(read(tmp_path)).count("| rates-up |") == 1


def test_the_picture_stands_alone_and_shows_who_tells_anything() -> None:
    drawn = picture(result())
    root = ElementTree.fromstring(drawn)
    words = {one.text for one in root.iter() if one.text}
    assert {"learned, within 24h", "learned, within 1h", "learned, within 7d"} <= words
    assert "logistic" in words
    assert "never" not in words
    assert "learned set for 5" in words
