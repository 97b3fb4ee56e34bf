"""Where a command is to write is asked before it works for an hour, and answered in words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from daemon.cli.main import main
from daemon.cli.places import left_in, unwritable


@pytest.fixture
def places(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("place", "folder", "words"),
    [
        ("new.html", False, ""),
        ("file", False, ""),
        ("folder", False, "is a folder"),
        ("none/new.html", False, "there is no folder"),
        ("file/new.html", False, "is no folder"),
        ("folder", True, ""),
        ("a/b/c", True, ""),
        ("file", True, "is no folder"),
        ("file/a/b", True, "is no folder"),
    ],
)
def test_what_cannot_be_written_is_known_before(
    places: Path, place: str, folder: bool, words: str
) -> None:
    told = unwritable(places / place, folder=folder)
    assert (words in told) if words else told == ""
    assert not (places / "a").exists()  # looking makes nothing


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_rights_is_told(places: Path) -> None:
    (places / "folder").chmod(0o500)
    assert "no right" in unwritable(places / "folder" / "x")


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "--nodes", "2", "--days", "0.01", "--out", "{}/file/x"),
        ("simulate", "--nodes", "2", "--days", "0.01", "--out", "/proc/nowhere"),
        ("evaluate", "--telemetry", "{}/folder", "--report", "{}/none/x.html"),
        ("train", "--telemetry", "{}/folder", "--out", "{}/file/x"),
        ("replay", "--telemetry", "{}/folder", "--out", "{}/none/x"),
    ],
)
def test_no_command_answers_with_a_traceback(
    places: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert main([word.format(places) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tocsin: ")


def test_what_is_left_out_in_vain_is_said() -> None:
    assert left_in(["gpu", "gpu:power_watts"], ["gpu", "event"]) == []
    (line,) = left_in(["gpus"], ["gpu", "event"])
    assert line == "note: --without gpus leaves nothing out: the tables are event, gpu"
