"""``tocsin capture``: the whole command, with tools that print what real ones printed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from collectors.anonymise import Anonymiser
from collectors.parsers import PARSERS
from daemon.cli.main import main

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
FABRIC = ["ibnetdiscover", "iblinkinfo-l", "ibqueryerrors", "ibqueryerrors-counters"]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with one tool on it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    tool = folder / "ibnetdiscover"
    tool.write_text(f"#!/bin/sh\n/bin/cat {FIXTURES}/ib/ibnetdiscover.txt\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return tool


def test_a_fabric_is_captured_without_names_and_still_read(
    tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["capture", "--out", str(out), "--only", "ib*"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"ibnetdiscover.txt +ended +\d+ bytes, \d+ names replaced", told)
    assert re.search(r"iblinkinfo.txt +missing", told)
    cleaned = (out / "ibnetdiscover.txt").read_text()
    assert "gpu-0" not in cleaned
    assert "mlx5_0" in cleaned
    index = {one["parser"]: one for one in json.loads((out / "commands.json").read_text())}
    assert index["ibnetdiscover"]["status"] == "ended"
    assert main(["capture", "--out", str(out)]) == 2, "it wrote into an older capture"


@pytest.mark.parametrize("name", FABRIC)
def test_a_cleaned_fabric_is_the_same_fabric(name: str) -> None:
    text = (FIXTURES / "ib" / f"{name}.txt").read_text()
    anonymiser = Anonymiser(b"a key of this test")
    cleaned = anonymiser.text(anonymiser.descriptions(text))
    parser = PARSERS[name.split("-")[0]]
    before, after = (parser(one, "", 1) for one in (text, cleaned))
    assert [dict(one.fields) for one in before[0] if one.measurement != "event"] == [
        dict(one.fields) for one in after[0] if one.measurement != "event"
    ]
    assert len(before[0]) == len(after[0])
    assert len(before[1]) == len(after[1])
    assert "gpu-0" not in cleaned
    assert "leaf-" not in cleaned


def test_nothing_to_capture_is_no_success(tools: Path, tmp_path: Path) -> None:
    assert main(["capture", "--out", str(tmp_path / "o"), "--only", "ipmi*"]) == 1
    assert main(["capture", "--out", str(tmp_path / "p"), "--only", "nothing"]) == 2
    assert main(["capture", "--list"]) == 0


def test_without_a_name_the_folder_is_made_where_one_is(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["capture"]) == 0
    (folder,) = tmp_path.glob("tocsin-capture-*")
    assert (folder / "ibnetdiscover.txt").stat().st_size > 0
