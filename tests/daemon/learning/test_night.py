"""A whole night: a store as a user fills it, learned from by the head's own child, and opened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daemon.cli import main as tocsin
from daemon.learning.choice import choose
from daemon.learning.night import Answer, command, train
from daemon.learning.options import LearningOptions, RiskOptions
from daemon.learning.shelf import Shelf, kept_of
from models.simulate import load
from models.simulate.write import write_simulation

# Training takes its time where other programs do as well.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 nodes x 4 GPUs, 8 days by the hour, 300 times as many faults; imported by the verb.

    Simulated time lies years back, as that of a history that somebody else has recorded.
    """
    fleet = tmp_path_factory.mktemp("fleet")
    scenario = load().scaled(300.0).with_hardware("a100-4")
    write_simulation(fleet, nodes=24, days=8, seed=3, cadence_seconds=3600, scenario=scenario)
    directory = tmp_path_factory.mktemp("head") / "store"
    assert tocsin(["import", "--telemetry", str(fleet), "--directory", str(directory)]) == 0
    return directory


async def test_a_night_on_a_store_makes_a_model_that_the_head_can_open(
    store: Path, tmp_path: Path
) -> None:
    options = LearningOptions(budget_per_1000_node_days=100.0)
    shelf = Shelf(tmp_path / "models")
    argv = command(options, store, shelf.path("learned-a"), None)
    answer = await train(argv, 300.0)
    assert isinstance(answer, Answer)
    assert answer.state == "judged", answer.why
    assert answer.failures >= options.failures_min
    assert shelf.names() == ["learned-a"]
    kept = kept_of("learned-a", shelf.path("learned-a"), False)
    assert (kept.fault, kept.why) == ("", answer.why)
    manifest = json.loads((shelf.path("learned-a") / "manifest.json").read_text())
    for one in manifest["kinds"].values():
        assert "86400" in one["horizons"]
    shelf.promote("learned-a")
    choice = choose(RiskOptions(), shelf)
    assert choice.refused == ""
    assert choice.name == "learned-a"


def test_a_store_of_few_days_says_what_is_needed(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["train", "--store", str(store), "--out", str(tmp_path / "m"), "--days", "3"]
    assert tocsin(argv) == 0
    assert "days of history; 7 are needed" in capsys.readouterr().out
    assert not (tmp_path / "m").exists()
