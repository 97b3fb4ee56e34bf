"""A saved model: a folder with ``model.skops`` and ``manifest.json``.

skops keeps scikit-learn objects without pickle; on loading, beside what skops itself trusts,
only the types that our trees are made of are allowed, each by its name. The manifest holds the
file's hash, versions, feature names, the time that was trained on and the scores; a mismatch is
refused with the reason in words.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import skops.io

from models.features import features
from models.learned import Horizon, KindModel, LearnedRisk

FORMAT = 3  # 3: trees by horizon and cause of failure
MODEL_LIMIT_BYTES = 256 * 2**20

# By name and not by package: whatever some module of scikit-learn or numpy holds, a download or
# a file that is mapped for writing, would be among the "types" of the package.
_TYPES = frozenset(
    {
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn._loss._loss.CyHalfBinomialLoss",
        "sklearn._loss.link.Interval",
        "sklearn._loss.link.LogitLink",
        "sklearn._loss.loss.HalfBinomialLoss",
    }
)


class ModelRefused(ValueError):
    """The model cannot be used here. The text says why and what to do."""


def save(model: LearnedRisk, directory: Path) -> None:
    """Writes the model. ``model.facts`` goes into the manifest as it is (JSON data)."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "model.skops"
    trees = {
        kind: {_key(seconds): dict(part.trees) for seconds, part in one.horizons.items()}
        for kind, one in model.kinds.items()
    }
    skops.io.dump(trees, path)
    manifest = {
        "format": FORMAT,
        "name": model.name,
        "horizon_seconds": model.horizon_seconds,
        "sha256": _hash(path),
        "sklearn": sklearn.__version__,
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
    try:
        manifest = json.loads((directory / "manifest.json").read_text())
        path = directory / "model.skops"
        _check(manifest, path)
        own_seconds = float(manifest["horizon_seconds"])
        kinds = _kinds(manifest, _trees(path), own_seconds)
        return LearnedRisk(own_seconds, kinds, str(manifest["name"]), manifest["facts"])
    except OSError as error:
        raise ModelRefused(f"{directory}: {error.strerror or error}") from error
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ModelRefused(f"{directory}/manifest.json is not a manifest: {error!r}") from error


def _check(manifest: dict[str, Any], path: Path) -> None:
    if manifest["format"] != FORMAT:
        raise ModelRefused(f"{path} has format {manifest['format']}, this version reads {FORMAT}")
    if path.stat().st_size > MODEL_LIMIT_BYTES:
        raise ModelRefused(f"{path} is larger than {MODEL_LIMIT_BYTES} bytes")
    if _hash(path) != manifest["sha256"]:
        raise ModelRefused(f"{path} is not the file that its manifest speaks of: train again")
    ours, theirs = (
        version.split(".")[:2] for version in (sklearn.__version__, manifest["sklearn"])
    )
    if ours != theirs:
        raise ModelRefused(
            f"{path} was trained with scikit-learn {manifest['sklearn']}, here is "
            f"{sklearn.__version__}: train again"
        )
    for kind, one in manifest["kinds"].items():
        known = {feature.name for feature in features(kind)}
        missing = sorted(set(one["names"]) - known)
        if missing:
            raise ModelRefused(
                f"{path} looks at features that this version does not keep "
                f"({', '.join(missing[:3])} ...): train again"
            )


def _trees(path: Path) -> dict[str, Any]:
    untrusted = skops.io.get_untrusted_types(file=path)
    allowed = [name for name in untrusted if name in _TYPES]
    if len(allowed) != len(untrusted):
        strange = sorted(set(untrusted) - set(allowed))
        raise ModelRefused(f"{path} holds objects of foreign types: {', '.join(strange[:3])}")
    trees: dict[str, Any] = skops.io.load(path, trusted=allowed)
    return trees


def _kinds(
    manifest: dict[str, Any], trees: dict[str, Any], own_seconds: float
) -> dict[str, KindModel]:
    kinds = {}
    for kind, one in manifest["kinds"].items():
        horizons = {}
        for key, part in one["horizons"].items():
            a, b, c = (float(value) for value in part["calibration"])
            grown = {cause: trees[kind][key][cause] for cause in part["causes"]}
            horizons[float(key)] = Horizon(grown, (a, b, c), float(part["base_rate"]))
        if own_seconds not in horizons:
            raise KeyError(f"{kind} within {own_seconds:g} s")
        typical = np.array([np.nan if v is None else float(v) for v in one["typical"]])
        kinds[kind] = KindModel(kind, tuple(one["names"]), own_seconds, horizons, typical)
    return kinds


def _key(seconds: float) -> str:
    return f"{seconds:g}"


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
