"""Takes a database from a head that stands still within a transaction.

A head that is frozen (a paused machine, a process that was stopped, a write that never comes back
from the disk) keeps SQLite's lock for as long as it stands still, and nobody else can write. Its
lease has run out by then, so the head that took over copies the file with its journal, lets
SQLite undo what was half done in the copy, and puts that in the place of the old one. The old
files are set aside: whoever wakes up goes on in those, where nobody looks any more.

Who takes over may be frozen as well, and wake up between any two of its steps: it would put an old
copy in the place of what a third one has written since, or take that one's journal away. So all of
it is done with a lock in hand. While it is held no other head begins: somebody must end that
process, for no check right before a renaming can be part of it.

Source: https://www.sqlite.org/atomiccommit.html (4.2, hot rollback journals)
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import sqlite3
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

from daemon.store.errors import StoreUnavailableError, unavailable
from daemon.store.swap import mended_path, swap, unfinished_path

log = logging.getLogger("tocsin.store")

# Files that belong together: the database itself and what SQLite keeps beside it.
_PARTS = ("", "-journal", "-wal")
_TRIES = 3
_LOCK_FILE = "takeover.lock"
_LOOK_SECONDS = 0.05

Stamp = tuple[tuple[int, int, int] | None, ...]


@contextlib.contextmanager
def alone(path: Path, busy_seconds: float) -> Iterator[None]:
    """While this is held no other head swaps the files of ``path``, or opens them to write.

    Raises StoreUnavailableError where another one holds it for longer than ``busy_seconds``.
    """
    lock = path.with_name(_LOCK_FILE)
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise unavailable(error, lock) from error
    try:
        _wait_for(handle, path, busy_seconds)
        yield
    finally:
        os.close(handle)


def _wait_for(handle: int, path: Path, busy_seconds: float) -> None:
    until = time.monotonic() + busy_seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= until:
                raise StoreUnavailableError(
                    f"database {path}: another head stands still in the middle of taking it over, "
                    "and could undo what is written from now on when it wakes up: end that process"
                ) from error
            time.sleep(_LOOK_SECONDS)
        except OSError as error:
            raise unavailable(error, path.with_name(_LOCK_FILE)) from error
        else:
            return


def take_from_frozen(path: Path, fence: Callable[[], str], busy_seconds: float) -> None:
    """Makes ``path`` free to write where a process that must not write any more keeps it locked.

    Call it within :func:`alone`. Waits ``busy_seconds`` for SQLite's lock first. ``fence`` answers
    why this process itself must not write. Raises StoreUnavailableError.
    """
    if not path.exists() or not _is_locked(path, busy_seconds):
        return
    for _ in range(_TRIES):
        if why := fence():
            raise StoreUnavailableError(f"database {path}: this head stands by: {why}")
        try:
            if not _copied(path):
                continue
            if why := fence():  # who stood still itself while it copied takes nothing either
                raise StoreUnavailableError(f"database {path}: this head stands by: {why}")
            unfinished_path(path).replace(mended_path(path))
            aside = swap(path)
        except OSError as error:
            raise unavailable(error, path) from error
        finally:
            with contextlib.suppress(OSError):
                _remove_copy(path)  # half a copy on a full disk makes that no better
        log.warning("%s: taken from a head that stands still; what it held is %s", path, aside)
        return
    raise StoreUnavailableError(f"database {path}: another process still writes to it; end that")


def _is_locked(path: Path, busy_seconds: float) -> bool:
    try:
        with contextlib.closing(
            sqlite3.connect(path, timeout=busy_seconds, isolation_level=None)
        ) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.DatabaseError as error:
        return "locked" in str(error)  # whatever else it is, opening it says so
    return False


def _copied(path: Path) -> bool:
    """Whether a whole copy now stands unfinished; False when the files moved meanwhile."""
    fresh = unfinished_path(path)
    _remove_copy(path)
    before = _stamp(path)
    for extra in _PARTS:
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(_beside(path, extra), _beside(fresh, extra))
    shutil.copymode(path, fresh)  # who could read it before still can
    if _stamp(path) != before:
        return False
    # Never made here: an empty file would be a whole database as well.
    name = f"file:{urllib.parse.quote(str(fresh.absolute()))}?mode=rw"
    try:
        with contextlib.closing(sqlite3.connect(name, isolation_level=None, uri=True)) as one:
            one.execute("PRAGMA journal_mode=DELETE")  # undoes what was half done
            (found,) = one.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        found = str(error)
        if "full" in found or "disk I/O" in found or "unable to open" in found:
            raise StoreUnavailableError(
                f"database {path}: another process keeps it locked, and the copy of it that a "
                f"takeover needs cannot be made ({found}): free space there"
            ) from error
    if found != "ok":
        raise StoreUnavailableError(
            f"database {path}: another process keeps it locked, and a copy of it is damaged "
            f"({found}): end that process, then run tocsin store repair"
        )
    with open(fresh, "ab") as file:
        os.fsync(file.fileno())
    return True


def _remove_copy(path: Path) -> None:
    for extra in (*_PARTS, "-shm"):
        _beside(unfinished_path(path), extra).unlink(missing_ok=True)


def _stamp(path: Path) -> Stamp:
    """What changes when somebody writes."""
    found: list[tuple[int, int, int] | None] = []
    for extra in _PARTS:
        # Opened, for that is when NFS asks the server and does not tell what it remembers.
        try:
            with open(_beside(path, extra), "rb") as file:
                one = os.fstat(file.fileno())
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((one.st_ino, one.st_size, one.st_mtime_ns))
    return tuple(found)


def _beside(path: Path, extra: str) -> Path:
    return path.with_name(path.name + extra)
