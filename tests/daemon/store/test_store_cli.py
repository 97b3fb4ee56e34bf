"""``tocsin store``, ``import`` and ``export`` as people call them."""

import json
import os
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
    assert main(["store", "stats", "--store", str(filled), "--json"]) == 0
    (gpu,) = json.loads(capsys.readouterr().out)["measurements"]
    assert (gpu["measurement"], gpu["rows"], gpu["values"]) == ("gpu", 100, 100)
    assert main(["store", "verify", "--store", str(filled)]) == 0
    assert capsys.readouterr().out == f"{filled}: sound\n"
    victim = next(all_parts(filled / "parquet")).path
    victim.write_bytes(victim.read_bytes()[:100])
    assert main(["store", "verify", "--store", str(filled)]) == 1
    assert "DAMAGE" in capsys.readouterr().out
    assert main(["store", "repair", "--store", str(filled)]) == 0
    assert "set aside" in capsys.readouterr().out
    assert main(["store", "verify", "--store", str(filled), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["loses_rows"] is False


def test_what_is_no_store_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "stats", "--store", str(tmp_path / "x")]) == 2
    assert main(["export", "--store", str(tmp_path / "x"), "--out", str(tmp_path / "y")]) == 2
    assert capsys.readouterr().err.count("is no store") == 2
    assert not (tmp_path / "y").exists()


def test_repair_beside_a_running_head_is_refused(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(filled)
    assert main(["store", "repair", "--store", str(filled)]) == 2
    assert "another process has it open" in capsys.readouterr().err
    store.close()


def test_export_then_import(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["export", "--store", str(filled), "--out", out]) == 0
    other = str(tmp_path / "other")
    assert main(["import", "--store", other, "--telemetry", out]) == 0
    assert capsys.readouterr().out == "gpu: 100 rows\n" * 2
    store = Store(tmp_path / "other")
    assert len(to_rows(store.read("gpu", 0, 2**62))) == 100
    store.close()
    later = ["--from", "2027-01-01", "--to", "2027-01-02T00:00:00Z"]
    assert main(["export", "--store", other, "--out", str(tmp_path / "none"), *later]) == 3


@pytest.mark.parametrize("wrong", [[], ["--telemetry", "x", "--map", "y"], ["--map", "y.toml"]])
def test_wrong_usage_is_said(tmp_path: Path, wrong: list[str]) -> None:
    assert main(["import", "--store", str(tmp_path / "s"), *wrong]) == 2


def test_a_measured_fleets_csv_by_its_map_in_its_own_time_zone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Path(os.environ.get("TOCSIN_DATA", "../shared/data"))
    files = sorted(data.glob("gwdg-gpu/raw_sample/*gpu-lost*.csv.bz2"))
    if not files:
        pytest.skip(f"the GWDG files are not in {data} (set TOCSIN_DATA)")
    store_arguments = ["--store", str(tmp_path / "s"), "--map", "gwdg-tidy.toml"]
    assert main(["import", *store_arguments, str(files[0])]) == 0
    assert "gpu: 4504 rows" in capsys.readouterr().out
    store = Store(tmp_path / "s")
    (event,) = store.events()
    # 2026-01-07 23:10 in Goettingen; the file calls its column timeUtc all the same.
    assert event.time_ns == 1_767_823_800 * 10**9
    assert (event.code, event.device) == ("79", "gpu3")
    store.close()
