"""A Slurm whose JSON plugin is not installed (Debian splits plugins) is read as text, or named."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.command import Runner
from collectors.slurm.faults import SlurmTrouble
from collectors.slurm.reader import SlurmReader, Tools
from collectors.slurm.source import Options
from daemon.slurm.cli import CliAdapter

FIXTURES = Path(__file__).parents[2] / "fixtures/slurm"
# What 23.02 to 24.11 say, and 25.05 and later.
SAID = (
    "scontrol: fatal: JSON plugin load failure",
    "scontrol: fatal: serializer_required: could not find plugin for application/json",
)


class Slurm:
    """Commands of a Slurm without the plugin, in a folder; counts its calls."""

    def __init__(self, folder: Path, said: str, text: str) -> None:
        self.folder = folder
        self._text = folder / "nodes.txt"
        self.show(text)
        self.calls = folder / "calls"
        for name in ("scontrol", "sinfo"):
            tool = folder / name
            tool.write_text(
                f'#!/bin/sh\necho "{name} $*" >>{self.calls}\n'
                f'case "$*" in *--json*) echo "{said}" >&2; exit 1;; esac\n'
                f'case "$*" in *version*) echo "slurm 25.11.7"; exit 0;; esac\n'
                f"cat {self._text}\n"
            )
            tool.chmod(0o755)

    def show(self, text: str) -> None:
        self._text.write_text(text)

    def reader(self) -> SlurmReader:
        return SlurmReader(Tools(binaries=self.folder), Runner())


@pytest.fixture(params=SAID)
def slurm(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    text = (FIXTURES / "25.11/scontrol-nodes.txt").read_text()
    return Slurm(tmp_path, request.param, text)


def test_its_text_is_read_and_says_what_the_json_of_the_same_version_says(slurm: Slurm) -> None:
    reader = slurm.reader()
    nodes, problems = reader.nodes()
    assert problems == []
    assert len(nodes) > 1
    assert reader.without_json
    before = slurm.calls.read_text().count("\n")
    assert reader.nodes()[0] == nodes
    assert slurm.calls.read_text().count("\n") == before + 1, "one request a reading"
    name = sorted(nodes)[0]
    assert reader.nodes([name])[0] == {name: nodes[name]}


def test_a_text_that_can_be_read_in_two_ways_is_not_read_and_the_package_is_named(
    slurm: Slurm,
) -> None:
    clear = (FIXTURES / "25.11/scontrol-nodes.txt").read_text()
    hostile = clear.replace(" CfgTRES=", " State=IDLE CfgTRES=", 1)
    slurm.show(hostile)
    reader = slurm.reader()
    for _ in range(2):
        with pytest.raises(SlurmTrouble, match="slurm-wlm-basic-plugins") as caught:
            reader.nodes()
        assert caught.value.kind == "plugin"
    slurm.show(clear)
    assert reader.nodes()[0], "read again as soon as it is clear"


def test_check_says_so(slurm: Slurm) -> None:
    lines = CliAdapter(Options(binaries=slurm.folder)).describe()
    assert any("JSON plugin is not here" in line and "read as text" in line for line in lines)
