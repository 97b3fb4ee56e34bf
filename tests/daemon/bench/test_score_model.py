"""``tocsin bench score --model``: what a learned model costs beside the rival."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.bench.score import bench_score
from daemon.cli import main as tocsin
from tests.daemon.learning.making import make_model


def test_a_learned_model_is_measured_in_turns_and_as_a_whole(tmp_path: Path) -> None:
    make_model(tmp_path / "m", "learned-a")
    figures = {one.name: one.value for one in bench_score(5, 2, tmp_path / "m")}
    assert figures["score: parts"] > 5
    parts = ("", ", all parts, a day", ", all parts, every horizon", ", in shadow")
    for part in parts:
        assert figures[f"score: learned-a{part}"] > 0
    assert "score: rival-1" in figures


@pytest.mark.parametrize(
    ("name", "words"), [("store", "--model belongs to score"), ("score", "No such file")]
)
def test_a_model_that_is_not_there_or_not_asked_for_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    assert tocsin(["bench", name, "--model", str(tmp_path / "nothing")]) == 2
    assert words in capsys.readouterr().err
