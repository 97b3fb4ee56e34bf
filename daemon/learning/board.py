"""The scoreboard: what a model would have drained, and what became of it.

Each would-be drain is a hit when the node failed within the horizon or an operator called it
right, and wrong when it did neither. Where tocsin took the node out of service first nobody can
tell, unless a person says: that is counted as unknown, and is what the hold-out is for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from daemon.store.database import Database

DAY_NS = 86_400 * 1_000_000_000
WINDOW_DAYS = 30
KEEP_DAYS = 800

SCHEMA = """
-- What a model said of the fleet, summed over the looks of a day (UTC, days since 1970).
CREATE TABLE IF NOT EXISTS model_days (
    day INTEGER NOT NULL, model TEXT NOT NULL, looks INTEGER NOT NULL, nodes REAL NOT NULL,
    expected REAL NOT NULL, PRIMARY KEY (day, model)
);
-- When something of the day was last done: count, training.
CREATE TABLE IF NOT EXISTS model_marks (what TEXT PRIMARY KEY, time_ns INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS scoreboard (
    day INTEGER NOT NULL, model TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (day, model)
);
"""


@dataclass(frozen=True, slots=True)
class Would:
    """A model would have drained ``node`` at ``at_ns``, and said so until ``until_ns``.

    ``verdict``: an operator's word, if one was said; ``drained_ns``: when tocsin took the node out
    after all, 0 for never.
    """

    case: str
    node: str
    at_ns: int
    verdict: bool | None = None
    drained_ns: int = 0
    until_ns: int = 0

    def alarms(self, horizon_ns: int) -> range:
        """When it would have drained: again after each horizon that it went on, as in
        ``tocsin evaluate``; once where a person has spoken."""
        last_ns = self.at_ns if self.verdict is not None else max(self.at_ns, self.until_ns)
        return range(self.at_ns, last_ns + 1, max(1, horizon_ns))


@dataclass(frozen=True, slots=True)
class Score:
    """One model over the time up to ``day``. ``open`` may still become a hit; ``expected``
    failures are the sum of what the model said, in days that it looked at."""

    model: str
    day: int
    drains: int = 0
    hits: int = 0
    wrong: int = 0
    unknown: int = 0
    open: int = 0
    failures: int = 0
    missed: int = 0
    node_days: float = 0.0
    expected: float = 0.0
    # How long before the failures that it foretold it first said so, median; 0: it foretold none.
    lead_median_seconds: float = 0.0

    @property
    def words(self) -> str:
        """One line for ``tocsin status``."""
        text = (
            f"{self.model}, last {WINDOW_DAYS} d: would have drained {self.drains} "
            f"({self.hits} right, {self.wrong} wrong, {self.open} open, {self.unknown} unknown); "
            f"missed {self.missed} of {self.failures} failures"
        )
        if self.lead_median_seconds:
            text += f", told the others {self.lead_median_seconds / 3600:.1f} h before (median)"
        return text + (f"; said {self.expected:.1f} failures" if self.expected else "")


def score(
    model: str,
    day: int,
    would: Sequence[Would],
    failures: Mapping[str, Sequence[int]],
    horizon_ns: int,
    now_ns: int,
) -> Score:
    """Pure. ``failures``: sorted onsets of each node within the window."""
    count = Counter[str]()
    told: dict[tuple[str, int], float] = {}  # each failure that was foretold: seconds before it
    for one in would:
        for at_ns in one.alarms(horizon_ns):
            end_ns = at_ns + horizon_ns
            struck = [at for at in failures.get(one.node, ()) if at_ns < at <= end_ns]
            for at in struck:
                lead_seconds = (at - at_ns) / 1e9
                told[one.node, at] = max(told.get((one.node, at), 0.0), lead_seconds)
            count["drains"] += 1
            count[_became(one, at_ns, end_ns, bool(struck), now_ns)] += 1
    total = sum(len(onsets) for onsets in failures.values())
    lead = median(told.values()) if told else 0.0
    missed = total - len(told)
    return Score(model, day, failures=total, missed=missed, lead_median_seconds=lead, **count)


def _became(one: Would, at_ns: int, end_ns: int, struck: bool, now_ns: int) -> str:
    """The name of the count that one alarm belongs to."""
    if one.verdict is not None:
        return "hits" if one.verdict else "wrong"
    if struck:
        return "hits"
    if at_ns <= one.drained_ns <= end_ns:
        return "unknown"
    return "open" if now_ns < end_ns else "wrong"


class Book:
    """Scoreboards and daily sums in the head's database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.define(SCHEMA)

    def looked(self, model: str, now_ns: int, nodes: int, expected_a_day: float) -> None:
        """One look: so many nodes, and the failures that the model expects within a day."""
        self._database.execute(
            "INSERT INTO model_days VALUES (?, ?, 1, ?, ?) ON CONFLICT (day, model) DO UPDATE "
            "SET looks = looks + 1, nodes = nodes + excluded.nodes, "
            "expected = expected + excluded.expected",
            (now_ns // DAY_NS, model, float(nodes), expected_a_day),
        )

    def marked_ns(self, what: str) -> int:
        """When ``what`` was last done, UTC ns; 0 for never."""
        rows = self._database.query("SELECT time_ns FROM model_marks WHERE what = ?", (what,))
        return int(rows[0]["time_ns"]) if rows else 0

    def mark(self, what: str, now_ns: int) -> None:
        """Remembers that ``what`` was done."""
        self._database.execute("INSERT OR REPLACE INTO model_marks VALUES (?, ?)", (what, now_ns))

    def sums(self, model: str, since_day: int, until_day: int) -> tuple[float, float]:
        """(node-days, failures expected) over whole days that were looked at."""
        rows = self._database.query(
            "SELECT SUM(nodes / looks) AS nodes, SUM(expected / looks) AS expected "
            "FROM model_days WHERE model = ? AND day >= ? AND day < ?",
            (model, since_day, until_day),
        )
        return float(rows[0]["nodes"] or 0.0), float(rows[0]["expected"] or 0.0)

    def first_day(self, model: str) -> int | None:
        """The first day that the model looked at the fleet."""
        rows = self._database.query(
            "SELECT MIN(day) AS day FROM model_days WHERE model = ?", (model,)
        )
        return None if rows[0]["day"] is None else int(rows[0]["day"])

    def would(self, model: str, since_ns: int) -> list[Would]:
        """The would-be drains of ``model`` since ``since_ns``, from the ledger's decisions."""
        rows = self._database.query(
            "SELECT c.id, c.node, c.verdict, c.updated_ns, MIN(d.time_ns) AS at_ns FROM cases c "
            "JOIN decisions d ON d.id = c.id WHERE c.rule = ? AND d.action IN ('drain', 'hold') "
            "AND d.guard IN ('', 'shadow', 'held_out', 'approval', 'common_cause') "
            "AND c.updated_ns >= ? "
            "GROUP BY c.id HAVING at_ns >= ? ORDER BY at_ns",
            (f"risk:{model}", since_ns, since_ns),
        )
        drained: dict[str, list[int]] = {}
        for row in self._database.query(
            "SELECT node, intent_ns FROM cases WHERE intent_ns >= ? ORDER BY intent_ns",
            (since_ns,),
        ):
            drained.setdefault(row["node"], []).append(int(row["intent_ns"]))
        return [
            Would(
                row["id"],
                row["node"],
                int(row["at_ns"]),
                None if row["verdict"] is None else bool(row["verdict"]),
                next((at for at in drained.get(row["node"], ()) if at >= row["at_ns"]), 0),
                int(row["updated_ns"]),
            )
            for row in rows
        ]

    def keep(self, body: str, model: str, day: int) -> None:
        """Writes down one day's scoreboard (JSON)."""
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO scoreboard VALUES (?, ?, ?)", (day, model, body)
            )
            old = (day - KEEP_DAYS,)
            connection.execute("DELETE FROM scoreboard WHERE day < ?", old)
            connection.execute("DELETE FROM model_days WHERE day < ?", old)

    def kept(self, limit: int = 60) -> list[tuple[int, str, str]]:
        """(day, model, JSON) of the newest days, newest first."""
        rows = self._database.query(
            "SELECT day, model, body FROM scoreboard ORDER BY day DESC, model LIMIT ?", (limit,)
        )
        return [(int(row["day"]), row["model"], row["body"]) for row in rows]


def plain(one: Score) -> dict[str, Any]:
    """As JSON data."""
    return asdict(one)
