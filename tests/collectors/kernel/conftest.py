"""Fixtures of the tests of the kernel log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collectors.kernel.log import KernelLog, Options
from collectors.sample import Context
from tests.collectors.contract import NODE, NOW_NS
from tests.collectors.kernel.log_help import proc


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "state").mkdir()
    made = Context(NODE, tmp_path / "state", tmp_path / "root", lambda: NOW_NS)
    proc(made)
    return made


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_text("")
    return path


@pytest.fixture
def start(context: Context, log: Path) -> Iterator[Callable[[], KernelLog]]:
    """Starts an agent's source on the file; all are closed at the end."""
    made: list[KernelLog] = []

    def make(**options: object) -> KernelLog:
        made.append(KernelLog(Options(path=str(log), **options), context))
        return made[-1]

    yield make
    for one in made:
        one.close()
