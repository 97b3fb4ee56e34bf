"""The model that comes with tocsin is the recipe's, says what it is, and may drain nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import recipe
from models.artifact import FORMAT, load, save
from models.evaluation.ship import SHIPPED, judged_facts, ship
from models.features import features
from models.learned import LearnedRisk, usable_feature

LIMIT_BYTES = 3 * 2**20


@pytest.fixture(scope="module")
def shipped() -> LearnedRisk:
    return load(SHIPPED)  # holds hash, bounds and feature names against the manifest


@pytest.fixture(scope="module")
def manifest() -> Any:
    return json.loads((SHIPPED / "manifest.json").read_text())


def test_it_loads_and_is_small(manifest: Any) -> None:
    assert manifest["format"] == FORMAT
    assert sorted(one.name for one in SHIPPED.iterdir()) == ["manifest.json", "model.skops"]
    assert sum(one.stat().st_size for one in SHIPPED.iterdir()) < LIMIT_BYTES


def test_it_is_marked_as_of_the_simulator_and_its_gate_is_off(shipped: LearnedRisk) -> None:
    facts: Any = shipped.facts
    assert facts["simulated"] is True
    assert facts["gate"]["learned"] == "off"
    assert all(one["simulated"] for one in [*facts["trained_on"], *facts["calibrated_on"]])
    assert facts["judged"]["challenger"]["failures"] == 52
    assert 0 < facts["threshold"] < 1


def test_a_changed_recipe_demands_a_new_model(shipped: LearnedRisk) -> None:
    """make model, then python -m models.evaluation.held_out, .table and .ship."""
    assert shipped.facts["recipe"] == recipe.constants()
    assert shipped.name == recipe.NAME


@pytest.mark.skipif(
    "TOCSIN_MODEL" not in os.environ, reason="make model, then TOCSIN_MODEL=dist/model"
)
def test_the_recipe_makes_this_very_model(shipped: LearnedRisk) -> None:
    """To the last bit, with the libraries that made it."""
    made = load(Path(os.environ["TOCSIN_MODEL"]))
    assert made.kinds.keys() == shipped.kinds.keys()
    for kind, ours in shipped.kinds.items():
        theirs = made.kinds[kind]
        assert theirs.names == ours.names
        assert np.array_equal(theirs.typical, ours.typical, equal_nan=True)
        assert theirs.horizons.keys() == ours.horizons.keys()
        for seconds, mine in ours.horizons.items():
            other = theirs.horizons[seconds]
            assert (other.calibration, other.base_rate) == (mine.calibration, mine.base_rate)
            assert list(other.trees) == list(mine.trees)
            for cause, trees in mine.trees.items():
                grown = other.trees[cause]
                assert grown.baseline == trees.baseline
                for name in ("column", "number", "missing_left"):
                    assert np.array_equal(getattr(grown, name), getattr(trees, name))
    told = {"histograms", "recipe", "trained_on", "calibrated_on", "looks", "failures_within"}
    assert all(made.facts[name] == shipped.facts[name] for name in told)


def test_it_looks_at_all_kinds_and_at_no_clock(shipped: LearnedRisk) -> None:
    assert set(shipped.kinds) == {"chassis", "disk", "gpu", "link", "memory", "node"}
    for kind, one in shipped.kinds.items():
        assert set(one.names) <= {each.name for each in features(kind)}
        assert all(usable_feature(name) for name in one.names)
        assert set(one.horizons) == {3600.0, 86_400.0, 604_800.0}


def test_what_was_never_read_is_a_usual_risk(shipped: LearnedRisk) -> None:
    """A part of which nothing is known stands out by nothing."""
    threshold: Any = shipped.facts["threshold"]
    for one in shipped.kinds.values():
        (said,) = one.probability(np.full((1, len(one.names)), np.nan, np.float32)).tolist()
        assert 0 < said < threshold / 10


def test_loading_it_needs_no_training_library() -> None:
    code = (
        "import sys; from pathlib import Path; from models.artifact import load; "
        f"load(Path({str(SHIPPED)!r})); "
        "print([one for one in ('skops', 'sklearn', 'scipy.optimize') if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_shipping_keeps_the_trees_and_writes_down_what_was_judged(
    shipped: LearnedRisk, tmp_path: Path
) -> None:
    at = {
        "threshold": 0.25, "early": 3, "false": 1, "alarms": 4, "false_per_1000_node_days": 0.1,
        "net_gpu_hours": 112.0, "net_gpu_hours_95": [-16.0, 240.0],
    }  # fmt: skip
    result = {
        "telemetry": "seed-1",
        "test_node_days": 10_000.0,
        "failures_in_test": 9,
        "gate": {"learned": "off", "why": "as judged"},
        "scorers": {name: {"budgets": {"2": at}} for name in ("learned", "rival")},
    }
    save(shipped, tmp_path / "trained" / "model")
    (tmp_path / "usual.json").write_text(json.dumps(result))
    ship(tmp_path, tmp_path / "out")
    again = load(tmp_path / "out")
    facts: Any = again.facts
    assert facts["gate"] == {"learned": "off", "why": "judged on the simulator: as judged"}
    assert facts["threshold"] == 0.25
    assert facts["alarms_per_1000_node_days"] == 0.4
    assert facts == shipped.facts | judged_facts(result)
    x = np.zeros((1, len(again.kinds["gpu"].names)), np.float32)
    assert again.kinds["gpu"].probability(x) == shipped.kinds["gpu"].probability(x)
