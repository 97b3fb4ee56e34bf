"""The head's one SQLite file: events, decisions, ledger, audit, labels.

WAL, so that readers never wait for the writer; synchronous=FULL, so that what was committed
survives a power cut. Where two heads share the file it is a rollback journal instead. Each owner
makes its own tables with :meth:`Database.define`.

Source: https://www.sqlite.org/wal.html and https://www.sqlite.org/pragma.html
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from daemon.store.errors import StoreUnavailableError, unavailable
from daemon.store.swap import swap
from daemon.store.takeover import alone, take_from_frozen

log = logging.getLogger("tocsin.store")

BUSY_SECONDS = 10.0

_DAMAGED = "the file is damaged"

Row = sqlite3.Row
Parameters = Sequence[Any] | dict[str, Any]


class Database:
    """One SQLite file. Safe to use from several threads: each has a connection of its own."""

    def __init__(
        self,
        path: Path | str,
        read_only: bool = False,
        fence: Callable[[], str] | None = None,
    ) -> None:
        """``fence`` answers why this process must not write, where another may take over."""
        self.path = path
        self._fence = fence
        self.read_only = read_only
        self._local = threading.local()
        self._lock = threading.RLock()
        self._all: list[sqlite3.Connection] = []
        self._closed = False
        # A database in memory exists in one connection only, so all threads share it.
        self._shared: sqlite3.Connection | None = None
        if str(path) == ":memory:":
            self._shared = self._open()
        elif not read_only and fence is None:
            self._finish_repair(Path(path))
        elif not read_only and fence is not None:
            make_parent(Path(path))
            with alone(Path(path), BUSY_SECONDS):
                self._finish_repair(Path(path))
                take_from_frozen(Path(path), fence, BUSY_SECONDS)
        self.connection()

    @staticmethod
    def _finish_repair(path: Path) -> None:
        """A repair that was cut off while it swapped files is finished before anybody writes."""
        make_parent(path)
        try:
            if (aside := swap(path)) is not None:
                log.warning("%s: a repair was cut off; finished, the old one is %s", path, aside)
        except OSError as error:
            raise unavailable(error, path) from error

    def connection(self) -> sqlite3.Connection:
        """This thread's connection, with rows that know their column names."""
        if self._closed:
            raise StoreUnavailableError(f"database {self.path} is closed")
        if self._shared is not None:
            return self._shared
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = self._local.connection = self._open()
        return found

    def define(self, script: str) -> None:
        """Runs ``CREATE TABLE IF NOT EXISTS`` statements."""
        with self._lock, _told(self.path):
            self.connection().executescript(script)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One write transaction: all of it is durable on leaving, or on an error none of it.

        Transactions of one thread may be nested; the outermost one commits.
        """
        with self._lock, _told(self.path):
            connection = self.connection()
            if connection.in_transaction:
                yield connection
                return
            connection.execute("BEGIN IMMEDIATE")
            try:
                # Asked with the write lock in hand: nobody else can begin before this commits.
                self._ask_fence()
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()
            # Who stood still since then may have written to a file that was set aside.
            self._ask_fence()

    def _ask_fence(self) -> None:
        if self._fence is not None and (why := self._fence()):
            raise StoreUnavailableError(f"database {self.path}: this head stands by: {why}")

    def execute(self, statement: str, parameters: Parameters = ()) -> int:
        """Runs one statement in a transaction of its own; how many rows it changed."""
        with self.transaction() as connection:
            return connection.execute(statement, parameters).rowcount

    def query(self, statement: str, parameters: Parameters = ()) -> list[Row]:
        """The rows of one SELECT."""
        with self._guard(), _told(self.path):
            return self.connection().execute(statement, parameters).fetchall()

    def check(self) -> list[str]:
        """What is wrong with the file by SQLite's own word; empty when nothing is."""
        try:
            rows = self.query("PRAGMA integrity_check(20)")
        except StoreUnavailableError as error:
            return [str(error)]
        return [str(row[0]) for row in rows if row[0] != "ok"]

    def close(self) -> None:
        """Closes the connections of all threads."""
        with self._lock:
            self._closed = True
            for connection in self._all:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
            self._all.clear()

    def _guard(self) -> contextlib.AbstractContextManager[Any]:
        """Readers of a shared connection wait for its writer; others need not."""
        return self._lock if self._shared is not None else contextlib.nullcontext()

    def _open(self) -> sqlite3.Connection:
        with _told(self.path):
            if self.read_only:
                return self._open_to_read()
            target = ":memory:"
            if str(self.path) != target:
                target = f"file:{urllib.parse.quote(str(self.path))}"
            connection = sqlite3.connect(
                target,
                timeout=BUSY_SECONDS,
                isolation_level=None,  # transactions are begun where they are meant
                check_same_thread=False,
                uri=target.startswith("file:"),
            )
            connection.row_factory = sqlite3.Row
            # WAL wants shared memory, which two machines do not have.
            mode = "WAL" if self._fence is None else "TRUNCATE"
            connection.execute(f"PRAGMA journal_mode={mode}")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA foreign_keys=ON")
            connection.execute("PRAGMA wal_autocheckpoint=1000")
        with self._lock:
            self._all.append(connection)
        return connection

    def _open_to_read(self) -> sqlite3.Connection:
        """Also where nothing can be written: a full disk, a read-only one, a backup.

        WAL needs a file for shared memory, which SQLite makes. Where it cannot, nobody else can
        write either, and the file is read as it stands, without what is in the WAL alone.
        """
        name = f"file:{urllib.parse.quote(str(Path(self.path).absolute()))}"
        for options in ("mode=ro", "mode=ro&immutable=1"):
            connection = sqlite3.connect(
                f"{name}?{options}",
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                uri=True,
            )
            connection.row_factory = sqlite3.Row
            try:
                connection.execute("SELECT count(*) FROM sqlite_master")
                break
            except sqlite3.OperationalError as error:
                connection.close()
                self._raise_if_half_done(error)
                # Where somebody holds a lock, somebody may write: then it is not as it stands.
                if "immutable" in options or "locked" in str(error) or not Path(self.path).exists():
                    raise
        with self._lock:
            self._all.append(connection)
        return connection

    def _raise_if_half_done(self, error: sqlite3.Error) -> None:
        """Raises where the file as it stands is neither what was before a write nor after it."""
        journal = Path(f"{self.path}-journal")
        if "locked" in str(error) or not journal.exists() or not journal.stat().st_size:
            return
        raise StoreUnavailableError(
            f"database {self.path}: a head that ended in the middle of a write left half of it; "
            "the next one takes it back as it starts: start the head, then read"
        ) from error


