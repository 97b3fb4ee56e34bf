"""``tocsin query`` against a real InfluxDB 1.6.7, and where there is none."""

import json
from pathlib import Path

import pytest

from daemon.cli.main import main
from tests.testbed.store.servers import Influx1

START_NS = 1_780_000_000_000_000_000


def config(folder: Path, url: str) -> str:
    file = folder / "tocsin.toml"
    file.write_text(f'[influxdb]\nurl = "{url}"\nbucket = "asked"\n')
    return str(file)


def test_a_question_is_answered_as_a_table_or_as_json(
    tmp_path: Path, influx1: Influx1, capsys: pytest.CaptureFixture[str]
) -> None:
    influx1.create("asked")
    rows = [f"gpu,node=n{n} power_watts={n}.5 {START_NS + n}" for n in range(2)]
    influx1.write("asked", "\n".join([*rows, f'event,node=n1 text="a\tb; c" {START_NS}']).encode())
    file = config(tmp_path, influx1.url)
    question = "SELECT power_watts FROM gpu GROUP BY node"
    assert main(["query", "--config", file, question]) == 0
    out = capsys.readouterr().out
    assert "gpu, node=n1\ntime                            power_watts\n" in out
    assert "2026-05-28T20:26:40.000000001Z  1.5" in out
    assert main(["query", "--config", file, "--json", question]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["results"][0]["series"][1]["values"] == [[START_NS + 1, 1.5]]
    assert main(["query", "--config", file, "SELECT text FROM event WHERE text != '; into '"]) == 0
    assert "a b; c" in capsys.readouterr().out
    assert main(["query", "--config", file, "SELECT FROM"]) == 1
    assert "error parsing query" in capsys.readouterr().err


def test_statements_that_change_something_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config(tmp_path, "http://127.0.0.1:9")
    for statement in (
        "DROP DATABASE a",
        "SELECT a FROM b; DELETE FROM b",
        "SELECT a into c FROM b",
        "",
    ):
        assert main(["query", "--config", file, statement]) == 2
        assert "only SELECT, SHOW and EXPLAIN" in capsys.readouterr().err


def test_a_server_that_is_away_is_said_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", "--config", config(tmp_path, "http://127.0.0.1:9"), "SHOW SERVERS"]) == 3
    assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err
    assert main(["query", "--config", config(tmp_path, ""), "SHOW SERVERS"]) == 2
    assert "no InfluxDB is configured" in capsys.readouterr().err


@pytest.mark.parametrize(
    "hidden",
    [
        "SELECT a /* ' */ INTO copied FROM asked /* ' */",
        "SELECT a FROM asked WHERE b =~ /'/; DROP DATABASE asked; SELECT a FROM c WHERE b =~ /'/",
        "SELECT a FROM asked -- '\n; DROP DATABASE asked -- '",
        "SELECT a FROM asked WHERE b = 'x; DROP DATABASE asked",
        'SELECT a FROM /"/; DROP DATABASE asked; SELECT a FROM /"/',
    ],
)
def test_nothing_that_changes_can_be_hidden(
    tmp_path: Path, influx1: Influx1, capsys: pytest.CaptureFixture[str], hidden: str
) -> None:
    influx1.create("asked")
    influx1.write("asked", f'asked a=1,b="x" {START_NS}'.encode())
    assert main(["query", "--config", config(tmp_path, influx1.url), hidden]) == 2
    assert capsys.readouterr().err.startswith("tocsin: ")
    names = influx1.query("asked", "SHOW MEASUREMENTS")["results"][0]["series"][0]["values"]
    assert ["asked"] in names
    assert ["copied"] not in names


def test_slashes_are_divisions_and_regular_expressions_all_the_same(
    tmp_path: Path, influx1: Influx1, capsys: pytest.CaptureFixture[str]
) -> None:
    influx1.create("slashes")
    influx1.write("slashes", f"gpu,node=n1 a=3 {START_NS}".encode())
    file = tmp_path / "tocsin.toml"
    file.write_text(f'[influxdb]\nurl = "{influx1.url}"\nbucket = "slashes"\n')
    for question in (
        "SELECT a / 2 FROM gpu WHERE node = 'n1'",
        "SELECT a FROM /gp./ WHERE node =~ /^n[0-9]$/",
    ):
        assert main(["query", "--config", str(file), question]) == 0, capsys.readouterr().err
    assert "1.5" in capsys.readouterr().out
