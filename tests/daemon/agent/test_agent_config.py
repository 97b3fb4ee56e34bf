"""The agent reads its own part of the configuration and loads nothing of the head's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from daemon.agent.config import read_agent
from daemon.settings import ConfigError


def write(folder: Path, text: str) -> Path:
    token = folder / "token"
    token.write_text("t\n")
    token.chmod(0o600)
    path = folder / "tocsin.toml"
    path.write_text(text.replace("TOKEN", str(token)))
    return path


AGENT = '[agent]\nnode = "n1"\n[agent.uplink]\ntoken_file = "TOKEN"\n'


def test_a_file_for_an_agent_alone_is_read(tmp_path: Path) -> None:
    assert read_agent(write(tmp_path, AGENT)).node == "n1"


def test_in_a_file_for_both_the_heads_sections_are_checked_as_well(tmp_path: Path) -> None:
    assert read_agent(write(tmp_path, AGENT + '[slurm]\ncluster = "c"\n')).node == "n1"
    with pytest.raises(ConfigError, match=r"slurm\.clustre"):
        read_agent(write(tmp_path, AGENT + '[slurm]\nclustre = "c"\n'))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[agnet]\n", "agnet: unknown key; did you mean"),
        ("[agent]\nnoed = 1\n", "agent.noed: unknown key; did you mean"),
        ("[agent.sources.nvml]\nperiod_seconds = 0\n", "agent.sources.nvml.period_seconds"),
        ("[agent]\n", "agent.uplink.token_file: is required"),
        ("[agent", "is not valid TOML"),
    ],
)
def test_every_fault_is_told_in_the_same_words(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        read_agent(write(tmp_path, text))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_agent(tmp_path / "none.toml")


def test_the_agent_loads_nothing_that_only_the_head_needs(tmp_path: Path) -> None:
    path = write(tmp_path, AGENT)
    code = (
        "import sys, daemon.cli.agent as agent\n"
        f"agent.read_agent(__import__('pathlib').Path({str(path)!r}))\n"
        "print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    heavy = {"numpy", "pyarrow", "sklearn", "sqlite3", "daemon.config", "daemon.gate.gateway"}
    heavy |= {
        "aiohttp.web",
        "collectors.bmc.redfish",
        "collectors.ib.fabric",
        "collectors.bmc.ipmi_lan",
    }
    assert sorted(heavy & loaded) == []
    assert not [name for name in loaded if name.startswith(("models.", "daemon.store"))]
