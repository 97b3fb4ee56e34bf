"""What rasdaemon saw, from its database: memory errors, PCIe errors, machine checks, disk errors.

For nodes where rasdaemon runs: the kernel hands it what it then no longer prints. It is off unless
named, for memory and PCIe errors stand in the kernel log as well and would be counted twice.

The database is read without taking its lock: rasdaemon does not wait for a lock, and would lose the
error that it was about to write. A look that met a change under way is thrown away and made again.
"""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

from pydantic import Field

from collectors.events import EVENT_METRICS, spaced
from collectors.kernel.cursor import CursorFile, Position, Unacknowledged
from collectors.kernel.ras_rows import TABLES, time_of
from collectors.kernel.ras_text import rows_after
from collectors.options import Options as SourceOptions
from collectors.sample import Batch, Context, Problem, Sample, SourceUnavailable, clip

NAME = "rasdaemon"
METRICS = EVENT_METRICS
SECOND_NS = 1_000_000_000
_PENDING_LIMIT = 1_000
_TRIES = 3


class Options(SourceOptions):
    """Settings of the rasdaemon source. ``database`` is below the root of the node."""

    period_seconds: float = Field(default=10.0, gt=0, le=86_400)
    deadline_seconds: float = Field(default=5.0, gt=0, le=3_600)
    database: str = Field(default="/var/lib/rasdaemon/ras-mc_event.db", min_length=1)
    rows_per_cycle: int = Field(default=1_000, ge=1, le=100_000)


def make(options: Options, context: Context) -> Rasdaemon:
    """The rasdaemon source."""
    return Rasdaemon(options, context)


class Rasdaemon:
    """Tells each row of the database once, over restarts too. See the module's words."""

    name = NAME

    def __init__(self, options: Options, context: Context) -> None:
        self.period_seconds = options.period_seconds
        self.deadline_seconds = options.deadline_seconds
        self._options = options
        self._context = context
        self._path = context.root / options.database.lstrip("/")
        self._file = CursorFile(context.state_dir / "rasdaemon.json")
        self._last: dict[str, int] | None = None
        self._since_ns = 0
        self._seen: tuple[int, int] | None = (0, 0)
        self._pending = Unacknowledged(_PENDING_LIMIT)
        self._lock = threading.Lock()

    def collect(self, now_ns: int) -> Batch:
        """The rows that are new. The first look ever tells those of this boot only."""
        problems = []
        if self._last is None:
            position = self._file.load()
            self._last = _numbers(position)
            self._since_ns = 0 if position is not None else self._boot_ns()
            if self._file.problem:
                problems.append(Problem(self._file.problem))
        found = self._rows(self._last)
        samples = []
        for table, number, sample in found:
            self._last[table] = number
            if sample is not None and sample.time_ns >= self._since_ns:
                samples.append(sample)
        if samples:
            with self._lock:
                self._pending.add({"last": dict(self._last)})
        return Batch(NAME, tuple(spaced(samples)), tuple(problems))

    def acknowledge(self) -> None:
        """The oldest batch with events is safe: a restart goes on after it."""
        with self._lock:
            if (position := self._pending.acknowledge()) is not None:
                self._file.save(position, durable=True)

    def close(self) -> None:
        """Nothing is kept open."""

    # ---- inside ----------------------------------------------------------------------------

    def _rows(self, last: dict[str, int]) -> list[tuple[str, int, Sample | None]]:
        import sqlite3  # on use: most agents read no rasdaemon

        fault = ""
        for _ in range(_TRIES):
            before = self._state()
            if before == self._seen:
                return []
            if before is None:
                fault = "a change is under way"
                continue
            try:
                found = self._read(last)
            except sqlite3.Error as error:
                fault = clip(str(error), 200)
                continue  # perhaps met in the middle of a change
            if self._state() != before:
                fault = "it changes all the time"
                continue
            if len(found) < self._options.rows_per_cycle:
                self._seen = before
            return found
        raise SourceUnavailable(f"{self._path} can't be read: {fault}")

    def _read(self, last: dict[str, int]) -> list[tuple[str, int, Sample | None]]:
        import sqlite3

        found: list[tuple[str, int, Sample | None]] = []
        uri = self._path.absolute().as_uri() + "?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            for table, number, row in rows_after(database, last, self._options.rows_per_cycle):
                event = TABLES[table](row)
                at_ns = time_of(row) or 0
                told = event.sample(self._context.node, at_ns) if event and at_ns > 0 else None
                found.append((table, number, told))
        return found

    def _state(self) -> tuple[int, int] | None:
        """Size and time of the file. None while a journal beside it says that it changes."""
        journal = self._path.with_name(self._path.name + "-journal")
        try:
            status = self._path.stat()
            busy = journal.is_file() and journal.stat().st_size > 0
        except OSError as error:
            raise SourceUnavailable(
                f"{self._path} can't be read: {error.strerror}; does rasdaemon run with --record?"
            ) from error
        return None if busy else (status.st_size, status.st_mtime_ns)

    def _boot_ns(self) -> int:
        try:
            text = (Path(self._context.root) / "proc/stat").read_text(errors="replace")
            line = next(one for one in text.splitlines() if one.startswith("btime "))
            return int(line.split()[1]) * SECOND_NS
        except (OSError, ValueError, IndexError, StopIteration):
            return 0


def _numbers(position: Position | None) -> dict[str, int]:
    last = (position or {}).get("last")
    if not isinstance(last, dict):
        return {}
    return {name: number for name, number in last.items() if isinstance(number, int)}
