"""Where a real pyslurm is for the tests, and pretended ones that misbehave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def real_pyslurm() -> Path:
    """The folder of a pyslurm that fits the testbed's Slurm; skips where there is none."""
    named = os.environ.get("TOCSIN_TEST_PYSLURM", "")
    if os.environ.get("TOCSIN_TEST_SLURM") and not named:
        pytest.skip("TOCSIN_TEST_PYSLURM names no pyslurm that fits TOCSIN_TEST_SLURM")
    folder = Path(named) if named else Path(__file__).parents[3] / ".cache" / "pyslurm"
    if not (folder / "pyslurm").is_dir():
        pytest.skip(
            f"no pyslurm in {folder}: PyPI has none for Slurm 22.05; docs/slurm.md tells how to "
            "build it (TOCSIN_TEST_PYSLURM names another folder)"
        )
    return folder


PRETENDED = Path(__file__).parent / "pretended"


def pretended_pyslurm(monkeypatch: pytest.MonkeyPatch, folder: Path, fault: str = "") -> Path:
    """The folder of a pretended pyslurm over four nodes kept in ``folder``.

    ``fault`` is ``PLACE:WHAT``: at ``import``, ``load`` or ``modify`` it will ``freeze``,
    ``exit``, ``segfault``, ``babble`` ... as ``pretended/pyslurm`` tells.
    """
    monkeypatch.setenv("PRETENDED_PYSLURM_NODES", str(folder / "nodes.json"))
    monkeypatch.setenv("PRETENDED_PYSLURM_FAULT", fault)
    return PRETENDED
