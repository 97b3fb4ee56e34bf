"""The fake NVML library does what its README says, through the real nvidia-ml-py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.collectors.fake_gpus import SOURCE


@pytest.mark.parametrize("build", ["lib", "lib-old"])
def test_the_fake_library_keeps_its_promises(nvml_libraries: Path, build: str) -> None:
    answer = subprocess.run(
        [sys.executable, str(SOURCE / "check.py"), str(nvml_libraries / build)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("ok ")
