"""The recipe: learn where failures are frequent, calibrate where they are not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from models.artifact import load
from models.recipe import Fleet, make_model


@pytest.mark.timeout(1800)  # a minute of one core, where other programs leave it one
@pytest.mark.skipif(
    not os.environ.get("TOCSIN_SLOW"), reason="simulates two fleets (set TOCSIN_SLOW=1)"
)
def test_recipe_makes_a_model_that_says_what_it_is_made_of(tmp_path: Path) -> None:
    # Small, and so full of failures that there are enough to learn from.
    frequent = Fleet(1, 20, 12, 80.0, 1.0, 1800.0, "a100-4")
    rarer = Fleet(2, 20, 12, 40.0, 1.0, 1800.0, "a100-4")
    model = make_model(tmp_path / "model", frequent, rarer)
    assert model.facts["simulated"] is True
    (calibrated,) = model.facts["calibrated_on"]  # type: ignore[misc]
    assert calibrated["telemetry"] == "calibrate"
    again = load(tmp_path / "model")
    assert set(again.kinds) == set(model.kinds)
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert "calibrate" in json.dumps(manifest)
    for one in manifest["kinds"].values():
        assert "86400" in one["horizons"]
