"""The names of the ledger's cases, kept at hand: what is new is read, not all of them each time."""

from __future__ import annotations

from daemon.policy.cases import CASE_KEEP_NS
from daemon.policy.names import Names
from daemon.store.database import Database

# So often all are read anew, and those that nobody has met for long are left out.
_ANEW_NS = 86_400 * 1_000_000_000


class Met:
    """The names of one database, as of each moment that is asked for."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._names = Names()
        self._read_ns: int | None = None
        self._row = 0

    def names(self, now_ns: int) -> Names:
        """Of cases seen within a month before ``now_ns``, and of some that are older."""
        if self._read_ns is None or not 0 <= now_ns - self._read_ns < _ANEW_NS:
            self._names, self._read_ns, self._row = Names(), now_ns, 0
        since_ns = now_ns - CASE_KEEP_NS
        rows = self._database.query(
            "SELECT rowid AS row, id FROM cases WHERE rowid > ? AND updated_ns >= ?",
            (self._row, since_ns),
        )
        self._names.add(row["id"] for row in rows)
        self._row = max((row["row"] for row in rows), default=self._row)
        return self._names
