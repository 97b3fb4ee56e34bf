"""``tocsin store``, ``import`` and ``export`` as people call them."""

import contextlib
import json
import os
import pwd
import tempfile
from pathlib import Path

import pytest

from collectors.sample import sample
from daemon.cli.main import main
from daemon.store.embedded import Store
from daemon.store.parts import all_parts
from daemon.store.tables import to_rows

START_NS = 1_780_000_000_000_000_000


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    store = Store(tmp_path / "store")
    store.append(
        sample("gpu", START_NS + n * 10**9, {"power_watts": float(n)}, node="n1", gpu="0", uuid="u")
        for n in range(100)
    )
    store.commit()
    store.roll(START_NS, everything=True)
    store.close()
    return tmp_path / "store"


def test_stats_verify_and_repair(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "stats", "--directory", str(filled), "--json"]) == 0
    (gpu,) = json.loads(capsys.readouterr().out)["measurements"]
    assert (gpu["measurement"], gpu["rows"], gpu["values"]) == ("gpu", 100, 100)
    assert main(["store", "verify", "--directory", str(filled)]) == 0
    assert capsys.readouterr().out == f"{filled}: no faults\n"
    victim = next(all_parts(filled / "parquet")).path
    victim.write_bytes(victim.read_bytes()[:100])
    assert main(["store", "verify", "--directory", str(filled)]) == 1
    assert "rows are lost" in capsys.readouterr().out
    assert main(["store", "repair", "--directory", str(filled)]) == 0
    assert "set aside" in capsys.readouterr().out
    main(["store", "verify", "--directory", str(filled), "--json"])
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["loses_rows"] is False


def test_what_is_no_store_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "stats", "--directory", str(tmp_path / "x")]) == 2
    assert main(["export", "--directory", str(tmp_path / "x"), "--out", str(tmp_path / "y")]) == 1
    assert capsys.readouterr().err.count("is no store") == 2
    assert not (tmp_path / "y").exists()


def test_repair_beside_a_running_head_is_refused(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(filled)
    assert main(["store", "repair", "--directory", str(filled)]) == 1
    assert "another process has it open" in capsys.readouterr().err
    store.close()


def test_export_then_import(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["export", "--directory", str(filled), "--out", out]) == 0
    other = str(tmp_path / "other")
    assert main(["import", "--directory", other, "--telemetry", out]) == 0
    assert capsys.readouterr().out.split() == ["100", "gpu"] * 2
    store = Store(tmp_path / "other")
    assert len(to_rows(store.read("gpu", 0, 2**62))) == 100
    store.close()
    later = ["--since", "2027-01-01", "--until", "2027-01-02T00:00:00+00:00"]
    assert main(["export", "--directory", other, "--out", str(tmp_path / "none"), *later]) == 3


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ([], "say what to import"),
        (["--map", "y.toml"], "needs the CSV files"),
        (["--map", "gwdg-tidy.toml", "x.csv"], "needs --out"),
        (["--map", "gwdg-tidy.toml", "--telemetry", "x"], "say one"),
        (["x.csv"], "go with --map"),
        (["--telemetry", "x", "--out", "y"], "go with --map"),
    ],
)
def test_wrong_usage_is_said_with_the_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: list[str], why: str
) -> None:
    assert main(["import", "--directory", str(tmp_path / "s"), *wrong]) == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: tocsin import")
    assert why in said
    assert not (tmp_path / "s").exists()


def test_what_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(tmp_path / "s")
    assert main(["import", "--directory", store, "--telemetry", str(tmp_path / "x")]) == 1
    assert str(tmp_path / "x") in capsys.readouterr().err
    assert main(["export", "--directory", store, "--out", str(tmp_path), "--since", "soon"]) == 2
    assert "no ISO time" in capsys.readouterr().err


def test_a_measured_fleets_csv_by_its_map_in_its_own_time_zone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Path(os.environ.get("TOCSIN_DATA", "../shared/data"))
    files = sorted(data.glob("gwdg-gpu/raw_sample/*gpu-lost*.csv.bz2"))
    if not files:
        pytest.skip(f"the GWDG files are not in {data} (set TOCSIN_DATA)")
    out, into = str(tmp_path / "t"), str(tmp_path / "s")
    assert main(["import", "--map", "gwdg-tidy.toml", "--out", out, str(files[0])]) == 0
    assert main(["import", "--directory", into, "--telemetry", out, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["gpu"] == 4504
    assert "set [store] keep_days" in said.err
    store = Store(tmp_path / "s")
    (event,) = store.events()
    # 2026-01-07 23:10 in Goettingen; the file calls its column timeUtc all the same.
    assert event.time_ns == 1_767_823_800 * 10**9
    assert (event.code, event.device) == ("79", "gpu3")
    store.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
@pytest.mark.parametrize("verb", ["repair", "import", "import into a new store"])
def test_root_leaves_nothing_that_the_heads_user_cannot_go_on_with(verb: str) -> None:
    owner = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory() as name:
        folder, directory = Path(name), Path(name) / "state" / "store"
        folder.chmod(0o755)
        directory.parent.mkdir()
        if not verb.endswith("new store"):
            with contextlib.closing(Store(directory)) as store:
                store.append([sample("gpu", START_NS, {"power_watts": 1.0}, node="n1", gpu="0")])
        for path in (directory.parent, *directory.parent.rglob("*")):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        (folder / "t").mkdir()
        (folder / "t" / "host.csv").write_text("time,node,load_1m\n2026-11-30,n1,1\n")
        words = ["import", "--telemetry", f"{folder}/t"]
        if verb == "repair":
            words = ["store", "repair"]
        assert main([*words, "--directory", str(directory)]) == 0
        made = [directory, *directory.rglob("*")]
        assert any(path.suffix == ".parquet" for path in made)
        assert [path for path in made if path.stat().st_uid != owner.pw_uid] == []
    assert os.geteuid() == 0
