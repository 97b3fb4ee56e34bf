"""Rebuilds a damaged database from every row of it that can still be read."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daemon.frames import sync_directory
from daemon.store.database import Database
from daemon.store.errors import StoreUnavailableError, unavailable
from daemon.store.swap import mended_path, swap, unfinished_path


def rebuild_if_damaged(path: Path) -> list[str]:
    """Copies what can be read into a new file when SQLite finds faults; what was done.

    Needs the store for itself. Raises StoreUnavailableError; it may be cut off anywhere and run
    again.
    """
    try:
        return _rebuild_if_damaged(path)
    except OSError as error:
        raise unavailable(error, path) from error
    except sqlite3.Error as error:
        raise StoreUnavailableError(f"database {path} cannot be rebuilt: {error}") from error


def _rebuild_if_damaged(path: Path) -> list[str]:
    done: list[str] = []
    if (aside := swap(path)) is not None:
        done.append(f"finished a repair of {path.name} that was cut off; the old one is {aside}")
    if not path.exists():
        return done
    try:
        database = Database(path)
        faults = database.check()
        database.close()
    except StoreUnavailableError as error:
        faults = [str(error)]
    if not faults:
        return done
    fresh = unfinished_path(path)
    for extra in ("", "-journal"):  # a journal of an earlier one would undo this one
        fresh.with_name(fresh.name + extra).unlink(missing_ok=True)
    copied = _copy_rows(path, fresh)
    with open(fresh, "ab") as file:
        os.fsync(file.fileno())
    fresh.replace(mended_path(path))
    sync_directory(path.parent)
    swap(path)
    done.append(f"rebuilt {path.name} ({faults[0][:100]}): {copied} rows could be read")
    return done


def _copy_rows(source: Path, target: Path) -> int:
    old = sqlite3.connect(source, isolation_level=None)
    new = sqlite3.connect(target, isolation_level=None)
    copied = 0
    try:
        old.text_factory = lambda raw: raw.decode("utf-8", "replace")
        try:
            objects = old.execute(
                "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"
                " AND name NOT LIKE 'sqlite_%'"
            ).fetchall()
        except sqlite3.DatabaseError:
            return 0
        new.execute("BEGIN")
        for name, sql in [(name, sql) for kind, name, sql in objects if kind == "table"]:
            new.execute(sql)
            copied += _copy_table(old, new, name)
        # After the rows: a trigger needs its table, and guards it against what we do.
        for sql in [sql for kind, _, sql in objects if kind != "table"]:
            with contextlib.suppress(sqlite3.DatabaseError):  # its owner makes it again
                new.execute(sql)
        new.execute("COMMIT")
    finally:
        old.close()
        new.close()
    return copied


def _copy_table(old: sqlite3.Connection, new: sqlite3.Connection, name: str) -> int:
    """Rows from the first on to the damage, then from the last back to it: the newest count."""
    quoted = '"' + name.replace('"', '""') + '"'
    copied = 0
    for order in ("", " ORDER BY rowid DESC"):
        rows = _Readable(old, f"SELECT * FROM {quoted}{order}")  # noqa: S608 (its own list)
        for row in rows:
            marks = ", ".join("?" * len(row))
            statement = f"INSERT OR IGNORE INTO {quoted} VALUES ({marks})"  # noqa: S608
            copied += new.execute(statement, row).rowcount
        if rows.whole:
            break
    return copied


class _Readable:
    """Rows until one cannot be read. What goes wrong while writing them is not its matter."""

    def __init__(self, connection: sqlite3.Connection, statement: str) -> None:
        self._connection = connection
        self._statement = statement
        self.whole = False

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        try:
            cursor = self._connection.execute(self._statement)
        except sqlite3.DatabaseError:
            return  # no row can be read (or, backwards, the table has no rowid)
        while True:
            try:
                row = cursor.fetchone()
            except sqlite3.DatabaseError:
                return
            if row is None:
                break
            yield row
        self.whole = True
