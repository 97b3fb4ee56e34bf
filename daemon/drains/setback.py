"""What was written down while the head's clock ran ahead, once that has been set back.

Times of the ledger are the wall's. A return that seems to lie two days ahead would make every
fault of two days look older than the node's return; an unlock, every drain. All that was written
was written before now, so nothing in it is later than now: that is made true, once, and said in
the audit. A fault in the seconds between the step and that moment counts as known at the return.
"""

from __future__ import annotations

from daemon.drains.ledger import SECOND_NS, SELF, Ledger

# Steps that are smaller than this change nothing that matters (two heads' clocks differ so much).
TOLERATED_NS = SECOND_NS
# Of the audit only the newest lines, and none that is bounded already: a step shows at once.
_NEWEST = """
SELECT MAX(time_ns) AS at_ns FROM returns
UNION ALL SELECT MAX(updated_ns) FROM cases
UNION ALL SELECT MAX(MAX(seen_ns, intent_ns)) FROM cases
    WHERE state IN ('intent', 'draining', 'drained', 'testing')
UNION ALL SELECT MAX(time_ns) FROM anew
UNION ALL SELECT MAX(closed_ns) FROM breaker
UNION ALL SELECT MAX(time_ns) FROM audit WHERE seq > MAX(
    (SELECT COALESCE(MAX(seq), 0) FROM audit WHERE verb = 'clock_back'),
    (SELECT COALESCE(MAX(seq), 0) - 1000 FROM audit)
)
"""
# The audit and the decisions are never changed: a line ``clock_back`` bounds those before it.
_STAMPS = {
    "returns": ("time_ns", "since_ns"),
    "cases": ("created_ns", "intent_ns", "acknowledged_ns", "seen_ns", "ended_ns", "updated_ns"),
    "anew": ("time_ns",),
    "locks": ("time_ns",),
    "others": ("since_ns",),
    "breaker": ("time_ns", "closed_ns"),
}


def nothing_later(ledger: Ledger, now_ns: int) -> int:
    """Bounds what the ledger holds by ``now_ns``; answers how far ahead it was, ns, else 0."""
    ahead_ns = _ahead_ns(ledger, now_ns)
    if not ahead_ns:
        return 0
    before_ns = now_ns - 1  # what is written next, at ``now_ns``, is later than all that was
    with ledger.together() as connection:
        # What is to expire does so as long after its writing as was meant.
        connection.execute(
            "UPDATE cases SET expires_ns = expires_ns - (updated_ns - :now) "
            "WHERE updated_ns > :now AND expires_ns > 0",
            {"now": before_ns},
        )
        for table, stamps in _STAMPS.items():
            changes = ", ".join(f"{stamp} = MIN({stamp}, :now)" for stamp in stamps)
            late = " OR ".join(f"{stamp} > :now" for stamp in stamps)
            connection.execute(f"UPDATE {table} SET {changes} WHERE {late}", {"now": before_ns})  # noqa: S608
        ledger.say(
            before_ns, user=SELF, verb="clock_back",
            text=f"the head's clock was set back: what was written up to {ahead_ns / 1e9:.0f} s "
            "ahead of it counts as written now",
        )  # fmt: skip
    return ahead_ns


def _ahead_ns(ledger: Ledger, now_ns: int) -> int:
    newest_ns = max(int(row["at_ns"] or 0) for row in ledger.database.query(_NEWEST))
    ahead_ns = newest_ns - now_ns
    return ahead_ns if ahead_ns > TOLERATED_NS else 0
