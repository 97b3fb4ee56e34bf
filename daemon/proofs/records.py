"""The ledger's tables of proofs and of the figures they gave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from daemon.store.database import Database

# The last figures of so many nodes are peers.
PEERS_MAX = 500

SCHEMA = """
CREATE TABLE IF NOT EXISTS proofs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, case_id TEXT NOT NULL, node TEXT NOT NULL,
    step TEXT NOT NULL, reservation TEXT NOT NULL, begun_ns INTEGER NOT NULL,
    due_ns INTEGER NOT NULL, boot_time_ns INTEGER NOT NULL, before TEXT NOT NULL,
    features TEXT NOT NULL, round INTEGER NOT NULL DEFAULT 1, passes INTEGER NOT NULL DEFAULT 0,
    submitted_ns INTEGER NOT NULL DEFAULT 0, passed_ns INTEGER NOT NULL DEFAULT 0,
    ended_ns INTEGER NOT NULL DEFAULT 0, user TEXT NOT NULL DEFAULT '',
    worry TEXT NOT NULL DEFAULT '', text TEXT NOT NULL DEFAULT ''
);
-- One proof a node at a time.
CREATE UNIQUE INDEX IF NOT EXISTS proofs_open ON proofs (node) WHERE ended_ns = 0;
CREATE TABLE IF NOT EXISTS proof_figures (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, proof INTEGER NOT NULL, node TEXT NOT NULL,
    features TEXT NOT NULL, time_ns INTEGER NOT NULL, figure TEXT NOT NULL, value REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS proof_figures_by ON proof_figures (features, figure, node, seq);
"""


class Step(StrEnum):
    """Where a proof stands. In all of them but the last the node is drained or reserved."""

    RESERVING = "reserving"  # drained by us; the reservation is being made
    OPENING = "opening"  # reserved; our drain is being lifted
    RUNNING = "running"  # reserved, undrained: only our job may run
    RELEASING = "releasing"  # passed; the reservation is being deleted
    CLOSING = "closing"  # failed, or for a person to return: drained again, then unreserved
    LEAVING = "leaving"  # somebody else's drain stands: only our reservation is taken away
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Proof:
    """One proof. ``before`` is the reason that our drain had; ``user`` who asked for it."""

    seq: int
    case_id: str
    node: str
    step: Step
    reservation: str
    begun_ns: int
    due_ns: int
    boot_time_ns: int
    before: str
    features: str
    round: int
    passes: int
    submitted_ns: int
    passed_ns: int
    ended_ns: int
    user: str
    worry: str
    text: str

    @property
    def job_name(self) -> str:
        """The name of this round's job; by it a job is found whose submission was cut off."""
        return f"tocsin-{self.case_id[:8]}-{self.seq}-{self.round}"


_FIELDS = tuple(one.name for one in fields(Proof))


class ProofRecords:
    """Reads and writes the tables. Each call is one transaction, or part of the caller's."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.define(SCHEMA)

    def open(self) -> list[Proof]:
        """The proofs under way, oldest first."""
        return self._read("ended_ns = 0 ORDER BY seq")

    def of_case(self, case_id: str) -> list[Proof]:
        """All proofs of a case, oldest first."""
        return self._read("case_id = ? ORDER BY seq", case_id)

    def begin(self, **values: Any) -> None:
        """A new proof."""
        names = ", ".join(values)
        marks = ", ".join("?" * len(values))
        self._database.execute(
            f"INSERT INTO proofs ({names}) VALUES ({marks})",  # noqa: S608
            tuple(values.values()),
        )

    def change(self, proof: Proof, **changes: Any) -> Proof:
        """Writes ``changes`` and answers the proof as it is now."""
        columns = ", ".join(f"{name} = ?" for name in changes)
        values = [v.value if isinstance(v, Step) else v for v in changes.values()]
        self._database.execute(
            f"UPDATE proofs SET {columns} WHERE seq = ?",  # noqa: S608
            (*values, proof.seq),
        )
        return replace(proof, **changes)

    def keep_figures(self, proof: Proof, figures: Mapping[str, float], now_ns: int) -> None:
        """Figures of one passed or failed job."""
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT INTO proof_figures (proof, node, features, time_ns, figure, value) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                [(proof.seq, proof.node, proof.features, now_ns, *one) for one in figures.items()],
            )

    def figures(self, proof: Proof) -> list[tuple[int, str, float]]:
        """Time (UTC ns), figure and value of each job of a proof, oldest first."""
        rows = self._database.query(
            "SELECT time_ns, figure, value FROM proof_figures WHERE proof = ? ORDER BY seq",
            (proof.seq,),
        )
        return [(row["time_ns"], row["figure"], row["value"]) for row in rows]

    def peers(self, proof: Proof, figures: Iterable[str]) -> dict[str, list[float]]:
        """The last value of each figure on other nodes with the same features."""
        found: dict[str, list[float]] = {}
        for figure in figures:
            rows = self._database.query(
                "SELECT value, MAX(seq) FROM proof_figures WHERE features = ? AND figure = ? "
                "AND node != ? GROUP BY node LIMIT ?",
                (proof.features, figure, proof.node, PEERS_MAX),
            )
            found[figure] = [row["value"] for row in rows]
        return found

    def _read(self, where: str, *parameters: Any) -> list[Proof]:
        rows = self._database.query(f"SELECT * FROM proofs WHERE {where}", parameters)  # noqa: S608
        return [
            Proof(**{**{name: row[name] for name in _FIELDS}, "step": Step(row["step"])})
            for row in rows
        ]
