"""A saved model: a folder with ``model.skops`` and ``manifest.json``.

The file holds the trees as plain arrays (models/trees.py, models/arrays_file.py), so it is bound
to this format and to the names of features, and to no version of a library. The manifest holds
the file's hash, feature names, calibration, what was trained on and with, and the scores; a
mismatch is refused with the reason in words. Both come from outside: nothing in them is run, and
every number is held against its bounds.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from models.arrays_file import Arrays, ArraysRefused, read, write
from models.features import features
from models.features.arrays import Floats
from models.horizons import horizons_with
from models.learned import Horizon, KindModel, LearnedRisk
from models.trees import Ensemble, TreesRefused

FORMAT = 4  # 4: trees as plain arrays; 3: scikit-learn's trees by horizon and cause of failure
MODEL_LIMIT_BYTES = 64 * 2**20  # packed and unpacked; the shipped one unpacks to 0.5 MB
MANIFEST_LIMIT_BYTES = 16 * 2**20


class ModelRefused(ValueError):
    """The model cannot be used here. The text says why and what to do."""


def save(model: LearnedRisk, directory: Path) -> None:
    """Writes the model. ``model.facts`` goes into the manifest as it is (JSON data)."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "model.skops"
    write(
        {
            kind: {
                _key(seconds): {cause: _arrays(trees) for cause, trees in part.trees.items()}
                for seconds, part in one.horizons.items()
            }
            for kind, one in model.kinds.items()
        },
        path,
    )
    manifest = {
        "format": FORMAT,
        "name": model.name,
        "horizon_seconds": model.horizon_seconds,
        "sha256": _hash(path),
        # For people: nothing depends on it.
        "sklearn": importlib.metadata.version("scikit-learn"),
        "kinds": {
            kind: {
                "names": list(one.names),
                # One model each, by its horizon in seconds.
                "horizons": {
                    _key(seconds): {
                        "causes": list(part.trees),
                        "calibration": list(part.calibration),
                        "base_rate": part.base_rate,
                    }
                    for seconds, part in one.horizons.items()
                },
                # JSON knows no NaN
                "typical": [None if np.isnan(value) else float(value) for value in one.typical],
            }
            for kind, one in model.kinds.items()
        },
        "facts": model.facts,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def load(directory: Path) -> LearnedRisk:
    """Reads a model back. Raises ModelRefused."""
    path, file = directory / "model.skops", directory / "manifest.json"
    try:
        if file.stat().st_size > MANIFEST_LIMIT_BYTES:
            raise ModelRefused(f"{file} is larger than {MANIFEST_LIMIT_BYTES} bytes")
        manifest = json.loads(file.read_bytes())
        _check(manifest, path)
        trees = read(path, MODEL_LIMIT_BYTES)
        own_seconds = _finite(manifest["horizon_seconds"])
        kinds = _kinds(manifest, trees, own_seconds)
        facts = manifest["facts"]
        if not isinstance(facts, dict):
            raise TypeError("facts are no table")
        return LearnedRisk(own_seconds, kinds, str(manifest["name"]), facts)
    except OSError as error:
        raise ModelRefused(f"{directory}: {error.strerror or error}") from error
    except (ArraysRefused, TreesRefused) as error:
        raise ModelRefused(f"{path} is no file of trees: {error}") from error
    except ModelRefused:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ModelRefused(f"{file} is not a manifest: {error!r}") from error


def _check(manifest: Mapping[str, Any], path: Path) -> None:
    if manifest["format"] != FORMAT:
        raise ModelRefused(
            f"{path} has format {manifest['format']}, this version reads {FORMAT}: train again"
        )
    if path.stat().st_size > MODEL_LIMIT_BYTES:
        raise ModelRefused(f"{path} is larger than {MODEL_LIMIT_BYTES} bytes")
    if _hash(path) != manifest["sha256"]:
        raise ModelRefused(f"{path} is not the file that its manifest speaks of: train again")
    for kind, one in manifest["kinds"].items():
        known = {feature.name for feature in features(kind)}
        missing = sorted(set(one["names"]) - known)
        if missing:
            raise ModelRefused(
                f"{path} looks at features that this version does not keep "
                f"({', '.join(missing[:3])} ...): train again"
            )


def _kinds(manifest: Mapping[str, Any], trees: Arrays, own_seconds: float) -> dict[str, KindModel]:
    kinds = {}
    told = set(horizons_with(own_seconds))
    for kind, one in manifest["kinds"].items():
        names = tuple(one["names"])
        horizons = {}
        for key, part in one["horizons"].items():
            grown = {
                cause: _ensemble(trees[kind][key][cause], len(names)) for cause in part["causes"]
            }
            a, b, c = (_finite(value) for value in part["calibration"])
            horizons[float(key)] = Horizon(grown, (a, b, c), _finite(part["base_rate"]))
        if own_seconds not in horizons:
            raise KeyError(f"{kind} within {own_seconds:g} s")
        if not horizons.keys() <= told:
            raise KeyError(f"{kind} within {sorted(horizons.keys() - told)} s")
        typical: Floats = np.array(
            [np.nan if value is None else _finite(value) for value in one["typical"]]
        )
        if typical.shape != (len(names),):
            raise ValueError(f"{kind}: {len(typical)} usual values for {len(names)} features")
        kinds[kind] = KindModel(kind, names, own_seconds, horizons, typical)
    return kinds


def _arrays(trees: Ensemble) -> Arrays:
    return {
        "baseline": np.array([trees.baseline]),
        "column": trees.column,
        "number": trees.number,
        "missing_left": trees.missing_left,
    }


def _ensemble(arrays: Arrays, columns: int) -> Ensemble:
    (baseline,) = arrays["baseline"].tolist()
    found = Ensemble(float(baseline), arrays["column"], arrays["number"], arrays["missing_left"])
    found.check(columns)
    return found


def _finite(value: Any) -> float:
    """Raises ValueError for what is no number that can be reckoned with."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no finite number")
    return number


def _key(seconds: float) -> str:
    return f"{seconds:g}"


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
