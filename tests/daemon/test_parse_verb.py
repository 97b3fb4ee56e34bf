"""``tocsin parse`` for somebody who uses it the first time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from collectors.capture import COMMANDS
from collectors.parsers import PARSERS, PRINTED_BY
from daemon.cli.main import main
from daemon.cli.parse import looks_like

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
TABLE = str(FIXTURES / "gpu/smi/table_418.txt")


def test_help_says_for_each_source_what_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["parse", "--help"])
    out = capsys.readouterr().out
    assert sorted(PRINTED_BY) == sorted(PARSERS)
    assert all(f"  {name} " in out and words in out for name, words in PRINTED_BY.items())
    captured = {(one.parser, one.argv[0]) for one in COMMANDS if one.parser}
    assert all(PRINTED_BY[parser].startswith(program) for parser, program in captured)


def test_a_file_in_the_place_of_the_source_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parse", TABLE]) == 2
    assert f"tocsin parse nvidia-smi {TABLE}" in capsys.readouterr().err


def test_a_misspelt_source_is_answered_with_its_like(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parse", "ipmitool-sdrs", TABLE]) == 2
    assert "did you mean ipmitool-sdr" in capsys.readouterr().err


def test_the_text_of_another_tool_is_recognised(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parse", "nvidia-smi-xml", TABLE, "--node", "n1"]) == 3
    out, err = capsys.readouterr()
    assert "problem" in json.loads(out)
    assert err == "tocsin: it looks like the text of: nvidia-smi\n"


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ib/ibstat-healthy.txt", "ibstat"),
        ("gpu/smi/q-x_v12_570.xml", "nvidia-smi-xml"),
        ("gpu/dcgm/dmon_4.6.txt", "dcgmi-dmon"),
        ("kernel/system.log", "kernel-log"),
        ("host/ras-mc-ctl-full-errors.txt", "rasdaemon"),
    ],
)
def test_the_texts_of_many_tools_are_recognised(path: str, source: str) -> None:
    other = "rdma-link" if source != "rdma-link" else "ibstat"
    assert looks_like((FIXTURES / path).read_bytes(), other) == [source]


def test_noise_looks_like_nothing() -> None:
    assert looks_like(b"\x00\xff no tool prints this", "ibstat") == []
