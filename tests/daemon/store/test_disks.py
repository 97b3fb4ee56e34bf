"""What people can do with a store on a disk that is full, read-only, or not theirs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from collectors.sample import sample
from daemon.cli.main import main
from daemon.store.check import repair, verify
from daemon.store.database import Database
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError
from daemon.store.parts import all_parts

START_NS = 1_796_000_000 * 10**9


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with rows in Parquet and in the spool, and an event."""
    directory = tmp_path_factory.mktemp("whole") / "store"
    with closing(Store(directory)) as store:
        store.append(
            sample("gpu", START_NS + n * 10**9, {"power_watts": float(n)}, node="n1", gpu="0")
            for n in range(200)
        )
        text = {"text": "fell off the bus", "severity": 3.0}
        store.append([sample("event", START_NS, text, node="n1", kind="xid", code="79")])
        store.commit()
        store.roll(START_NS, everything=True)
        store.append([sample("gpu", START_NS + 1, {"power_watts": 2.0}, node="n2", gpu="0")])
        store.commit()
    return directory


@contextmanager
def disk(at: Path, size: str) -> Iterator[Path]:
    at.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(at)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=False)


@pytest.fixture(params=["read-only", "full"])
def hard(request: pytest.FixtureRequest, whole: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the store where nothing can be written."""
    with disk(tmp_path / "disk", "2m") as at:
        shutil.copytree(whole, at / "store")
        if request.param == "full":
            with open(at / "filler", "wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4096)):
                    pass
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(at)], check=True)
        yield at / "store"


def test_what_only_reads_works_where_nothing_can_be_written(
    hard: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--directory", str(hard)]
    assert main(["store", "verify", *where]) == 0
    assert capsys.readouterr().out == f"{hard}: no faults\n"
    assert main(["store", "stats", *where]) == 0
    assert ", 1 events" in capsys.readouterr().out
    assert main(["export", *where, "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.split() == ["1", "event", "201", "gpu"]


@pytest.mark.parametrize("verb", ["repair", "import", "export"])
def test_what_has_to_write_says_in_one_line_why_it_cannot(
    hard: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    where = ["--directory", str(hard)]
    words = {
        "repair": ["store", "repair", *where],
        "import": ["import", *where, "--telemetry", str(tmp_path / "t")],
        "export": ["export", "--directory", str(whole), "--out", str(hard.parent / "out")],
    }[verb]
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "host.csv").write_text("time,node,load_1m\n2026-11-30,n1,1\n")
    assert main(words) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "read-only" in said or "full" in said or "No space left" in said
    assert not list(hard.parent.glob("out/*"))


def test_a_limit_of_who_looks_is_no_fault_of_a_file(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, tmp_path / "store")
    files = {part.path for part in all_parts(tmp_path / "store" / "parquet")}

    def starved(path: Path, *words: object, **named: object) -> None:
        error = OSError(24, os.strerror(24))
        raise StoreUnavailableError("too many open files") from error

    with monkeypatch.context() as inside:
        inside.setattr("daemon.store.check.read_part", starved)
        with pytest.raises(StoreUnavailableError, match=r"cannot be looked at: .*Too many open"):
            repair(tmp_path / "store")
    assert {part.path for part in all_parts(tmp_path / "store" / "parquet")} == files
    assert list(verify(tmp_path / "store")) == []


def test_a_database_of_somebody_else_is_not_called_damaged(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, tmp_path / "store")

    def denied(*words: object, **named: object) -> Database:
        raise StoreUnavailableError("database tocsin.sqlite: unable to open database file")

    monkeypatch.setattr("daemon.store.check.Database", denied)
    (finding,) = verify(tmp_path / "store")
    assert not finding.loses_rows
    assert main(["store", "stats", "--directory", str(tmp_path / "store")]) == 0


def test_odd_characters_in_a_directory_lead_to_no_other_file(tmp_path: Path) -> None:
    odd = tmp_path / "a?mode=memory&b#c%41"
    with closing(Store(odd)) as store:
        store.database.define("CREATE TABLE words (word TEXT)")
    assert (odd / "tocsin.sqlite").stat().st_size > 0
    with closing(Database(odd / "tocsin.sqlite", read_only=True)) as database:
        assert database.query("SELECT * FROM words") == []
