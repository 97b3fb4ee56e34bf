"""The benchmarks run, small: what they write must be what they say."""

import http.server
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from daemon.bench import peers
from daemon.bench.figures import Figure, percentile
from daemon.bench.gateway import bench_gateway
from daemon.bench.load import NAMES, Fleet
from daemon.bench.peers import bench_peers
from daemon.bench.returning import bench_return
from daemon.bench.store import bench_sqlite, bench_store
from daemon.cli.main import main


def by_name(figures: list[Figure]) -> dict[str, float]:
    return {figure.name: figure.value for figure in figures}


def test_a_fleets_readings_have_45_fields_and_are_the_same_for_a_seed() -> None:
    assert len(set(NAMES)) == 45
    first, second = [list(Fleet(3, seed=5).samples(2)) for _ in range(2)]
    assert first == second
    assert len(first[0]) == 24
    assert len({(s.tags, s.time_ns) for batch in first for s in batch}) == 48


def test_the_store_and_sqlite_are_measured(tmp_path: Path) -> None:
    found = by_name(list(bench_store(tmp_path / "s", nodes=20, steps=3)))
    assert found["store: values written"] == 20 * 8 * 45 * 3
    assert 0 < found["store: bytes on disk"] < 10
    assert by_name(list(bench_sqlite(tmp_path / "q", nodes=5, steps=2)))["SQLite: sustained"] > 0


@pytest.mark.slow
def test_the_gateway_is_measured(tmp_path: Path) -> None:
    found = by_name(list(bench_gateway(tmp_path / "g", nodes=10, steps=2)))
    assert found["gateway: 10 nodes, values taken"] == 10 * 8 * 45 * 2


@pytest.mark.slow
def test_agents_that_return_are_measured_and_each_batch_arrives_once(
    tmp_path: Path,
) -> None:
    found = by_name(list(bench_return(tmp_path / "r", nodes=6, batches=2, spread_seconds=1.0)))
    assert found["return of 6 agents: batches that did not arrive once"] == 0
    assert found["return of 6 agents: most connections open at once"] >= 1
    assert found["return of 6 agents: a severe event meanwhile, p50"] > 0


def test_servers_that_are_not_installed_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert list(bench_peers(tmp_path)) == []


class Busy(http.server.BaseHTTPRequestHandler):
    """A server that says what InfluxDB says beside a snapshot, ``refusals`` times."""

    refusals = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        refused = Busy.refusals > 0
        Busy.refusals -= refused
        self.send_response(500 if refused else 204)
        self.end_headers()
        self.wfile.write(b'{"error":"timeout"}' if refused else b"")


@pytest.mark.parametrize(("refusals", "gives_up"), [(2, False), (1000, True)])
def test_a_server_that_is_too_busy_is_asked_again_and_quoted_when_it_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int, gives_up: bool
) -> None:
    monkeypatch.setattr(peers, "_PAUSE_SECONDS", 0.0)
    Busy.refusals = refusals
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    process = subprocess.Popen(["sleep", "600"])
    try:
        url = f"http://127.0.0.1:{server.server_port}/write?db=x"
        peer = peers.Peer("it", url, process, tmp_path, lambda: None)
        found = by_name(list(peers._measure(peer, nodes=3, steps=2)))
    finally:
        process.kill()
        process.wait()
        server.shutdown()
        server.server_close()
    if gives_up:
        assert found == {'it: gave up (it answers 500: {"error":"timeout"}) after': 0}
    else:
        assert found["it: writes that it was too busy for"] == 2
        assert found["it: sustained"] > 0


def test_what_a_server_takes_of_the_disk_is_what_it_wrote(tmp_path: Path) -> None:
    with open(tmp_path / "index", "wb") as file:
        file.truncate(4_000_000)
    (tmp_path / "data").write_bytes(os.urandom(100_000))
    assert 100_000 <= peers._tree_bytes(tmp_path) < 500_000


def test_the_percentile_is_a_value_that_was_there() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([], 0.99) == 0.0


def test_bench_prints_each_figure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_STILL_SECONDS", 1.0)
    assert main(["bench", "store", "--nodes", "5", "--steps", "2", "--json"]) == 0
    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {f["name"] for f in figures} >= {"store: bytes on disk", "SQLite: sustained"}
    assert main(["bench", "store", "--nodes", "0"]) == 2
