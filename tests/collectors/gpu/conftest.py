"""Fixtures of the tests of the ``nvml`` source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import collectors.gpu.nvml as nvml
from collectors.gpu.nvml import Nvml
from collectors.sample import Context
from tests.collectors.contract import NODE, NOW_NS
from tests.collectors.fake_gpus import FakeGpus
from tests.collectors.gpu.nvml_help import PATIENT


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "root").mkdir()
    return Context(node=NODE, state_dir=tmp_path, root=tmp_path / "root", now_ns=lambda: NOW_NS)


@pytest.fixture
def source(gpus: FakeGpus, context: Context) -> Iterator[Nvml]:
    made = nvml.make(
        nvml.Options(library_folder=gpus.library_folder, deadline_seconds=PATIENT), context
    )
    yield made
    made.close()
