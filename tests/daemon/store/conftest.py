"""Fixtures of the tests of the embedded store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.store.embedded import Store
from tests.daemon.store.keeping import START_NS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path, now_ns=lambda: START_NS)
    yield opened
    opened.close()
