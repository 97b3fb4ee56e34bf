"""What a model's file may hold: our trees, and nothing that merely lies in the same packages."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import sklearn
import sklearn.datasets
import skops.io

from models.artifact import FORMAT, ModelRefused, load


@pytest.mark.parametrize("odd", [np.memmap, np.fromfile, sklearn.datasets.fetch_openml])
def test_what_could_open_files_or_fetch_is_refused(tmp_path: Path, odd: object) -> None:
    path = tmp_path / "model.skops"
    skops.io.dump({"gpu": odd}, path)
    manifest = {
        "format": FORMAT,
        "name": "m",
        "horizon_seconds": 1.0,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "sklearn": sklearn.__version__,
        "kinds": {},
        "facts": {},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelRefused, match="foreign types"):
        load(tmp_path)
