"""What ``tocsin model`` and ``tocsin evaluate`` print for people."""

from __future__ import annotations

from typing import Any

from daemon.cli import evaluate, model


def day(date: str, name: str) -> dict[str, Any]:
    counts = {"drains": 3, "hits": 1, "wrong": 2, "open": 0, "unknown": 0}
    return {"day": date, "model": name, **counts, "missed": 4, "failures": 5}


def test_the_newest_day_of_the_scoreboard_is_told_of_each_model() -> None:
    board = [day("2026-11-30", "rival-1"), day("2026-11-30", "m"), day("2026-11-29", "m")]
    found = {"words": "m", "threshold": None, "night": "none", "drift": "", "scoreboard": board}
    told = [line for line in model.lines(found, "show") if line.startswith("board")]
    assert [line.split()[2] for line in told] == ["rival-1:", "m:"]
    assert told[0].endswith("(1 right, 2 wrong, 0 open, 0 unknown); missed 4 of 5 failures")


def test_an_evaluation_is_one_line_a_scorer_then_the_gate_and_notes() -> None:
    worth = {"early": 6, "false": 8, "net_gpu_hours": 32.0}
    result = {
        "nodes": 20, "test_node_days": 24.0, "failures_in_test": 9, "predictable_in_test": 0,
        "truth": "mined from events", "gate": {"learned": "off", "why": "too few"},
        "scorers": {
            "never": {"worth": worth, "auprc": None},
            "rival": {"worth": worth, "auprc": 0.1},
        },
        "notes": ["no model was trained"],
    }  # fmt: skip
    first, _, header, never, rival, gate, note = evaluate.words(result)
    assert first.endswith("9 failures")  # who knows no truth cannot say which had a precursor
    assert header.split()[0] == "SCORER"
    assert never.split() == ["never", "6", "8", "32", "-"]
    assert rival.split() == ["rival", "6", "8", "32", "0.100"]
    assert (gate, note) == ("gate: off (too few)", "note: no model was trained")
