"""What Slurm's accounting knows of failed nodes, read once a day into the store.

tocsin sees a node go down while it watches; accounting reaches back before it came, and over the
time when the head was down. Each NODE_FAIL of a job on one node becomes a ``slurm_event`` of kind
``accounting``, code ``node_fail``, which training takes for a failure (models/labels.py). The
watch is not shown them: they are weeks old.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog

from collectors.command import Runner
from collectors.sample import Sample, sample
from collectors.slurm.faults import SlurmTrouble, trouble
from collectors.slurm.reader import Tools
from collectors.slurm.source import Options
from daemon.slurm.history import SACCT, parse_sacct
from daemon.store.database import Database

log = structlog.get_logger("tocsin.history")

DAY_NS = 86_400 * 1_000_000_000
# Jobs are accounted a little after they end.
OVERLAP_NS = DAY_NS
DEADLINE_SECONDS = 300.0
OUTPUT_LIMIT_BYTES = 64 * 1024 * 1024

SCHEMA = """
CREATE TABLE IF NOT EXISTS mined (
    one INTEGER PRIMARY KEY CHECK (one = 1), until_ns INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS mined_failures (
    node TEXT NOT NULL, time_ns INTEGER NOT NULL, PRIMARY KEY (node, time_ns)
) WITHOUT ROWID;
"""


class Accounting:
    """Asks ``sacct``. Blocks; ends by its deadline."""

    def __init__(self, options: Options | None = None, runner: Runner | None = None) -> None:
        options = options or Options()
        self._tools = Tools(options.conf, options.binaries)
        self._runner = runner or Runner()

    def failures(self, since_ns: int, until_ns: int) -> list[tuple[str, int]]:
        """Node and time (UTC ns) of each failure in the span. Raises SlurmTrouble."""
        self._tools.check()
        span = (f"--starttime={_local(since_ns)}", f"--endtime={_local(until_ns)}")
        result = self._runner.run(
            self._tools.command("sacct", *SACCT, *span),
            deadline_seconds=DEADLINE_SECONDS,
            kind="slurm-sacct",
            env=self._tools.environment(),
            output_bytes=OUTPUT_LIMIT_BYTES,
        )
        if not result.ok:
            raise trouble(result)
        found = parse_sacct(result.text())
        return [(node, at_ns) for node, at_ns in found if since_ns <= at_ns <= until_ns]


class Past:
    """Remembers how far accounting was read. One turn at a time."""

    def __init__(self, accounting: Accounting, database: Database, days: float) -> None:
        """``days``: how far back it is read at first."""
        self._accounting = accounting
        self._database = database
        self._days = days
        database.define(SCHEMA)

    def look(self, now_ns: int) -> list[Sample]:
        """Failures that were not known yet. Blocks. Raises SlurmTrouble."""
        rows = self._database.query("SELECT until_ns FROM mined")
        first_ns = now_ns - int(self._days * DAY_NS)
        # A clock that once stood in the future must not keep the past from being read.
        until_ns = min(rows[0]["until_ns"], now_ns) if rows else 0
        since_ns = max(first_ns, until_ns - OVERLAP_NS)
        known = {
            (row["node"], row["time_ns"])
            for row in self._database.query("SELECT node, time_ns FROM mined_failures")
        }
        found = self._accounting.failures(since_ns, now_ns)
        return [failure_sample(node, at_ns) for node, at_ns in found if (node, at_ns) not in known]

    def remember(self, samples: Sequence[Sample], now_ns: int) -> None:
        """What is durable in the store need not be read again."""
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO mined_failures VALUES (?, ?)",
                [(one.tag("node"), one.time_ns) for one in samples],
            )
            connection.execute("INSERT OR REPLACE INTO mined VALUES (1, ?)", (now_ns,))
            connection.execute(
                "DELETE FROM mined_failures WHERE time_ns < ?", (now_ns - 2 * OVERLAP_NS,)
            )


async def mine(
    past: Past, write: Callable[[Sequence[Sample]], Awaitable[object]], now_ns: int
) -> None:
    """One turn: reads, keeps by ``write`` (durable when it returns), and remembers."""
    try:
        samples = await asyncio.to_thread(past.look, now_ns)
    except SlurmTrouble as error:
        log.info("accounting_not_read", why=str(error))
        return
    if samples:
        await write(samples)
    await asyncio.to_thread(past.remember, samples, now_ns)
    log.info("accounting_read", failures=len(samples))


def failure_sample(node: str, at_ns: int) -> Sample:
    """A job on ``node`` alone ended at ``at_ns`` for its node failed."""
    text = f"{node} failed under a job, says accounting"
    fields: dict[str, float | str] = {"severity": 2.0, "text": text}
    return sample("slurm_event", at_ns, fields, node=node, kind="accounting", code="node_fail")


def _local(time_ns: int) -> str:
    """Local time, as sacct reads it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time_ns // 1_000_000_000))
