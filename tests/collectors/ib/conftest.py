"""Fixtures of the tests of a node's InfiniBand."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.sample import Context
from tests.collectors.contract import NODE, NOW_NS
from tests.testbed.ib import fake_sysfs


@pytest.fixture
def sys_root(context: Context) -> Path:
    return context.root / "sys"


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "root" / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "root" / "sys").mkdir()
    (tmp_path / "state").mkdir()
    fake_sysfs.put(tmp_path / "root/proc/sys/kernel/random/boot_id", "first-boot")
    return Context(NODE, tmp_path / "state", tmp_path / "root", lambda: NOW_NS)


@pytest.fixture
def one_port(sys_root: Path) -> Path:
    """The folder of the only port, active at 4X NDR."""
    return fake_sysfs.port(fake_sysfs.device(sys_root, "mlx5_0"))
