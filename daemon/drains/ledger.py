"""The ledger: every case through its life, every decision on change, every word and write.

It is the only proof of what is ours. Decisions and audit are append-only: triggers refuse to
change or delete a row, whoever asks. Each public call is one transaction; what it wrote is
durable when it returns.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from daemon.drains.ledger_schema import LAST_RETURNS, LAST_SAID, OTHER_DRAIN, SCHEMA
from daemon.drains.met import Met
from daemon.drains.rows import case_from, decision_from, plain_decision
from daemon.policy.cases import CASE_KEEP_NS, ENDED, Case, LedgerView, State, called
from daemon.policy.decisions import Decision
from daemon.store.database import Database

SECOND_NS = 1_000_000_000
SELF = "tocsin"
DAY_NS = 86_400 * SECOND_NS
# The longest window that any limit looks at (flap_window_seconds, breaker_window_seconds).
DRAINS_KEEP_NS = 366 * DAY_NS
# A case that is still seen is stamped no more often than this.
STAMP_NS = 60 * SECOND_NS
# A risk that was not seen for so long begins anew, under a new id.
RISK_ONSET_KEEP_NS = DAY_NS

# The cases that policy asks for. Not those of facts that are only told of: where a fleet shows the
# same fault, there are ten thousand more of them each time. In words that the index can follow.
_FOR_POLICY = (
    "state IN ('intent', 'draining', 'drained', 'testing', 'proposed', 'approved') "
    "OR state IN ('denied', 'returned', 'foreign', 'abandoned') AND updated_ns >= ? "
    "OR state = 'watch' AND voice IN ('risk', 'silence', 'history') AND updated_ns >= ?"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the audit: who did what to which node or case, and when."""

    seq: int
    time_ns: int
    user: str
    verb: str
    node: str
    subject: str
    text: str
    detail: Mapping[str, Any]


class UnknownCaseError(KeyError):
    """No case has such an id, or several begin like it. ``str()`` says which."""

    def __str__(self) -> str:
        return str(self.args[0])


