"""A program that prints recorded answers, for tools whose hardware is not here."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

PROGRAM = str(Path(__file__).resolve().parents[1] / "testbed/recorded-tool")


class RecordedTool:
    """The folder of answers that the program reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def answer(self, arguments: str, text: str, code: int = 0) -> None:
        """What it prints and how it ends for these arguments."""
        name = hashlib.md5(arguments.encode()).hexdigest()
        (self.folder / name).write_text(text, encoding="utf-8")
        (self.folder / f"{name}.code").write_text(str(code), encoding="utf-8")

    def hang(self, seconds: float) -> None:
        """From now on every call takes so long."""
        (self.folder / "delay").write_text(str(seconds), encoding="utf-8")

    def calls(self) -> list[str]:
        """The arguments of every call so far."""
        path = self.folder / "calls"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def recorded_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedTool:
    """An empty folder of answers, which the program finds by its environment."""
    made = RecordedTool(tmp_path / "recorded")
    monkeypatch.setenv("RECORDED_FOLDER", str(made.folder))
    return made
