"""The ledger's table of probes of idle nodes. Their figures stand beside those of proofs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from daemon.proofs.idle import HOUR_NS, Known, Told, Verdict
from daemon.proofs.records import PEERS_MAX
from daemon.proofs.records import SCHEMA as PROOF_SCHEMA
from daemon.store.database import Database

SCHEMA = """
CREATE TABLE IF NOT EXISTS idle_probes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, node TEXT NOT NULL, features TEXT NOT NULL,
    partitions TEXT NOT NULL, begun_ns INTEGER NOT NULL, ended_ns INTEGER NOT NULL DEFAULT 0,
    told INTEGER NOT NULL DEFAULT 0, key TEXT NOT NULL DEFAULT '', text TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS idle_probes_by ON idle_probes (node, seq);
CREATE INDEX IF NOT EXISTS idle_probes_begun ON idle_probes (begun_ns);
-- One probe a node at a time.
CREATE UNIQUE INDEX IF NOT EXISTS idle_probes_open ON idle_probes (node) WHERE ended_ns = 0;
"""
# Of each node so many probes, and so many of each figure, are kept and looked at.
ROWS_OF_NODE = 10


@dataclass(frozen=True, slots=True)
class IdleProbe:
    """One probe under way."""

    seq: int
    node: str
    features: str
    partitions: tuple[str, ...]
    begun_ns: int

    @property
    def job_name(self) -> str:
        """The name of its job; by it a job is found whose submission was cut off."""
        return f"tocsin-idle-{self.seq}"


class IdleRecords:
    """Reads and writes the table. Each call is one transaction, or part of the caller's.

    Nobody else writes there, so that what the planner asks each cycle is kept in memory.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        database.define(PROOF_SCHEMA)
        database.define(SCHEMA)
        self._told: dict[str, list[Told]] = {}
        self._tried_ns: dict[str, int] = {}
        for row in database.query("SELECT * FROM idle_probes ORDER BY seq"):
            self._tried_ns[row["node"]] = row["begun_ns"]
            if row["told"]:
                self._note(Told(row["node"], row["begun_ns"], row["key"], row["text"]))

    def _note(self, one: Told) -> None:
        self._told[one.node] = [one, *self._told.get(one.node, ())][:ROWS_OF_NODE]

    def open(self) -> list[IdleProbe]:
        """The probes under way, oldest first."""
        rows = self._database.query("SELECT * FROM idle_probes WHERE ended_ns = 0 ORDER BY seq")
        return [
            IdleProbe(
                row["seq"], row["node"], row["features"], tuple(row["partitions"].split(",")),
                row["begun_ns"],
            )
            for row in rows
        ]  # fmt: skip

    def begin(
        self, node: str, features: Iterable[str], partitions: Iterable[str], now_ns: int
    ) -> IdleProbe:
        """A new probe, durable before its job is submitted."""
        values = (node, ",".join(sorted(features)), ",".join(partitions), now_ns)
        self._database.execute(
            "INSERT INTO idle_probes (node, features, partitions, begun_ns) VALUES (?, ?, ?, ?)",
            values,
        )
        self._tried_ns[node] = now_ns
        return next(one for one in self.open() if one.node == node)

    def end(self, probe: IdleProbe, told: bool, verdict: Verdict, now_ns: int) -> None:
        """It is over; ``told`` where it came to a result. Drops what is too old to count."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE idle_probes SET ended_ns = ?, told = ?, key = ?, text = ? WHERE seq = ?",
                (now_ns, int(told), verdict.key, verdict.text, probe.seq),
            )
            connection.execute(
                "DELETE FROM idle_probes WHERE node = ? AND seq < (SELECT seq FROM idle_probes "
                "WHERE node = ? AND told = ? ORDER BY seq DESC LIMIT 1 OFFSET ?) AND told = ?",
                (probe.node, probe.node, int(told), ROWS_OF_NODE - 1, int(told)),
            )
        if told:
            self._note(Told(probe.node, probe.begun_ns, verdict.key, verdict.text))

    def keep_figures(self, probe: IdleProbe, figures: Mapping[str, float], now_ns: int) -> None:
        """Figures of one job; proofs are held against them too. A negative number is a probe."""
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT INTO proof_figures (proof, node, features, time_ns, figure, value) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                [(-probe.seq, probe.node, probe.features, now_ns, *one) for one in figures.items()],
            )
            where = "features = ? AND figure = ? AND node = ?"
            for figure in figures:
                of = (probe.features, figure, probe.node)
                connection.execute(
                    f"DELETE FROM proof_figures WHERE {where} AND proof < 0 AND seq < "  # noqa: S608
                    f"(SELECT seq FROM proof_figures WHERE {where} "
                    "ORDER BY seq DESC LIMIT 1 OFFSET ?)",
                    (*of, *of, ROWS_OF_NODE - 1),
                )

    def peers(self, probe: IdleProbe, figures: Iterable[str]) -> dict[str, list[float]]:
        """The last value of each figure on other nodes with the same features."""
        return {
            figure: [
                row["value"]
                for row in self._database.query(
                    "SELECT value, MAX(seq) FROM proof_figures WHERE features = ? AND figure = ? "
                    "AND node != ? GROUP BY node LIMIT ?",
                    (probe.features, figure, probe.node, PEERS_MAX),
                )
            ]
            for figure in figures
        }

    def own(self, probe: IdleProbe, figures: Iterable[str]) -> dict[str, list[float]]:
        """The last earlier values of each figure on this node."""
        return {
            figure: [
                row["value"]
                for row in self._database.query(
                    "SELECT value FROM proof_figures WHERE features = ? AND figure = ? "
                    "AND node = ? ORDER BY seq DESC LIMIT ?",
                    (probe.features, figure, probe.node, ROWS_OF_NODE),
                )
            ]
            for figure in figures
        }

    def told(self) -> dict[str, list[Told]]:
        """Each node's last probes that came to a result, the newest first."""
        return self._told

    def known(self, idle_ns: Mapping[str, int], now_ns: int) -> Known:
        """What the planner needs to know."""
        query = self._database.query
        (hour,) = query(
            "SELECT COUNT(*) AS n FROM idle_probes WHERE begun_ns > ?", (now_ns - HOUR_NS,)
        )
        (under_way,) = query("SELECT COUNT(*) AS n FROM idle_probes WHERE ended_ns = 0")
        told_ns = {node: rows[0].time_ns for node, rows in self._told.items()}
        return Known(told_ns, self._tried_ns, idle_ns, under_way["n"], hour["n"])
