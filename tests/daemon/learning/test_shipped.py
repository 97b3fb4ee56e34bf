"""The model that comes with tocsin, in a head that was told nothing of risk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daemon.config import Config
from daemon.learning.choice import choose
from daemon.learning.desk import Learning
from daemon.learning.options import RiskOptions
from daemon.learning.shelf import Shelf
from daemon.policy.decisions import Action, Guard
from daemon.store.database import Database
from models.voices import Entity, Risk
from tests.daemon.learning.making import make_model
from tests.daemon.learning.test_head import Start, load, scoring, start

__all__ = ["start"]  # a fixture

WORDS = "simulator-1 (shipped, trained on the simulator), in shadow: its gate is off"


async def test_it_scores_in_shadow_without_any_setting(start: Start) -> None:
    head = await start()
    assert scoring(head) == ["rival-1", "simulator-1"]
    assert [one.name for one in head.watch.models] == ["rival-1"]
    assert head.learning.choice.words == WORDS
    await load(head)
    assert {one.model for one in head.judgement.risks} == {"rival-1"}
    shown = head.learning.status()
    assert (shown["source"], shown["words"], shown["acts"]) == ("shipped", WORDS, False)
    assert 0 < shown["threshold"] < 1
    (listed,) = shown["models"]
    assert (listed["name"], listed["gate"], listed["fault"]) == ("simulator-1", False, "")
    assert (listed["early"], listed["failures"]) == (6, 52)  # docs/evaluation.md
    assert "net GPU-hours" in listed["why"]


async def test_what_it_fears_is_recorded_and_drains_nothing(start: Start) -> None:
    """However sure it is, and though policy would let a risk drain."""
    head = await start()
    await load(head)
    model = head.learning.shadow
    assert model is not None
    feared = Risk(Entity("node", "n3"), 0.97, model.horizon_seconds, model.name, "risk")
    head.learning.overheard(model, [feared])
    await head.judge()
    (recorded,) = head.ledger.decisions(node="n3")
    assert (recorded.rule, recorded.action, recorded.guard) == (
        "risk:simulator-1", Action.HOLD, Guard.SHADOW,
    )  # fmt: skip
    assert not [one for one in head.decisions if one.voice == "risk"]
    assert not any(one.drain for one in head.adapter.nodes(list(head.nodes)).values())
    assert not [one for one in head.active if one.node == "n3" and one.key.startswith("case/")]


def test_a_trained_model_or_a_setting_takes_its_place(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "models")
    assert choose(RiskOptions(), shelf).source == "shipped"
    assert choose(RiskOptions(shipped=False), shelf).source == "none"
    make_model(tmp_path / "models" / "learned-a")
    shelf.promote("learned-a")
    assert choose(RiskOptions(), shelf).words.startswith("learned-a (promoted), in shadow")


def test_that_it_was_made_of_another_fleet_wakes_nobody(tmp_path: Path) -> None:
    from daemon.drains.ledger import Ledger

    config = Config.model_validate({"head": {"state_dir": tmp_path}})
    learning = Learning(config, Ledger(Database(tmp_path / "db")), tmp_path)
    learning.drift_words = "9 of the 400 features lie otherwise"
    assert learning.alerts(1) == []
    assert learning.status()["drift"] == learning.drift_words
    make_model(tmp_path / "models" / "learned-a")
    learning.shelf.promote("learned-a")
    learning.open()
    learning.drift_words = "9 of the 400 features lie otherwise"
    told: list[Any] = learning.alerts(1)
    assert [one.key for one in told] == ["learning/drift"]
