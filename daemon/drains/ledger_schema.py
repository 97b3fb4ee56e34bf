"""The ledger's tables. Triggers keep decisions and audit append-only, whoever asks."""

from __future__ import annotations

SCHEMA = """
CREATE TABLE IF NOT EXISTS cases (
    id TEXT PRIMARY KEY, node TEXT NOT NULL, rule TEXT NOT NULL, code TEXT NOT NULL,
    device TEXT NOT NULL, voice TEXT NOT NULL, state TEXT NOT NULL, onset_ns INTEGER NOT NULL,
    created_ns INTEGER NOT NULL, updated_ns INTEGER NOT NULL, reason TEXT NOT NULL DEFAULT '',
    intent_ns INTEGER NOT NULL DEFAULT 0, acknowledged_ns INTEGER NOT NULL DEFAULT 0,
    seen_ns INTEGER NOT NULL DEFAULT 0, ended_ns INTEGER NOT NULL DEFAULT 0,
    expires_ns INTEGER NOT NULL DEFAULT 0, boot_time_ns INTEGER NOT NULL DEFAULT 0,
    user TEXT NOT NULL DEFAULT '', return_by TEXT NOT NULL DEFAULT '',
    text TEXT NOT NULL DEFAULT '', verdict INTEGER
);
CREATE INDEX IF NOT EXISTS cases_node ON cases (node);
CREATE INDEX IF NOT EXISTS cases_updated ON cases (updated_ns);
CREATE INDEX IF NOT EXISTS cases_state ON cases (state, voice, updated_ns);
-- One node is held by one case.
CREATE UNIQUE INDEX IF NOT EXISTS cases_held ON cases (node)
    WHERE state IN ('intent', 'draining', 'drained', 'testing');
CREATE TABLE IF NOT EXISTS decisions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, time_ns INTEGER NOT NULL,
    node TEXT NOT NULL, action TEXT NOT NULL, guard TEXT NOT NULL, body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS decisions_id ON decisions (id, seq);
CREATE INDEX IF NOT EXISTS decisions_node ON decisions (node, seq);
-- The decision behind an intent, until it is recorded with what became of it.
CREATE TABLE IF NOT EXISTS intents (id TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS audit (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, time_ns INTEGER NOT NULL, user TEXT NOT NULL,
    verb TEXT NOT NULL, node TEXT NOT NULL, subject TEXT NOT NULL, text TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS audit_node ON audit (node, seq);
CREATE INDEX IF NOT EXISTS audit_subject ON audit (subject, seq);
-- A line ``clock_back`` says that all before it was written before its time.
CREATE INDEX IF NOT EXISTS audit_clock ON audit (seq) WHERE verb = 'clock_back';
-- Nodes that somebody else has drained, as last seen, and every return into service.
CREATE TABLE IF NOT EXISTS others (
    node TEXT PRIMARY KEY, since_ns INTEGER NOT NULL, reason TEXT NOT NULL, user TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS returns (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, node TEXT NOT NULL, time_ns INTEGER NOT NULL,
    since_ns INTEGER NOT NULL, reason TEXT NOT NULL, user TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS returns_node ON returns (node, time_ns);
CREATE TABLE IF NOT EXISTS locks (
    node TEXT PRIMARY KEY, user TEXT NOT NULL, time_ns INTEGER NOT NULL, text TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS breaker (
    one INTEGER PRIMARY KEY CHECK (one = 1), text TEXT NOT NULL, time_ns INTEGER NOT NULL,
    closed_ns INTEGER NOT NULL DEFAULT 0
);
-- Since when the history of a node (``n1``) or a part of it (``n1/gpu3``) counts: it was replaced.
CREATE TABLE IF NOT EXISTS anew (
    subject TEXT PRIMARY KEY, time_ns INTEGER NOT NULL, text TEXT NOT NULL
);
CREATE TRIGGER IF NOT EXISTS decisions_kept BEFORE UPDATE ON decisions
    BEGIN SELECT RAISE(ABORT, 'decisions are append-only'); END;
CREATE TRIGGER IF NOT EXISTS decisions_stay BEFORE DELETE ON decisions
    BEGIN SELECT RAISE(ABORT, 'decisions are append-only'); END;
CREATE TRIGGER IF NOT EXISTS audit_kept BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
CREATE TRIGGER IF NOT EXISTS audit_stays BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
"""

OTHER_DRAIN = """
INSERT INTO others VALUES (?, ?, ?, ?)
    ON CONFLICT (node) DO UPDATE SET reason = excluded.reason, user = excluded.user
"""

# The reason is that of the newest row: https://sqlite.org/lang_select.html#bareagg
LAST_RETURNS = "SELECT node, MAX(time_ns) AS at_ns, reason FROM returns GROUP BY node"

# When something was last said of a node, by the head's clock as it was set right since.
LAST_SAID = """
SELECT MIN(said.time_ns, COALESCE((SELECT MIN(back.time_ns) FROM audit AS back
    WHERE back.verb = 'clock_back' AND back.seq > said.seq), said.time_ns)) AS at_ns
FROM audit AS said WHERE said.node = ? AND said.verb = ? ORDER BY said.seq DESC LIMIT 1
"""
