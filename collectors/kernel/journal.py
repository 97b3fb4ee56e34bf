"""Reads the kernel's messages from journald, by ``journalctl`` and its cursor.

For nodes where /dev/kmsg may not be read. Each look starts a program, so looks are rarer than
with /dev/kmsg; only records with ``_TRANSPORT=kernel`` are asked for.
"""

from __future__ import annotations

from collectors.bell import Bell
from collectors.command import Runner
from collectors.kernel.cursor import Position
from collectors.kernel.records import Record, journal_record
from collectors.sample import Problem, SourceUnavailable

SECOND_NS = 1_000_000_000
_FIELDS = "MESSAGE,_TRANSPORT,SYSLOG_FACILITY,_BOOT_ID,_SOURCE_MONOTONIC_TIMESTAMP"


class JournalReader:
    """Takes new records from the journal."""

    kind = "journald"
    fault = ""

    def __init__(
        self, runner: Runner, program: str, period_seconds: float, deadline_seconds: float
    ) -> None:
        self._runner = runner
        self._program = program
        self._period_ns = int(period_seconds * SECOND_NS)
        self._deadline_seconds = deadline_seconds
        self._cursor = ""
        self._newest_ns = 0  # the time of the record at the cursor
        self._looked_ns = 0
        self._choose_fields = True
        self.problems: list[Problem] = []

    def resume(self, position: Position | None) -> None:
        """Goes on after the record that ``position`` names."""
        if position is None:
            return
        cursor, newest_ns = position.get("cursor"), position.get("newest_ns")
        if isinstance(cursor, str):
            self._cursor = cursor
        if isinstance(newest_ns, int):
            self._newest_ns = newest_ns

    def position(self) -> Position:
        """Where to go on."""
        return {"kind": self.kind, "cursor": self._cursor, "newest_ns": self._newest_ns}

    def read(self, now_ns: int, limit_records: int) -> list[Record]:
        """New records. Raises SourceUnavailable where journalctl can't be run."""
        if self._looked_ns and 0 <= now_ns - self._looked_ns < self._period_ns:
            return []
        self._looked_ns = now_ns
        body = self._ask(now_ns)
        found: list[Record] = []
        for raw in body.split(b"\n")[:-1]:  # the last piece has no line end: cut off, or empty
            if len(found) >= limit_records:
                break
            record = journal_record(raw)
            if record is None:
                if raw.strip() and len(self.problems) < 20:
                    self.problems.append(
                        Problem("journalctl printed no journal entry", repr(raw[:200]))
                    )
                continue
            if record.cursor:
                self._cursor = record.cursor
            self._newest_ns = max(self._newest_ns, record.time_ns or 0)
            found.append(record)
        return found

    def wait(self, seconds: float, bell: Bell) -> None:
        """Returns after ``seconds``: journalctl is asked only so often anyway."""
        bell.wait(seconds)

    def close(self) -> None:
        """Nothing is held between looks."""

    def _ask(self, now_ns: int) -> bytes:
        since = f"--since=@{self._newest_ns // SECOND_NS}" if self._newest_ns else "--boot"
        for where in ([f"--after-cursor={self._cursor}"] if self._cursor else []) + [since]:
            argv = [self._program, "--output=json", "--no-pager", "--quiet", "--all", where]
            if self._choose_fields:
                argv.append(f"--output-fields={_FIELDS}")
            argv.append("_TRANSPORT=kernel")
            result = self._runner.run(
                argv, deadline_seconds=self._deadline_seconds, kind="journalctl"
            )
            if result.ok or result.status == "flood":
                return result.stdout
            said = result.stderr.decode("utf-8", "replace").lower()
            if result.status != "ended":
                raise SourceUnavailable(result.fault)
            if "output-fields" in said and self._choose_fields:
                self._choose_fields = False  # systemd before 236
                return self._ask(now_ns)
            if "cursor" not in said:
                raise SourceUnavailable(result.fault)
            # The journal was vacuumed or replaced: go on by time instead.
            self.problems.append(Problem("journald no longer knows our cursor; reading by time"))
        raise SourceUnavailable(result.fault)
