"""Events in SQLite, beside their Parquet: found by node and kind without reading any file.

Every ``event`` sample lands here once, however often it is replayed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from collectors.sample import Sample
from daemon.store.database import Database, damaged

log = logging.getLogger("tocsin.store")

_PIECE_ROWS = 10_000
_TABLE = """
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY,
    time_ns INTEGER NOT NULL,
    node TEXT NOT NULL,
    kind TEXT NOT NULL,
    code TEXT NOT NULL,
    device TEXT NOT NULL,
    severity REAL NOT NULL,
    text TEXT NOT NULL,
    process TEXT NOT NULL,
    pid REAL,
    UNIQUE (node, time_ns, kind, code, device, text)
);
CREATE INDEX IF NOT EXISTS events_by_time ON events (time_ns);
CREATE TABLE IF NOT EXISTS batches (
    node TEXT NOT NULL,
    instance TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    seen_ns INTEGER NOT NULL,
    PRIMARY KEY (node, instance)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One event as the store keeps it."""

    id: int
    time_ns: int
    node: str
    kind: str
    code: str
    device: str
    severity: float
    text: str
    process: str
    pid: float | None


class EventTable:
    """The events of the store."""

    def __init__(self, database: Database) -> None:
        self.database = database
        if not database.read_only:
            database.define(_TABLE)

    def add(self, samples: Iterable[Sample]) -> int:
        """Adds ``event`` samples; how many were new."""
        rows = [
            (
                sample.time_ns,
                *(_plain(sample.tag(name)) for name in ("node", "kind", "code")),
                _plain(sample.text("device")),
                sample.number("severity") or 0.0,
                _plain(sample.text("text")),
                _plain(sample.text("process")),
                sample.number("pid"),
            )
            for sample in samples
        ]
        if not rows:
            return 0
        with self.database.transaction() as connection:
            before = connection.total_changes
            connection.executemany(
                "INSERT OR IGNORE INTO events (time_ns, node, kind, code, device, severity, text,"
                " process, pid) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            return connection.total_changes - before

    def find(
        self,
        node: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        kinds: Sequence[str] = (),
        min_severity: float | None = None,
        limit: int = 1000,
        newest_first: bool = True,
    ) -> list[Event]:
        """The events that fit, at most ``limit``."""
        where, values = ["1"], []
        conditions: tuple[tuple[str, object | None], ...] = (
            ("node = ?", node),
            ("time_ns >= ?", since_ns),
            ("time_ns < ?", until_ns),
            ("severity >= ?", min_severity),
        )
        for condition, value in conditions:
            if value is not None:
                where.append(condition)
                values.append(value)
        if kinds:
            where.append(f"kind IN ({', '.join('?' * len(kinds))})")
            values.extend(kinds)
        order = "DESC" if newest_first else "ASC"
        rows = self.database.query(
            f"SELECT * FROM events WHERE {' AND '.join(where)}"  # noqa: S608 (fixed words only)
            f" ORDER BY time_ns {order}, id {order} LIMIT ?",
            (*values, limit),
        )
        return [Event(**dict(row)) for row in rows]

    def newest_id(self) -> int:
        """The id of the event that came last; 0 without any. Ids go up in order of arrival."""
        (row,) = self.database.query("SELECT max(id) AS id FROM events")
        return int(row["id"] or 0)

    def late(self, after_id: int, before_ns: int, limit: int = 100_000) -> list[Event]:
        """What came after ``after_id`` and happened before ``before_ns``, oldest first."""
        rows = self.database.query(
            "SELECT * FROM events WHERE id > ? AND time_ns < ? ORDER BY time_ns, id LIMIT ?",
            (after_id, before_ns, limit),
        )
        return [Event(**dict(row)) for row in rows]

    def forget(self, before_ns: int, span_ns: int = 2**62) -> int:
        """Removes events older than ``before_ns``, of the oldest ``span_ns`` only; how many."""
        (oldest,) = self.database.query("SELECT min(time_ns) AS time_ns FROM events")
        if oldest["time_ns"] is None:
            return 0
        before_ns = min(before_ns, oldest["time_ns"] + span_ns)
        return self.database.execute("DELETE FROM events WHERE time_ns < ?", (before_ns,))

    def bound(self, per_node_limit: int, limit: int) -> int:
        """Removes the oldest events of each node that has too many; how many.

        Too many are more than ``per_node_limit``, and where all have more than ``limit`` together,
        what the nodes that say most have over the others: so that a few that say too much never
        push out anybody else's.
        """
        held = {
            row["node"]: int(row["held"])
            for row in self.database.query(
                "SELECT node, count(*) AS held FROM events GROUP BY node"
            )
        }
        most = min(per_node_limit, fair_level(held.values(), limit))
        removed = 0
        for node, count in held.items():
            if count > most:
                removed += self._remove_oldest(count - most, node)
        if removed:
            log.warning("the %d oldest events were removed: there are too many", removed)
        return removed

    def _remove_oldest(self, count: int, node: str) -> int:
        removed = 0
        while removed < count:
            # A piece at a time: whoever writes a decision must not wait for all of it.
            removed += self.database.execute(
                "DELETE FROM events WHERE id IN (SELECT id FROM events WHERE node = ?"
                " ORDER BY time_ns, id LIMIT ?)",
                (node, min(count - removed, _PIECE_ROWS)),
            )
        return removed


def fair_level(counts: Collection[int], limit: int) -> int:
    """How much each may keep, so that all keep at most ``limit`` and nobody loses without need.

    >>> fair_level([1, 2, 100, 100], 53), fair_level([1, 2], 10), fair_level([5, 5], 1)
    (25, 10, 0)
    """
    left, others = limit, len(counts)
    for count in sorted(counts):
        if count * others > left:
            return left // others
        left -= count
        others -= 1
    return limit


def _plain(text: str) -> str:
    """SQLite takes no half surrogate pairs (text from a file that is no UTF-8)."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class BatchMarks:
    """Which batches of which sender are durable: the highest sequence of each instance.

    Senders count up and send in order, so everything up to the highest is there.
    """

    PER_NODE = 16

    def __init__(self, database: Database) -> None:
        self.database = database
        self._highest: dict[str, dict[str, int]] = {}
        for row in database.query("SELECT * FROM batches ORDER BY seen_ns"):
            if not isinstance(row["sequence"], int):
                raise damaged(database.path, "a batch without a number")
            self.note(row["node"], row["instance"], row["sequence"])

    def seen(self, node: str, instance: str, sequence: int) -> bool:
        """Whether this batch is durable already."""
        return self._highest.get(node, {}).get(instance, -1) >= sequence

    def note(self, node: str, instance: str, sequence: int) -> None:
        """Takes note, in memory, of a batch whose frame is durable."""
        instances = self._highest.setdefault(node, {})
        known = instances.pop(instance, -1)
        instances[instance] = max(known, sequence)  # last in order of use
        while len(instances) > self.PER_NODE:
            del instances[next(iter(instances))]

    def save(self, marks: Iterable[tuple[str, str, int]], now_ns: int) -> None:
        """Writes marks down, before the segment that holds them is removed."""
        highest: dict[tuple[str, str], int] = {}
        for node, instance, sequence in marks:
            if instance not in self._highest.get(node, {}):
                continue  # a sender that calls itself by ever new names: forgotten already
            key = (node, instance)
            highest[key] = max(sequence, highest.get(key, -1))
        if not highest:
            return
        with self.database.transaction() as connection:
            connection.executemany(
                "INSERT INTO batches VALUES (?, ?, ?, ?) ON CONFLICT (node, instance) DO UPDATE"
                " SET sequence = max(sequence, excluded.sequence), seen_ns = excluded.seen_ns",
                [(node, instance, seq, now_ns) for (node, instance), seq in highest.items()],
            )

    def forget(self, before_ns: int) -> None:
        """Removes the marks of senders that were not heard since ``before_ns``, or are too many."""
        self.database.execute("DELETE FROM batches WHERE seen_ns < ?", (before_ns,))
        self.database.execute(
            "DELETE FROM batches WHERE (node, instance) IN (SELECT node, instance FROM (SELECT"
            " node, instance, row_number() OVER (PARTITION BY node ORDER BY seen_ns DESC) AS place"
            " FROM batches) WHERE place > ?)",
            (self.PER_NODE,),
        )
