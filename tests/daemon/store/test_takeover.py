"""A database whose lock a head keeps that stands still within a transaction."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import daemon.store.database as module
from collectors.sample import sample
from daemon.store.database import Database
from daemon.store.embedded import Store, take_lock
from daemon.store.errors import StoreUnavailableError

# Writes five rows for good, then stands still within a transaction; goes on when it is told.
# A cache of a page makes SQLite write to the database itself before the commit, under the lock
# that keeps readers out as well.
_CHILD = """
import sqlite3, sys
path, cache_pages = sys.argv[1:]
one = sqlite3.connect(path, isolation_level=None)
one.execute("PRAGMA journal_mode=TRUNCATE")
one.execute("PRAGMA synchronous=FULL")
one.execute(f"PRAGMA cache_size={cache_pages}")
one.execute("CREATE TABLE t (who TEXT, pad TEXT)")
one.executemany("INSERT INTO t VALUES ('kept', ?)", [("x" * 3000,)] * 5)
one.execute("BEGIN IMMEDIATE")
one.execute("UPDATE t SET who = 'half done'")
one.executemany("INSERT INTO t VALUES ('half done', ?)", [("y" * 3000,)] * 200)
print("within", flush=True)
sys.stdin.readline()
one.execute("COMMIT")
print("done", flush=True)
"""


# Takes over, and stands still right before the given step of it.
_TAKER = """
import os, signal, sys
from pathlib import Path
import daemon.store.database as module
module.BUSY_SECONDS = 0.2
left = int(sys.argv[2])
def stops(call):
    def step(*words):
        global left
        left -= 1
        if not left:
            print("within", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        return call(*words)
    return step
os.link = stops(os.link)
for name in ("replace", "rename"):
    setattr(Path, name, stops(getattr(Path, name)))
database = module.Database(Path(sys.argv[1]), fence=lambda: "")
print(len(database.query("SELECT who FROM t")), flush=True)
"""


@pytest.fixture
def stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.2)
    children: list[subprocess.Popen[str]] = []

    def start(cache_pages: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(tmp_path / "tocsin.sqlite"), cache_pages],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "within\n"
        child.send_signal(signal.SIGSTOP)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            pipe.close()


def wakes(child: subprocess.Popen[str]) -> str:
    child.send_signal(signal.SIGCONT)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return child.stdout.readline()


@pytest.mark.parametrize("cache_pages", ["2000", "1"])
def test_it_is_taken_with_all_that_was_durable_and_nothing_of_what_was_half_done(
    tmp_path: Path,
    stopped: Callable[[str], subprocess.Popen[str]],
    caplog: pytest.LogCaptureFixture,
    cache_pages: str,
) -> None:
    child = stopped(cache_pages)
    path = tmp_path / "tocsin.sqlite"
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite3.connect(path, timeout=0.1).execute("INSERT INTO t VALUES ('', '')")
    with caplog.at_level(logging.WARNING, "tocsin.store"):
        database = Database(path, fence=lambda: "")
    assert "taken from a head that stands still" in caplog.text
    assert [row[0] for row in database.query("SELECT who FROM t")] == ["kept"] * 5
    database.execute("INSERT INTO t VALUES ('after', '')")

    assert wakes(child) == "done\n"  # in a file of its own
    database.execute("INSERT INTO t VALUES ('after', '')")
    assert database.check() == []
    told = [row[0] for row in database.query("SELECT who FROM t")]
    assert told == ["kept"] * 5 + ["after"] * 2
    database.close()
    again = Database(path, fence=lambda: "")
    assert len(again.query("SELECT who FROM t")) == 7
    again.close()


def test_a_lock_that_is_let_go_of_in_time_is_waited_for(
    tmp_path: Path,
    stopped: Callable[[str], subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = stopped("2000")
    monkeypatch.setattr(module, "BUSY_SECONDS", 60.0)
    assert wakes(child) == "done\n"
    database = Database(tmp_path / "tocsin.sqlite", fence=lambda: "")
    assert {row[0] for row in database.query("SELECT who FROM t")} == {"half done"}
    assert not (tmp_path / "damaged").exists()
    database.close()


@pytest.mark.parametrize(
    "fence", [None, lambda: "another head holds the lease"], ids=["alone", "stands by"]
)
def test_who_may_not_write_takes_nothing(
    tmp_path: Path,
    stopped: Callable[[str], subprocess.Popen[str]],
    fence: Callable[[], str] | None,
) -> None:
    child = stopped("1")
    path = tmp_path / "tocsin.sqlite"
    inode = path.stat().st_ino
    with pytest.raises(StoreUnavailableError, match=r"locked|stands by"):
        Database(path, fence=fence).execute("INSERT INTO t VALUES ('', '')")
    assert path.stat().st_ino == inode
    assert wakes(child) == "done\n"


def test_a_take_over_that_was_cut_off_is_finished_by_the_next(
    tmp_path: Path,
    stopped: Callable[[str], subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped("1")
    path = tmp_path / "tocsin.sqlite"

    def cut(self: Path, target: Path) -> Path:
        if target == path:
            raise KeyboardInterrupt
        return rename(self, target)

    rename = Path.replace
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", cut)
        with pytest.raises(KeyboardInterrupt):
            Database(path, fence=lambda: "")
    database = Database(path, fence=lambda: "")
    assert [row[0] for row in database.query("SELECT who FROM t")] == ["kept"] * 5
    database.execute("INSERT INTO t VALUES ('after', '')")
    database.close()


def test_half_a_write_is_not_read_as_if_it_stood(
    tmp_path: Path, stopped: Callable[[str], subprocess.Popen[str]]
) -> None:
    """Whoever only reads cannot take it back, and must not show it."""
    child = stopped("1")
    path = tmp_path / "tocsin.sqlite"
    child.kill()
    child.wait()
    with pytest.raises(StoreUnavailableError, match="half of it"):
        Database(path, read_only=True)
    Database(path, fence=lambda: "").close()
    reader = Database(path, read_only=True)
    assert [row[0] for row in reader.query("SELECT who FROM t")] == ["kept"] * 5
    reader.close()


def test_a_head_that_stood_still_itself_while_it_copied_takes_nothing(
    tmp_path: Path, stopped: Callable[[str], subprocess.Popen[str]]
) -> None:
    stopped("1")
    path = tmp_path / "tocsin.sqlite"
    inode = path.stat().st_ino
    words = iter(["", "another head holds the lease"])
    with pytest.raises(StoreUnavailableError, match="stands by"):
        Database(path, fence=lambda: next(words))
    assert path.stat().st_ino == inode
    assert not list(tmp_path.glob(".tocsin*")), "nobody finishes what was given up"


def test_a_copy_that_another_head_removed_is_no_empty_database(
    tmp_path: Path,
    stopped: Callable[[str], subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped("1")
    path = tmp_path / "tocsin.sqlite"
    inode = path.stat().st_ino
    copy = shutil.copymode

    def removed(source: Path, target: Path) -> None:
        copy(source, target)
        target.unlink()

    monkeypatch.setattr(shutil, "copymode", removed)
    with pytest.raises(StoreUnavailableError):
        Database(path, fence=lambda: "")
    assert path.stat().st_ino == inode


def test_a_full_disk_is_told_as_one_and_gets_no_fuller(
    tmp_path: Path,
    stopped: Callable[[str], subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped("1")
    path = tmp_path / "tocsin.sqlite"

    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(StoreUnavailableError, match=r"No space left.*free space there"):
        Database(path, fence=lambda: "")
    assert not list(tmp_path.glob(".tocsin*"))


def test_who_could_read_the_file_before_still_can(
    tmp_path: Path, stopped: Callable[[str], subprocess.Popen[str]]
) -> None:
    stopped("1")
    path = tmp_path / "tocsin.sqlite"
    path.chmod(0o664)
    Database(path, fence=lambda: "").close()
    assert path.stat().st_mode & 0o777 == 0o664


def test_a_head_that_lost_its_lease_while_it_wrote_calls_nothing_durable(tmp_path: Path) -> None:
    """It may have stood still in between, and have written where nobody reads any more."""
    words = iter(["", "another head holds the lease"])
    database = Database(tmp_path / "one.sqlite", fence=lambda: next(words))
    with (
        pytest.raises(StoreUnavailableError, match="this head stands by"),
        database.transaction() as connection,
    ):
        connection.execute("CREATE TABLE t (who TEXT)")
    database.close()


def test_a_frame_whose_writer_lost_its_lease_meanwhile_is_not_acknowledged(tmp_path: Path) -> None:
    lost = False

    def fence() -> str:
        return "another head holds the lease" if lost else ""

    store = Store(tmp_path / "store", fence=fence)
    append = store._writer.append

    def freezes(payload: bytes, size_bytes: int, now_ns: int) -> None:
        nonlocal lost
        append(payload, size_bytes, now_ns)
        lost = True

    store._writer.append = freezes  # type: ignore[method-assign]
    store.append([sample("host", 1_796_000_000 * 10**9, {"load_1m": 1.0}, node="n1")])
    with pytest.raises(StoreUnavailableError, match="this head stands by"):
        store.commit()
    assert store.counts.failed_commits == 1
    lost = False
    store.close()


@pytest.mark.parametrize("then", ["wakes up", "is killed"])
@pytest.mark.parametrize("step", ["1", "2", "4", "5"])
def test_nobody_writes_where_a_head_stands_still_within_its_takeover(
    tmp_path: Path, stopped: Callable[[str], subprocess.Popen[str]], step: str, then: str
) -> None:
    """On waking up it would put its copy in the place of what was written since."""
    frozen = stopped("1")
    path = tmp_path / "tocsin.sqlite"
    with subprocess.Popen(
        [sys.executable, "-c", _TAKER, str(path), step], stdout=subprocess.PIPE, text=True
    ) as taker:
        assert taker.stdout is not None
        assert taker.stdout.readline() == "within\n"
        with pytest.raises(StoreUnavailableError, match="in the middle of taking it over"):
            Database(path, fence=lambda: "")
        if then == "wakes up":
            taker.send_signal(signal.SIGCONT)
            assert taker.stdout.readline() == "5\n"
        else:
            taker.kill()
        taker.wait()
    database = Database(path, fence=lambda: "")
    database.execute("INSERT INTO t VALUES ('after', '')")
    assert wakes(frozen) == "done\n"
    told = [row[0] for row in database.query("SELECT who FROM t")]
    assert told == ["kept"] * 5 + ["after"]
    assert database.check() == []
    database.close()


def test_a_lock_that_was_taken_and_then_let_go_of_is_not_the_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opened it before another head took it must not pass for the one that writes."""
    old = take_lock(tmp_path)
    flock = fcntl.flock
    new: list[int] = []

    def taken_meanwhile(handle: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        new.append(take_lock(tmp_path, fence=lambda: ""))
        os.close(old)
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", taken_meanwhile)
    with pytest.raises(StoreUnavailableError, match="another process has it open"):
        take_lock(tmp_path)
    os.close(new[0])
    os.close(take_lock(tmp_path))
