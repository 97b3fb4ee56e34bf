"""pytest fixtures of the simulated InfiniBand fabric. Loaded by tests/conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.testbed.ib.fabric import Fabric, missing


@pytest.fixture
def ib_start(tmp_path: Path) -> Iterator[Callable[..., Fabric]]:
    """Starts fabrics of the test's own: ``ib_start("--hosts", "8", manager=False)``."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    started: list[Fabric] = []

    def start(*arguments: str, manager: bool = True) -> Fabric:
        fabric = Fabric(tmp_path / f"ib{len(started)}", *arguments, manager=manager)
        started.append(fabric)
        return fabric

    yield start
    for fabric in started:
        fabric.stop()


@pytest.fixture(scope="module")
def ib_fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    """One fabric of eight hosts on two leaves, shared by the tests of a module."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    fabric = Fabric(tmp_path_factory.mktemp("ib"), "--hosts", "8")
    yield fabric
    fabric.stop()
