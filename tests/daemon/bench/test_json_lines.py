"""``tocsin bench --json`` is for scripts: nothing but figures on standard output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.cli.main import main


def test_a_folder_that_is_not_there_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "store", "--folder", str(tmp_path / "nowhere")]) == 2
    assert "nowhere: no folder to write in" in capsys.readouterr().err


def test_a_bench_that_logs_prints_nothing_but_figures(tmp_path: Path) -> None:
    words = ["bench", "head", "--nodes", "5", "--steps", "1", "--json", "--folder", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "daemon.cli", *words],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"name", "value", "unit", "reach"} == set(figures[0])
    assert "head_starts" in done.stderr
