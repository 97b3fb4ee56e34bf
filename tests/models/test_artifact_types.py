"""What a model's file may hold: numbers, and nothing that could do anything."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
import skops.io

from models import artifact
from models.arrays_file import write
from models.artifact import FORMAT, ModelRefused, load

LEAF = -1
TREES = {
    "baseline": np.array([-1.0]),
    "column": np.array([0, LEAF, LEAF], np.int16),
    "number": np.array([0.5, -1.0, 1.0]),
    "missing_left": np.zeros(3, np.bool_),
}


def described(path: Path, **changes: object) -> None:
    """Writes the manifest of a model of one tree that lies at ``path``."""
    part = {"causes": ["host"], "calibration": [1.0, 1.0, 0.0], "base_rate": 0.01}
    kind = {"names": ["load.now"], "horizons": {"86400": part}, "typical": [None]}
    manifest = {
        "format": FORMAT,
        "name": "m",
        "horizon_seconds": 86400.0,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "kinds": {"node": kind},
        "facts": {},
    }
    (path.parent / "manifest.json").write_text(json.dumps(manifest | changes))


def put(directory: Path, **changes: object) -> Path:
    """A model of one tree, its arrays changed."""
    write({"node": {"86400": {"host": TREES | changes}}}, directory / "model.skops")
    described(directory / "model.skops")
    return directory


def test_a_model_of_one_tree(tmp_path: Path) -> None:
    model = load(put(tmp_path))
    low, high = model.kinds["node"].probability(np.array([[0.0], [1.0]])).tolist()
    assert 0 < low < high < 1


@pytest.mark.parametrize("odd", [np.memmap, np.fromfile, sklearn.datasets.fetch_openml])
def test_what_could_open_files_or_fetch_is_refused(tmp_path: Path, odd: object) -> None:
    path = tmp_path / "model.skops"
    skops.io.dump({"node": odd}, path)
    described(path)
    with pytest.raises(ModelRefused, match="foreign types"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"column": np.array([1, LEAF, LEAF], np.int16)}, "not among the 1"),
        ({"column": np.array([-9, LEAF, LEAF], np.int16)}, "not among the 1"),
        ({"column": np.array([0, 0, LEAF], np.int16)}, "not whole"),
        ({"column": np.array([0, LEAF, LEAF])}, "int64"),
        ({"number": np.array([0.5, -1.0])}, "differ in length"),
        ({"number": np.array([0.5, -1.0, np.nan])}, "no finite number"),
        ({"baseline": np.array([np.inf])}, "no finite number"),
        ({"baseline": np.zeros(2)}, "ValueError"),
        ({"baseline": {"a": np.zeros(1)}}, "AttributeError"),
        ({"missing_left": {"a": np.zeros(1)}}, "AttributeError"),
    ],
)
def test_trees_that_lead_astray_are_refused(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ModelRefused, match=words):
        load(put(tmp_path, **changes))


def of_kind(**changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["kinds"]["node"].update(changes)


def of_horizon(**changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["kinds"]["node"]["horizons"]["86400"].update(changes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda manifest: manifest.update(format=3), "reads 4: train again"),
        (lambda manifest: manifest.update(horizon_seconds=float("nan")), "finite"),
        (lambda manifest: manifest.update(facts=[]), "no table"),
        (lambda manifest: manifest["kinds"].update(moon={"names": []}), "moon"),
        (of_kind(names=["load.now", "load.now"]), "1 usual values for 2"),
        (of_kind(names=[]), "not among the 0"),
        (of_kind(typical=[float("inf")]), "finite"),
        (of_kind(typical=["a"]), "could not convert"),
        (of_kind(horizons={}), "within 86400 s"),
        (of_horizon(calibration=[1.0, 1.0, float("nan")]), "finite"),
        (of_horizon(calibration=[1.0, 1.0]), "not enough values"),
        (of_horizon(base_rate=None), "TypeError"),
        (of_horizon(causes=["moon"]), "moon"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    file = put(tmp_path) / "manifest.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    file.write_text(json.dumps(manifest))
    with pytest.raises(ModelRefused, match=words):
        load(tmp_path)


def test_files_that_are_too_large_are_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path)
    monkeypatch.setattr(artifact, "MODEL_LIMIT_BYTES", 100)
    with pytest.raises(ModelRefused, match="larger than 100 bytes"):
        load(tmp_path)
    monkeypatch.setattr(artifact, "MANIFEST_LIMIT_BYTES", 50)
    with pytest.raises(ModelRefused, match="larger than 50 bytes"):
        load(tmp_path)
    (tmp_path / "manifest.json").write_text("[" * 40)
    with pytest.raises(ModelRefused, match="not a manifest"):
        load(tmp_path)
