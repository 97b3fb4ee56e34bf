"""A damaged database is rebuilt, and a kill at any step loses neither the old nor the new one."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from collectors.sample import sample
from daemon.drains.ledger_schema import SCHEMA
from daemon.store.check import repair, verify
from daemon.store.database import Database
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError
from daemon.store.rebuild import rebuild_if_damaged
from daemon.store.swap import mended_path

PAGE = 4096
START_NS = 1_780_000_000 * 10**9
# Ends as "kill -9" does just before the call of os whose number is given.
CHILD = """
import os, signal, sys
from pathlib import Path
from daemon.store.rebuild import rebuild_if_damaged

left = [int(sys.argv[2])]

def deadly(call):
    def called(*words, **named):
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return call(*words, **named)
    return called

for name in ("fsync", "replace", "rename", "link", "unlink", "mkdir"):
    setattr(os, name, deadly(getattr(os, name)))
print("\\n".join(rebuild_if_damaged(Path(sys.argv[1]))))
"""


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose database has a damaged page, and its newest rows still in the WAL."""
    directory = tmp_path_factory.mktemp("whole")
    path = directory / "tocsin.sqlite"
    with closing(Database(path)) as database:
        database.define("CREATE TABLE words (number INTEGER PRIMARY KEY, text TEXT)")
        rows = [(number, f"{number} " + "x" * 500) for number in range(200)]
        with database.transaction() as connection:
            connection.executemany("INSERT INTO words VALUES (?, ?)", rows)
        database.query("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("INSERT INTO words VALUES (1000, 'in the WAL')")
        kept = tmp_path_factory.mktemp("damaged")
        for one in directory.glob("tocsin.sqlite*"):
            shutil.copy(one, kept / one.name)
    data = bytearray((kept / "tocsin.sqlite").read_bytes())
    middle = len(data) // PAGE // 2
    data[middle * PAGE : (middle + 1) * PAGE] = b"\xff" * PAGE
    (kept / "tocsin.sqlite").write_bytes(bytes(data))
    assert (kept / "tocsin.sqlite-wal").stat().st_size > 0
    return kept


def words(path: Path) -> set[int]:
    with closing(Database(path, read_only=True)) as database:
        return {row["number"] for row in database.query("SELECT number FROM words")}


def test_rows_on_both_sides_of_the_damage_come_back_and_the_newest_with_them(
    damaged: Path, tmp_path: Path
) -> None:
    shutil.copytree(damaged, tmp_path / "s")
    (done,) = rebuild_if_damaged(tmp_path / "s" / "tocsin.sqlite")
    found = words(tmp_path / "s" / "tocsin.sqlite")
    assert found >= {0, 1, 198, 199, 1000}
    assert len(found) >= 190
    assert f"{len(found)} rows could be read" in done


def test_a_kill_at_any_step_of_the_swap_loses_nothing(damaged: Path, tmp_path: Path) -> None:
    shutil.copytree(damaged, tmp_path / "once")
    rebuild_if_damaged(tmp_path / "once" / "tocsin.sqlite")
    expected = words(tmp_path / "once" / "tocsin.sqlite")
    for step in range(100):
        directory = tmp_path / f"{step}"
        shutil.copytree(damaged, directory)
        path = directory / "tocsin.sqlite"
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(path), str(step)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert path.exists(), "at no moment is there no database"
        if done.returncode == 0:
            assert step > 8
            return
        assert done.returncode == -signal.SIGKILL, done.stderr
        if step % 2 or not mended_path(path).exists():
            rebuild_if_damaged(path)
        else:  # the head starts instead of a second repair: it finishes the swap
            Database(path).close()
        assert words(path) == expected
        with closing(sqlite3.connect(path)) as plain:
            assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        kept = [one.read_bytes() for one in (directory / "damaged").iterdir()]
        assert [b"\xff" * PAGE in one for one in kept] == [True], "the damaged file is kept, once"
        assert not mended_path(path).exists()
    pytest.fail("it never came to its end")


def test_a_swap_that_was_cut_off_is_said_by_verify(damaged: Path, tmp_path: Path) -> None:
    with closing(Store(tmp_path)):
        pass
    shutil.copy(tmp_path / "tocsin.sqlite", mended_path(tmp_path / "tocsin.sqlite"))
    (finding,) = verify(tmp_path)
    assert "a repair was cut off" in finding.text
    assert any("finished a repair" in line for line in repair(tmp_path))
    assert [str(one) for one in verify(tmp_path) if "set aside" not in one.text] == []


def test_a_ledger_comes_back_with_what_guards_it(tmp_path: Path) -> None:
    path = tmp_path / "tocsin.sqlite"
    with closing(Store(tmp_path)) as store:
        store.database.define(SCHEMA)
        store.database.define("CREATE TABLE filler (text TEXT)")
        with store.database.transaction() as connection:
            connection.executemany("INSERT INTO filler VALUES (?)", [("y" * 500,)] * 100)
            names = [row[1] for row in connection.execute("PRAGMA table_info(audit)")]
            marks = ", ".join("?" * len(names))
            connection.execute(f"INSERT INTO audit VALUES ({marks})", range(len(names)))
    data = bytearray(path.read_bytes())
    data[-4 * PAGE : -3 * PAGE] = b"\xff" * PAGE
    path.write_bytes(bytes(data))
    assert any("rebuilt" in line for line in repair(tmp_path))
    with closing(Store(tmp_path)) as store:
        assert len(store.database.query("SELECT * FROM audit")) == 1
        with pytest.raises(sqlite3.IntegrityError):
            store.database.execute("DELETE FROM audit")


def test_a_disk_that_is_full_while_mending_is_said_and_leaves_the_old_one(
    damaged: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        for one in damaged.iterdir():
            shutil.copy(one, small / one.name)
        with pytest.raises(StoreUnavailableError, match=r"full|No space"):
            repair(small)
        assert b"\xff" * PAGE in (small / "tocsin.sqlite").read_bytes()
        assert not mended_path(small / "tocsin.sqlite").exists()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_row_that_nobody_can_have_written_is_damage_and_is_mended(tmp_path: Path) -> None:
    """As a flipped bit in a record's header leaves it: no number where there must be one."""
    store = Store(tmp_path)
    store.append([sample("gpu", START_NS, {"power_watts": 1.0}, node="n1")], ("n1", "abc", 7))
    store.append([sample("gpu", START_NS + 1, {"power_watts": 1.0}, node="n2")], ("n2", "def", 9))
    store.commit()
    store.roll(START_NS, everything=True)
    store.close()
    with closing(sqlite3.connect(tmp_path / "tocsin.sqlite")) as one:
        one.execute("PRAGMA writable_schema=ON")
        one.execute(
            "UPDATE sqlite_master SET sql = replace(sql, 'sequence INTEGER NOT NULL',"
            " 'sequence INTEGER         ')"
        )
        one.commit()
    with closing(sqlite3.connect(tmp_path / "tocsin.sqlite")) as one:
        one.execute("UPDATE batches SET sequence = NULL WHERE node = 'n1'")
        one.execute("PRAGMA writable_schema=ON")
        one.execute(
            "UPDATE sqlite_master SET sql = replace(sql, 'sequence INTEGER         ',"
            " 'sequence INTEGER NOT NULL')"
        )
        one.commit()
    with pytest.raises(StoreUnavailableError, match=r"damaged: .* tocsin store repair"):
        Store(tmp_path)
    assert any("rebuilt tocsin.sqlite" in line for line in repair(tmp_path))
    store = Store(tmp_path)
    assert store.marks.seen("n2", "def", 9)
    assert not store.marks.seen("n1", "abc", 7)
    store.close()