def make_parent(path: Path) -> None:
    """The folder of ``path``. Raises StoreUnavailableError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unavailable(error, path) from error


def damaged(path: Path | str, what: str) -> StoreUnavailableError:
    """That the file holds what nobody can have written, and what to do."""
    return StoreUnavailableError(
        f"database {path}: {what}; {_DAMAGED}: stop the head, then run tocsin store repair"
    )


def is_damage(error: StoreUnavailableError) -> bool:
    """Whether it says that the file itself is damaged."""
    return _DAMAGED in str(error)


@contextlib.contextmanager
def _told(path: Path | str) -> Iterator[None]:
    """Turns SQLite's complaints about disk and file into words that say what to do."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except sqlite3.DatabaseError as error:
        text = str(error)
        advice = ""
        if "full" in text:
            advice = "; the disk is full: free space there"
        elif "readonly" in text or "read-only" in text:
            advice = "; the file or its file system is read-only"
        elif "malformed" in text or "not a database" in text:
            advice = f"; {_DAMAGED}: run tocsin store repair"
        elif "unable to open" in text:
            advice = "; the directory must exist and belong to the user that tocsin runs as"
        elif "disk I/O" in text:
            advice = "; the disk is full or fails: look at df and the kernel log"
        elif "locked" not in text:
            raise
        raise StoreUnavailableError(f"database {path}: {text}{advice}") from error
