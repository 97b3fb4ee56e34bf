"""``tocsin audit`` as an operator calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daemon.cli.main import main
from tests.collectors.node.test_pcie import Tree
from tests.collectors.recorded_tool import PROGRAM, RecordedTool, recorded_tool

MATRIX = (
    "\tGPU0\tGPU1\tGPU2\tNIC0\tNUMA Affinity\n"
    "GPU0\t X \tNV18\tNV18\tPIX\t0\n"
    "GPU1\tNV18\t X \tSYS\tPIX\t0\n"
    "GPU2\tNV18\tSYS\t X \tPIX\t0\n"
    "NIC0\tPIX\tPIX\tPIX\t X \t\n"
)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedTool:
    return recorded_tool(tmp_path, monkeypatch)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tree = Tree(tmp_path / "root")
    tree.add("0000:1b:00.0", "0x030200")
    return tree.root


def audit(root: Path, *more: str) -> int:
    return main(["audit", "--root", str(root), *more])


def test_a_node_that_is_as_it_should_be(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(root, "--nvidia-smi", "") == 0
    assert "signature 1x gpu 10de:2330; tree " in capsys.readouterr().out


def test_a_pair_without_its_nvlinks_is_a_fault(
    root: Path, tool: RecordedTool, capsys: pytest.CaptureFixture[str]
) -> None:
    tool.answer("topo -m", MATRIX)
    assert audit(root, "--nvidia-smi", PROGRAM) == 1
    assert "FAULT   gpu1  mesh: GPU1 and GPU2: SYS where others have NV18" in (
        capsys.readouterr().out
    )
    assert audit(root, "--nvidia-smi", PROGRAM, "--json") == 1
    assert [one["code"] for one in json.loads(capsys.readouterr().out)["faults"]] == ["mesh"]


def test_a_tool_that_fails_is_no_fault_of_the_node(
    root: Path, tool: RecordedTool, capsys: pytest.CaptureFixture[str]
) -> None:
    tool.answer("topo -m", "Failed to initialize NVML: Unknown Error\n", 255)
    assert audit(root, "--nvidia-smi", PROGRAM) == 0
    assert "were not looked at" in capsys.readouterr().out


def test_a_node_without_devices_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(tmp_path, "--nvidia-smi", "") == 3
    assert "no GPU and no network card" in capsys.readouterr().out
