"""``tocsin diagnose ib``: the whole command against a simulated fabric, and its judgement alone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collectors.ib.fabric import STATE_FILE, FabricSource
from daemon.cli.diagnose import options, reach_of
from daemon.cli.main import main
from daemon.config import Config
from daemon.sources import make_all
from models.diagnosis import Evidence, LinkEvidence, diagnose, report_lines, usual_rate
from models.links import End, LinkView, Part
from tests.testbed.ib import fake_sysfs
from tests.testbed.ib.fabric import Fabric, missing


@pytest.fixture
def own(
    ib_start: Callable[..., Fabric], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Fabric]]:
    def start(*arguments: str) -> Fabric:
        fabric = ib_start(*arguments)
        for name, value in fabric.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(fabric.directory)
        return fabric

    yield start
    monkeypatch.undo()


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    """One fabric for the tests of this file that break no link."""
    if missing():
        pytest.skip(missing())
    made = Fabric(tmp_path_factory.mktemp("ib"), "--hosts", "8", "--slow", "gpu-0003:1xQDR")
    yield made
    made.stop()


@pytest.fixture
def shared(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fabric]:
    for name, value in fabric.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(fabric.directory)
    yield fabric
    monkeypatch.undo()


def ask(capsys: pytest.CaptureFixture[str], node: str, *more: str) -> tuple[int, str]:
    code = main(["diagnose", "ib", node, "--seconds", "0", *more])
    return code, capsys.readouterr().out


def test_a_node_is_diagnosed_from_both_ends_over_the_fabric(
    shared: Fabric, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = ask(capsys, "gpu-0002")
    assert code == 0, text
    assert "nothing is wrong with the 1 InfiniBand ports of gpu-0002" in text
    assert "leaf-0-0 port 2 Active/LinkUp 4X EDR (100 Gb/s)" in text

    code, text = ask(capsys, "gpu-0003")
    assert code == 1
    assert "[BAD ] width and rate    1X QDR (10 Gb/s), others have 100 Gb/s" in text
    assert "-> cable (likely)" in text

    shared.counters("S-leaf-0-0", 2, LinkDownedCounter=3)
    code, text = ask(capsys, "gpu-0002")
    assert code == 0
    assert "of unknown age, not growing: link_downs 3" in text

    code, raw = ask(capsys, "gpu-0002", "--json")
    assert json.loads(raw)["links"][0]["placement"]["part"] == "none"

    code, text = ask(capsys, "gpu-9999")
    assert code == 3
    assert "no InfiniBand port of gpu-9999 could be looked at" in text

    shared.manager("stop")
    try:
        code, text = ask(capsys, "gpu-0002")
    finally:
        shared.manager("start")
    assert code == 1
    assert "the links are sound, but" in text
    assert "[BAD ] subnet manager" in text


def test_a_dead_link_is_found_by_the_cabling_that_the_head_remembers(
    own: Callable[..., Fabric], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fabric = own("--hosts", "4")
    state = tmp_path / "fabric"
    state.mkdir()
    rows = [["0xfc6a1c0300200000", 4, "gpu-0004", "mlx5_0", "0xb8cef60300100031", 1, "leaf-0-0"]]
    (state / "cabling.json").write_text(json.dumps({"ib": rows}))
    fabric.console('Unlink "H-gpu-0004-r0"[1]')
    config = tmp_path / "tocsin.toml"
    config.write_text(f'[head]\nstate_dir = "{tmp_path}"\n[head.sources.fabric]\n')
    code, text = ask(capsys, "gpu-0004", "--config", str(config))
    assert code == 1
    assert "leaf-0-0 port 4 Down/Polling" in text
    assert "-> host (open)" in text


def test_every_rail_of_the_configuration_is_read_and_one_that_fails_is_said(
    shared: Fabric, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "tocsin.toml"
    config.write_text(
        '[[head.sources.fabric.subnets]]\nname = "rail0"\n'
        '[[head.sources.fabric.subnets]]\nname = "rail1"\nadapter = "nosuch0"\n'
    )
    code, text = ask(capsys, "gpu-0002", "--config", str(config))
    assert code == 0, text
    assert "leaf-0-0 port 2 Active/LinkUp" in text
    assert "Not seen: the fabric: rail1:" in text


def test_what_the_head_remembers_is_where_the_head_keeps_it(tmp_path: Path) -> None:
    config = Config.model_validate(
        {"head": {"state_dir": str(tmp_path), "sources": {"fabric": {}}}}
    )
    (source,) = make_all(config.head.sources, "head", config.head.state_dir)
    parser = argparse.ArgumentParser()
    options(parser, "diagnose")
    reach = reach_of(parser.parse_args(["ib", "n1"]), config.head)
    assert isinstance(source, FabricSource)
    assert source._path == reach.state_dir / STATE_FILE


def test_errors_that_grow_while_it_watches_are_placed(
    shared: Fabric, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(seconds: float) -> None:
        assert seconds == 5.0
        shared.counters("S-leaf-0-0", 2, SymbolErrorCounter=400)
        shared.counters("H-gpu-0002-r0", 1, SymbolErrorCounter=90)

    monkeypatch.setattr("daemon.cli.diagnose.sleep", meanwhile)
    code = main(["diagnose", "ib", "gpu-0002"])
    text = capsys.readouterr().out
    assert code == 1
    assert "symbol_errors +400 in 5 s (the receiver saw broken symbols)" in text
    assert "-> cable (likely): both ends receive spoilt packets" in text


def test_on_the_node_itself_its_own_end_and_ipoib_are_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = fake_sysfs.device(tmp_path / "sys", "mlx5_0")
    place = fake_sysfs.port(folder)
    net = fake_sysfs.interface(tmp_path / "sys", folder, "ib0", ipoib=True, operstate="up")
    here = ("--local", "--no-fabric", "--root", str(tmp_path))
    code, text = ask(capsys, "gpu-0001", *here)
    assert code == 0, text
    assert "[ ok ] IPoIB             ib0 up" in text
    fake_sysfs.put(net / "operstate", "down")
    code, text = ask(capsys, "gpu-0001", *here)
    assert code == 1
    assert "the links are sound, but: ib0 down" in text
    fake_sysfs.put(place / "state", "2: INIT")
    code, text = ask(capsys, "gpu-0001", *here)
    assert code == 1
    assert "[BAD ] configured        the link is up, but no subnet manager configured it" in text


def test_where_nothing_can_be_seen_it_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, text = ask(capsys, "gpu-0001", "--root", str(tmp_path))
    assert code == 3
    assert "Not seen: the fabric: " in text
    assert main(["diagnose", "ib", "n1", "--description", "("]) == 2


def test_the_surest_of_several_faults_is_the_conclusion() -> None:
    up = {"state": 4.0, "physical_state": 5.0, "rate_bits_per_second": 400e9}
    polling = {"state": 1.0, "physical_state": 2.0}
    disabled = {"state": 1.0, "physical_state": 3.0}
    links = (
        LinkEvidence("mlx5_0/1", LinkView(End(up, heard=True), End(up, heard=True))),
        LinkEvidence("mlx5_1/1", LinkView(End(polling, heard=True), End(polling, heard=True))),
        LinkEvidence("mlx5_2/1", LinkView(End(polling, heard=True), End(disabled, heard=True))),
    )
    report = diagnose(Evidence("n1", links, True, "answers", ("mlx5_core: Link down",)))
    assert report.healthy is False
    assert report.conclusion.startswith("mlx5_2/1: the switch is disabled")
    assert report.conclusion.endswith("(2 of 3 ports)")
    assert [link.placement.part for link in report.links] == [
        Part.NONE,
        Part.CABLE,
        Part.SWITCH_PORT,
    ]
    assert any("mlx5_core: Link down" in line for line in report_lines(report))


def test_where_few_hosts_share_a_switch_the_fabric_is_the_measure(
    own: Callable[..., Fabric], capsys: pytest.CaptureFixture[str]
) -> None:
    fabric = own("--hosts", "16", "--slow", "gpu-0003:1xQDR")
    fabric.console('Unlink "H-gpu-0004-r0"[1]')
    code, text = ask(capsys, "gpu-0003")
    assert "of 3 hosts on leaf-0-0" in text
    assert code == 1
    assert "[BAD ] width and rate    1X QDR (10 Gb/s), others have 100 Gb/s" in text
    # A counter that is full says nothing of now.
    fabric.counters("S-leaf-0-0", 2, LinkDownedCounter=255, SymbolErrorCounter=65535)
    code, text = ask(capsys, "gpu-0002")
    assert "not growing" not in text
    assert "link_downs, symbol_errors at the ceiling: whether they grow cannot be seen" in text
    # One that is down and that nobody has seen before.
    code, text = ask(capsys, "gpu-0004")
    assert code == 3
    assert "no sweep has seen before is seen on gpu-0004 only" in text


def test_the_usual_rate_needs_a_clear_majority() -> None:
    assert usual_rate([400e9] * 3 + [200e9], 0.75) == 0.0
    assert usual_rate([400e9] * 7 + [200e9], 0.75) == 400e9
    assert usual_rate([]) == 0.0
    assert usual_rate([400e9, 400e9]) == 0.0
    assert usual_rate([400e9, 200e9, 400e9, 200e9, 100e9]) == 0.0
    assert usual_rate([400e9] * 3 + [200e9]) == 400e9