class Ledger:
    """Cases, decisions, audit, locks and breaker in the head's one database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        database.define(SCHEMA)
        self._met = Met(database)

    # ---- what is known -------------------------------------------------------------------

    def view(self, now_ns: int) -> LedgerView:
        """A snapshot for policy."""
        kept = self._cases(_FOR_POLICY, (now_ns - CASE_KEEP_NS, now_ns - RISK_ONSET_KEEP_NS))
        drains: dict[str, list[int]] = {}
        for row in self.database.query(
            "SELECT node, intent_ns FROM cases WHERE intent_ns >= ? ORDER BY intent_ns",
            (now_ns - DRAINS_KEEP_NS,),
        ):
            drains.setdefault(row["node"], []).append(row["intent_ns"])
        returned = self.database.query(LAST_RETURNS)
        open_, closed_ns = self._breaker(now_ns)
        wrong = self.database.query(
            "SELECT updated_ns FROM cases WHERE verdict = 0 AND intent_ns > 0 AND updated_ns > ?",
            (closed_ns,),
        )
        return LedgerView(
            held={case.node: case for case in kept if case.held},
            cases={case.id: case for case in kept},
            names=self._met.names(now_ns),
            drains_ns=tuple(sorted(at for ats in drains.values() for at in ats)),
            drains_of={node: tuple(ats) for node, ats in drains.items()},
            returned_ns={row["node"]: row["at_ns"] for row in returned},
            returned_reasons={row["node"]: row["reason"] for row in returned},
            locked={
                row["node"]: f"{row['user']}: {row['text']}" if row["text"] else row["user"]
                for row in self.database.query("SELECT node, user, text FROM locks")
            },
            breaker=open_,
            breaker_closed_ns=closed_ns,
            wrong_verdicts_ns=tuple(row["updated_ns"] for row in wrong),
            anew_ns=self.anew_ns(),
            onsets={
                (case.node, case.rule, case.device): case.onset_ns
                for case in kept
                if case.voice != "fact"
                and case.state not in ENDED
                and (case.held or now_ns - case.updated_ns < RISK_ONSET_KEEP_NS)
            },
        )

    def held(self) -> list[Case]:
        """The cases that hold a node now."""
        return self._cases("state IN ('intent', 'draining', 'drained', 'testing')")

    def case_of(self, node: str) -> Case | None:
        """The case that holds ``node``, if there is one."""
        return next((case for case in self.held() if case.node == node), None)

    def drains_of(self, node: str, since_ns: int) -> int:
        """Drains of ``node`` that Slurm showed, made after ``since_ns``; wrong ones not counted."""
        rows = self.database.query(
            "SELECT COUNT(*) AS made FROM cases WHERE node = ? AND intent_ns > ? "
            "AND acknowledged_ns > 0 AND (verdict IS NULL OR verdict = 1)",
            (node, since_ns),
        )
        return int(rows[0]["made"])

    def last_said_ns(self, node: str, verb: str) -> int:
        """When ``verb`` was last said of ``node``, UTC ns; 0 for never."""
        rows = self.database.query(LAST_SAID, (node, verb))
        return int(rows[0]["at_ns"]) if rows else 0

    def last_said(self, node: str, verb: str) -> str:
        """The text of the newest ``verb`` of ``node``, or empty."""
        rows = self.database.query(
            "SELECT text FROM audit WHERE node = ? AND verb = ? ORDER BY seq DESC LIMIT 1",
            (node, verb),
        )
        return str(rows[0]["text"]) if rows else ""

    def anew_ns(self) -> dict[str, int]:
        """When nodes (``n1``) and parts (``n1/gpu3``) were replaced, UTC ns."""
        rows = self.database.query("SELECT subject, time_ns FROM anew")
        return {row["subject"]: row["time_ns"] for row in rows}

    def locks(self) -> dict[str, str]:
        """Locked nodes, and who locked each."""
        rows = self.database.query("SELECT node, user FROM locks")
        return {row["node"]: row["user"] for row in rows}

    def find(self, prefix: str) -> Case:
        """The case that ``prefix`` is, begins or names in a reason. Raises UnknownCaseError."""
        if not prefix or not all(c in "0123456789abcdef" for c in prefix):
            raise UnknownCaseError(f"{prefix!r} is no id: ids are hex digits, as reasons show them")
        found = self._cases(
            "id >= ? AND id < ? ORDER BY updated_ns DESC LIMIT 100", (prefix, prefix + "g")
        )
        if not found:
            raise UnknownCaseError(f"no case {prefix}")
        found = called(prefix, found) or found
        if len(found) > 1:
            few = ", ".join(f"{case.id[:8]} on {case.node}" for case in found[:3])
            raise UnknownCaseError(f"{prefix} may be {few}: give more digits")
        return found[0]

    def of_ids(self, ids: Iterable[str]) -> dict[str, Case]:
        """The cases of some hundred ids, by id."""
        wanted = json.dumps(list(ids))
        found = self._cases("id IN (SELECT value FROM json_each(?))", (wanted,))
        return {case.id: case for case in found}

    def like(self, case: Case, since_ns: int, limit: int) -> list[Case]:
        """Other nodes' cases of the same cause, those seen last first."""
        return self._cases(
            "rule = ? AND code = ? AND node != ? AND updated_ns >= ? "
            "ORDER BY updated_ns DESC LIMIT ?",
            (case.rule, case.code, case.node, since_ns, limit),
        )

    def waiting(self) -> list[Case]:
        """Proposals that wait for a person, oldest first."""
        return self._cases("state = 'proposed' ORDER BY created_ns")

    def expired(self, now_ns: int) -> list[Case]:
        """Proposals that nobody answered in time, and a yes that found nothing left to drain."""
        return self._cases(
            "state IN ('proposed', 'approved') AND expires_ns > 0 AND expires_ns <= ?", (now_ns,)
        )

    def decisions(self, *, node: str = "", case: str = "", limit: int = 100) -> list[Decision]:
        """The newest decisions, newest first, of one node or case or of all."""
        where, parameters = "1", []
        if node:
            where, parameters = "node = ?", [node]
        if case:
            where, parameters = "id = ?", [case]
        rows = self.database.query(
            f"SELECT body FROM decisions WHERE {where} ORDER BY seq DESC LIMIT ?",  # noqa: S608
            (*parameters, limit),
        )
        return [decision_from(json.loads(row["body"])) for row in rows]

    def decisions_since(self, sequence: int, limit: int = 10_000) -> tuple[int, list[Decision]]:
        """The decisions recorded after ``sequence``, oldest first, and the newest sequence.

        A negative ``sequence`` asks for the newest sequence alone.
        """
        if sequence < 0:
            rows = self.database.query("SELECT MAX(seq) AS newest FROM decisions")
            return int(rows[0]["newest"] or 0), []
        rows = self.database.query(
            "SELECT seq, body FROM decisions WHERE seq > ? ORDER BY seq LIMIT ?", (sequence, limit)
        )
        newest = int(rows[-1]["seq"]) if rows else sequence
        return newest, [decision_from(json.loads(row["body"])) for row in rows]

    def audit(self, *, node: str = "", subject: str = "", limit: int = 200) -> list[Entry]:
        """The newest lines of the audit, newest first."""
        where, parameters = "1", []
        if node:
            where, parameters = "node = ?", [node]
        if subject:
            where, parameters = "subject = ?", [subject]
        rows = self.database.query(
            f"SELECT * FROM audit WHERE {where} ORDER BY seq DESC LIMIT ?",  # noqa: S608
            (*parameters, limit),
        )
        return [
            Entry(
                row["seq"], row["time_ns"], row["user"], row["verb"], row["node"],
                row["subject"], row["text"], json.loads(row["detail"]),
            )
            for row in rows
        ]  # fmt: skip

    # ---- what is written -----------------------------------------------------------------

    def record(self, decisions: Iterable[Decision], now_ns: int) -> list[Decision]:
        """Writes each decision whose action or guard changed for its case; answers those.

        A case that is met for the first time is opened in state ``watch``.
        """
        fresh: list[Decision] = []
        with self.database.transaction() as connection:
            for decision in decisions:
                last = connection.execute(
                    "SELECT action, guard FROM decisions WHERE id = ? ORDER BY seq DESC LIMIT 1",
                    (decision.id,),
                ).fetchone()
                guard = decision.guard.value if decision.guard else ""
                if last is None:
                    self._open(connection, decision, now_ns)
                if last is not None:
                    connection.execute(
                        "UPDATE cases SET updated_ns = ? WHERE id = ? AND state = 'watch' "
                        "AND updated_ns < ?",
                        (now_ns, decision.id, now_ns - STAMP_NS),
                    )
                if last is not None and (last["action"], last["guard"]) == (
                    decision.action.value,
                    guard,
                ):
                    continue
                connection.execute(
                    "INSERT INTO decisions (id, time_ns, node, action, guard, body) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        decision.id,
                        decision.time_ns,
                        decision.node,
                        decision.action.value,
                        guard,
                        json.dumps(plain_decision(decision)),
                    ),
                )
                fresh.append(decision)
        return fresh

    def together(self) -> contextlib.AbstractContextManager[Any]:
        """All that is written inside becomes durable at once, or not at all."""
        return self.database.transaction()

    def intend(self, decision: Decision, now_ns: int) -> Case:
        """Writes down that the drain of ``decision`` is about to be written to Slurm."""
        with self.database.transaction() as connection:
            self._open(connection, decision, now_ns)
            case = self.find(decision.id)
            connection.execute(
                "INSERT OR REPLACE INTO intents VALUES (?, ?)",
                (decision.id, json.dumps(plain_decision(decision))),
            )
            return self.move(
                case, State.INTENT, now_ns, user=SELF, verb="intend", text=decision.reason,
                reason=decision.reason, intent_ns=now_ns, acknowledged_ns=0, ended_ns=0,
                return_by="",
            )  # fmt: skip

    def settle(self, decision: Decision, now_ns: int) -> None:
        """Records what became of an intent."""
        with self.database.transaction() as connection:
            self.record([decision], now_ns)
            connection.execute("DELETE FROM intents WHERE id = ?", (decision.id,))

    def recover(self, case: Case, now_ns: int) -> None:
        """Records the decision behind ``case`` that a kill kept from being recorded."""
        rows = self.database.query("SELECT body FROM intents WHERE id = ?", (case.id,))
        if rows:
            self.settle(decision_from(json.loads(rows[0]["body"])), now_ns)

    def move(
        self, case: Case, state: State, now_ns: int, *, user: str, verb: str, text: str = "",
        detail: Mapping[str, Any] | None = None, **changes: Any,
    ) -> Case:  # fmt: skip
        """Brings ``case`` into ``state`` and writes the audit line, in one transaction."""
        if state in ENDED or state is State.ABANDONED:
            changes.setdefault("ended_ns", now_ns)
        changes = {**changes, "state": state, "updated_ns": now_ns}
        if user != SELF:  # who spoke last; what tocsin does by itself is nobody's word
            changes["user"] = user
        columns = ", ".join(f"{name} = ?" for name in changes)
        values = [_column(value) for value in changes.values()]
        with self.database.transaction() as connection:
            connection.execute(f"UPDATE cases SET {columns} WHERE id = ?", (*values, case.id))  # noqa: S608
            if state is State.RETURNED:
                connection.execute(
                    "INSERT INTO returns (node, time_ns, since_ns, reason, user) "
                    "VALUES (?, ?, ?, ?, ?)",
                    (case.node, now_ns, case.intent_ns, case.reason, user),
                )
            self._say(connection, now_ns, user, verb, case.node, case.id, text, detail)
        return replace(case, **changes)

    def seen(self, cases: Iterable[Case], now_ns: int) -> None:
        """Stamps cases whose drain a reading of Slurm has just shown."""
        stale = [case.id for case in cases if now_ns - case.seen_ns >= STAMP_NS]
        if not stale:
            return
        with self.database.transaction() as connection:
            connection.executemany(
                "UPDATE cases SET seen_ns = ? WHERE id = ?", [(now_ns, one) for one in stale]
            )

    def ended_case(self, node: str, reason: str) -> Case | None:
        """The newest case of ``node`` with exactly ``reason`` that came back or was abandoned."""
        found = self._cases(
            "node = ? AND reason = ? AND (state = 'returned' OR state IN ('abandoned', 'watch', "
            "'proposed', 'approved', 'denied') AND id IN (SELECT subject FROM audit WHERE "
            "verb = 'abandon')) ORDER BY ended_ns DESC LIMIT 1", (node, reason),
        )  # fmt: skip
        return found[0] if found else None

    def lifted_since(self, time_ns: int) -> dict[str, str]:
        """Nodes that came back since ``time_ns``, with the reason that we had written."""
        cases = self._cases("state = 'returned' AND ended_ns >= ?", (time_ns,))
        return {case.node: case.reason for case in cases}

    def returned_reasons(self) -> dict[str, str]:
        """Nodes that came back, with the reason of the drain that they last came back from."""
        return {row["node"]: row["reason"] for row in self.database.query(LAST_RETURNS)}

    def others(self) -> dict[str, str]:
        """Nodes that somebody else had drained when Slurm was last read, with the reasons."""
        rows = self.database.query("SELECT node, reason FROM others")
        return {row["node"]: row["reason"] for row in rows}

    def others_changed(
        self, drained: Mapping[str, tuple[str, str]], back: Iterable[str], now_ns: int
    ) -> None:
        """Others drained nodes (node to reason and user), and others' drains ended."""
        with self.database.transaction() as connection:
            for node, (reason, user) in drained.items():
                connection.execute(OTHER_DRAIN, (node, now_ns, reason, user))
                self._say(connection, now_ns, user or "Slurm", "other_drain", node, "", reason, {})
            for node in back:
                connection.execute(
                    "INSERT INTO returns (node, time_ns, since_ns, reason, user) "
                    "SELECT node, ?, since_ns, reason, user FROM others WHERE node = ?",
                    (now_ns, node),
                )
                connection.execute("DELETE FROM others WHERE node = ?", (node,))
                self._say(connection, now_ns, "Slurm", "other_return", node, "", "", {})

    def say(
        self, now_ns: int, *, user: str, verb: str, node: str = "", subject: str = "",
        text: str = "", detail: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """One line of the audit."""
        with self.database.transaction() as connection:
            self._say(connection, now_ns, user, verb, node, subject, text, detail)

    def begin_anew(self, node: str, device: str, text: str, now_ns: int) -> None:
        """Node or part was replaced: what was before no longer counts against it."""
        subject = f"{node}/{device}" if device else node
        with self.database.transaction() as connection:
            connection.execute(
                "INSERT INTO anew VALUES (?, ?, ?) ON CONFLICT (subject) DO UPDATE SET "
                "time_ns = excluded.time_ns, text = excluded.text",
                (subject, now_ns, text),
            )
            self._say(connection, now_ns, "tocsin", "replaced", node, "", text, {"device": device})

    def anew_since(self, node: str, device: str, since_ns: int) -> int:
        """How often the history of a node (no ``device``) or of a part began anew."""
        rows = self.database.query(
            "SELECT detail FROM audit WHERE node = ? AND verb = 'replaced' AND time_ns > ?",
            (node, since_ns),
        )
        return sum(1 for row in rows if json.loads(row["detail"]).get("device", "") == device)

    def lock(self, node: str, user: str, now_ns: int, text: str = "") -> None:
        """Locks ``node`` against tocsin until somebody unlocks it."""
        with self.database.transaction() as connection:
            connection.execute(
                "INSERT INTO locks VALUES (?, ?, ?, ?) ON CONFLICT (node) DO UPDATE SET "
                "user = excluded.user, time_ns = excluded.time_ns, text = excluded.text",
                (node, user, now_ns, text),
            )
            self._say(connection, now_ns, user, "lock", node, "", text, None)

    def unlock(self, node: str, user: str, now_ns: int) -> bool:
        """Lifts a lock; False when there was none."""
        with self.database.transaction() as connection:
            gone = connection.execute("DELETE FROM locks WHERE node = ?", (node,)).rowcount > 0
            if gone:
                self._say(connection, now_ns, user, "unlock", node, "", "", None)
        return gone

    def open_breaker(self, text: str, now_ns: int) -> None:
        """No more drains until a person closes it."""
        with self.database.transaction() as connection:
            connection.execute(
                "INSERT INTO breaker (one, text, time_ns) VALUES (1, ?, ?) ON CONFLICT (one) "
                "DO UPDATE SET text = excluded.text, time_ns = excluded.time_ns",
                (text, now_ns),
            )
            self._say(connection, now_ns, "tocsin", "breaker_open", "", "", text, None)

    def close_breaker(self, user: str, now_ns: int) -> bool:
        """A person's word that drains may go on; False when it was not open."""
        with self.database.transaction() as connection:
            was = connection.execute(
                "UPDATE breaker SET text = '', closed_ns = ? WHERE one = 1 AND text != ''",
                (now_ns,),
            ).rowcount
            if was:
                self._say(connection, now_ns, user, "breaker_close", "", "", "", None)
        return bool(was)

    # ---- inside --------------------------------------------------------------------------

    def _cases(self, where: str, parameters: tuple[Any, ...] = ()) -> list[Case]:
        rows = self.database.query(f"SELECT * FROM cases WHERE {where}", parameters)  # noqa: S608
        return [case_from(row) for row in rows]

    def _breaker(self, now_ns: int) -> tuple[str, int]:
        """Why it is open, and when it was closed: 0 where that is to come (a clock was ahead)."""
        rows = self.database.query("SELECT text, closed_ns FROM breaker WHERE one = 1")
        text, closed_ns = (rows[0]["text"], rows[0]["closed_ns"]) if rows else ("", 0)
        return text, closed_ns if closed_ns <= now_ns else 0

    def _open(self, connection: Any, decision: Decision, now_ns: int) -> None:
        onset_ns = int(decision.inputs.get("onset_ns") or decision.time_ns)
        connection.execute(
            "INSERT OR IGNORE INTO cases (id, node, rule, code, device, voice, state, onset_ns, "
            "created_ns, updated_ns, reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                decision.id, decision.node, decision.rule, decision.code, decision.device,
                decision.voice, State.WATCH.value, onset_ns, now_ns, now_ns, decision.reason,
            ),
        )  # fmt: skip

    def _say(
        self, connection: Any, now_ns: int, user: str, verb: str, node: str, subject: str,
        text: str, detail: Mapping[str, Any] | None,
    ) -> None:  # fmt: skip
        connection.execute(
            "INSERT INTO audit (time_ns, user, verb, node, subject, text, detail) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (now_ns, user, verb, node, subject, text, json.dumps(dict(detail or {}))),
        )


def _column(value: Any) -> Any:
    return value.value if isinstance(value, State) else value
