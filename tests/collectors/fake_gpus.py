"""Eight GPUs on the fake NVML library, which the real nvidia-ml-py loads unchanged."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "testbed" / "fake-nvml"


class FakeGpus:
    """The state file that the fake library reads anew on every call."""

    def __init__(self, folder: Path, libraries: Path) -> None:
        self.state = folder / "gpus.ini"
        self.library_folder = str(libraries / "lib")
        self.old_library_folder = str(libraries / "lib-old")
        self._base = (SOURCE / "h100x8.ini").read_text(encoding="utf-8")
        self.write()

    def write(self, extra: str = "") -> None:
        """Eight healthy boards and what ``extra`` says; its sections win."""
        new = self.state.with_suffix(".new")
        new.write_text(self._base + extra, encoding="utf-8")
        new.rename(self.state)

    def unload_driver(self) -> None:
        """Without its state file the library says that no driver is loaded."""
        self.state.unlink()


@pytest.fixture(scope="session")
def nvml_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both builds of the fake library, built once a session outside the checkout."""
    if shutil.which("make") is None or shutil.which("gcc") is None:
        pytest.skip("needs make and gcc to build the fake NVML library")
    folder = tmp_path_factory.mktemp("fake-nvml")
    for name in ("Makefile", "fakenvml.c"):
        shutil.copy(SOURCE / name, folder / name)
    subprocess.run(["make", "-s", "-C", str(folder)], check=True, timeout=120)
    return folder


def fake_gpus(
    tmp_path: Path, nvml_libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeGpus]:
    """Eight healthy GPUs; the worker finds their state file by the environment."""
    made = FakeGpus(tmp_path, nvml_libraries)
    monkeypatch.setenv("FAKE_NVML_STATE", str(made.state))
    yield made
