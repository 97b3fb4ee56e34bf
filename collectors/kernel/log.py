"""The kernel log: Xid lines and their like, from /dev/kmsg, journald or a file.

Every line counts once. Where reading goes on is kept on disk, and moves only past what the agent
has made safe: the agent calls :meth:`KernelLog.acknowledge` when a batch is in its spool. Across a
restart of the agent nothing is told twice or lost; across a restart of the node (another boot id) a
``reboot`` event comes first, so that everybody knows that what was before is over.

A first start has no cursor: it reads what this boot holds, with the true times of the lines.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field

from collectors import options as base
from collectors.bell import Bell
from collectors.command import Runner
from collectors.events import EVENT_METRICS, INFO, event, spaced
from collectors.kernel.cursor import CursorFile, Position, Unacknowledged
from collectors.kernel.hosts import Hosts
from collectors.kernel.journal import JournalReader
from collectors.kernel.kmsg import KmsgReader
from collectors.kernel.lines import Lines, unreadable
from collectors.kernel.records import Record
from collectors.kernel.storm import Storm
from collectors.kernel.text import TextReader
from collectors.sample import Batch, Context, Metric, Problem, Sample, SourceUnavailable, Tags, clip

SECOND_NS = 1_000_000_000
METRICS: tuple[Metric, ...] = EVENT_METRICS

# A cursor that passed only lines of no interest is saved this often: losing it costs a
# second look at them, nothing else.
_IDLE_SAVE_SECONDS = 30.0
_PENDING_LIMIT = 10_000
_PROBLEMS_LIMIT = 20
_TAGS_LIMIT = 2_000
_APART_NS = 1_000_000


class Options(base.Options):
    """Settings of the ``kernel_log`` source."""

    # A look at an idle /dev/kmsg is one system call; the period is what a fault line waits.
    period_seconds: float = Field(default=0.25, gt=0, le=3_600)
    deadline_seconds: float = Field(default=5.0, gt=0, le=3_600)
    # auto: /dev/kmsg where it may be read, else journald.
    backend: Literal["auto", "kmsg", "journald", "file"] = "auto"
    # The file to follow, for backend "file" (which a path implies).
    path: str = Field(default="", max_length=4_096)
    # Names that the file's lines give this node, beside its NodeName and its host name. Lines that
    # name another host are left out.
    host_names: frozenset[str] = frozenset()
    # Read a file that programs write into too, where any user can write as the kernel does and so
    # bring about a drain: only where no user's line gets there.
    trust_mixed_log: bool = False
    journal_program: str = Field(default="journalctl", min_length=1, max_length=4_096)
    journal_period_seconds: float = Field(default=2.0, gt=0, le=3_600)
    records_per_cycle: int = Field(default=20_000, ge=100, le=1_000_000)
    # How many alike lines pass in ten seconds before they are joined into one event.
    burst_count: int = Field(default=10, ge=1, le=10_000)
    # Count lines that root wrote into /dev/kmsg as if the kernel had: for drills only.
    trust_written_records: bool = False


class Reader(Protocol):
    """A way to the kernel's messages."""

    kind: str
    problems: list[Problem]

    @property
    def fault(self) -> str: ...
    def resume(self, position: Position | None) -> None: ...
    def position(self) -> Position: ...
    def read(self, now_ns: int, limit_records: int) -> list[Record]: ...
    def wait(self, seconds: float, bell: Bell) -> None: ...
    def close(self) -> None: ...


class KernelLog:
    """The source. ``collect`` runs in one thread; ``acknowledge`` may be called from others."""

    name = "kernel_log"

    def __init__(
        self,
        options: Options,
        context: Context,
        runner: Runner | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.options = options
        self.period_seconds = options.period_seconds
        self.deadline_seconds = options.deadline_seconds
        self._context = context
        self._runner = runner or Runner()
        self._monotonic_ns = monotonic_ns
        self._file = CursorFile(context.state_dir / "kernel_log.json")
        self._reader: Reader | None = None
        self._bell = Bell()
        self._busy = False
        self._lines = Lines()
        self._storm = Storm(options.burst_count)
        self._boot_id = ""
        self._lock = threading.Lock()
        self._pending = Unacknowledged(_PENDING_LIMIT)
        self._saved: Position = {}
        self._saved_at_ns = 0
        self._newest_ns: dict[Tags, int] = {}
        self._news: list[Sample] = []
        self._problems: list[Problem] = []

    # ---- the source ---------------------------------------------------------------------------

    def collect(self, now_ns: int) -> Batch:
        """Takes the new lines and gives their events."""
        reader = self._reader or self._start(now_ns)
        records = reader.read(now_ns, self.options.records_per_cycle)
        samples = [self._apart(one) for one in (*self._news, *self._events(records, now_ns))]
        self._news = []
        self._busy = bool(records) or self._storm.holding
        problems = [*self._problems, *reader.problems[:_PROBLEMS_LIMIT]]
        self._problems = []
        reader.problems.clear()
        self._moved(reader.position(), now_ns, bool(samples))
        told = tuple(problems[:_PROBLEMS_LIMIT])
        return Batch(self.name, tuple(spaced(samples)), told, fault=reader.fault)

    def acknowledge(self) -> None:
        """The oldest batch with events that was not acknowledged yet is safe.

        Call it once for each batch that held events, after it is on disk in the spool or with
        the head. Where the cursor can't be written, the next batch says so, and a restart tells
        some lines again.
        """
        with self._lock:
            position = self._pending.acknowledge()
            if position is None:
                return
            try:
                self._file.save(position, durable=True)
            except OSError as error:
                self._cursor_problem(error)
                return
            self._saved, self._saved_at_ns = position, self._context.now_ns()

    def wait(self, seconds: float) -> None:
        """Returns when there may be new lines, when the source ends, or after ``seconds``.

        While something is held (a storm, a report of many lines), after no more than a period.
        """
        if self._reader is not None:
            held = self.period_seconds if self._busy else seconds
            self._reader.wait(min(seconds, held), self._bell)

    def wake(self) -> None:
        """Ends a wait under way, and all later ones."""
        self._bell.ring()

    def close(self) -> None:
        """Lets go of the log and saves how far it was read, where nothing waits for a word."""
        reader, self._reader = self._reader, None
        self._bell.close()
        if reader is None:
            return
        with self._lock:
            position = {**reader.position(), "boot": self._boot_id}
            if not self._pending and position != self._saved:
                # A folder that went away means only that the next start reads a little more.
                with contextlib.suppress(OSError):
                    self._file.save(position, durable=True)
        reader.close()

    # ---- inside -------------------------------------------------------------------------------

    def _start(self, now_ns: int) -> Reader:
        self._boot_id = self._read_boot_id()
        reader = self._choose()
        position = self._file.load()
        if self._file.problem:
            self._problems.append(Problem(self._file.problem))
        if position is not None:
            before = position.get("boot")
            if isinstance(before, str) and before and self._boot_id and before != self._boot_id:
                self._news.append(self._reboot(before, now_ns))
            if position.get("kind") == reader.kind:
                reader.resume(position)
        self._reader = reader
        return reader

    def _choose(self) -> Reader:
        options, root = self.options, self._context.root
        if options.backend == "file" or options.path:
            if not options.path:
                raise SourceUnavailable('backend = "file" needs a path: path = "/var/log/kern.log"')
            return self._text(Path(options.path))
        if options.backend == "journald":
            return self._journal()
        path = root / "dev/kmsg"
        try:
            mode = path.stat().st_mode
            # Whether it may be read shows only on opening it (CAP_SYSLOG, not the mode, counts).
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            readable = True
        except OSError:
            mode, readable = 0, False
        if options.backend == "auto" and not readable and self._has_journal():
            return self._journal()
        if readable and not stat.S_ISCHR(mode):
            return self._text(path)  # a copy of the ring in a plain file
        return KmsgReader(path, self._boot_id, self._monotonic_ns)

    def _text(self, path: Path) -> TextReader:
        trust = self.options.trust_mixed_log
        return TextReader(path, self._boot_ns, self._hosts(), trust_mixed=trust)

    def _journal(self) -> JournalReader:
        options = self.options
        return JournalReader(
            self._runner,
            options.journal_program,
            options.journal_period_seconds,
            # The runner needs a moment of its own to end a program that hangs.
            max(0.5, options.deadline_seconds - 2.0),
        )

    def _hosts(self) -> Hosts:
        named = self._read_word("proc/sys/kernel/hostname")
        return Hosts((self._context.node, named, *self.options.host_names))

    def _has_journal(self) -> bool:
        return (self._context.root / "run/systemd/journal").exists()

    def _events(self, records: list[Record], now_ns: int) -> list[Sample]:
        found: list[Sample] = []
        time_ns = now_ns
        for record in records:
            if not record.kernel and not self.options.trust_written_records:
                continue
            time_ns = record.time_ns or now_ns
            events = self._lines.feed(record.text)
            if not events and len(self._problems) < _PROBLEMS_LIMIT and unreadable(record.text):
                self._problems.append(
                    Problem("an Xid line that can't be read", clip(record.text, 400))
                )
            for one in events:
                found.extend(
                    event.sample(self._context.node, at_ns)
                    for event, at_ns in self._storm.feed(one, time_ns, now_ns)
                )
        if not records:
            # The lines of one report come in one burst; after a pause it is whole.
            found.extend(one.sample(self._context.node, time_ns) for one in self._lines.flush())
        found.extend(
            event.sample(self._context.node, at_ns) for event, at_ns in self._storm.due(now_ns)
        )
        return found

    def _apart(self, sample: Sample) -> Sample:
        """``sample``, moved on a little where an alike one of an earlier look has its time.

        Syslog stamps whole seconds: two lines of one second must not become one point.
        """
        newest_ns = self._newest_ns.get(sample.tags, 0)
        if 0 <= newest_ns - sample.time_ns < _APART_NS:
            sample = Sample(sample.measurement, sample.tags, sample.fields, newest_ns + 1)
        if len(self._newest_ns) > _TAGS_LIMIT:
            self._newest_ns.clear()
        self._newest_ns[sample.tags] = max(newest_ns, sample.time_ns)
        return sample

    def _moved(self, position: Position, now_ns: int, events: bool) -> None:
        """Notes how far the log was read; without events nothing needs to be acknowledged."""
        position = {**position, "boot": self._boot_id}
        with self._lock:
            if events:
                self._pending.add(position)
                return
            idle_ns = now_ns - self._saved_at_ns
            if self._pending or 0 <= idle_ns < _IDLE_SAVE_SECONDS * SECOND_NS:
                return
            if position == self._saved:
                return
            self._saved_at_ns = now_ns
            try:
                self._file.save(position, durable=False)
            except OSError as error:
                self._cursor_problem(error)
            else:
                self._saved = position

    def _cursor_problem(self, error: OSError) -> None:
        if len(self._problems) < _PROBLEMS_LIMIT:
            text = f"the cursor {self._file.path} can't be written: {error.strerror}"
            self._problems.append(Problem(text))

    def _reboot(self, before: str, now_ns: int) -> Sample:
        time_ns = self._boot_ns() or now_ns
        text = f"the node restarted: boot id {self._boot_id}, before {before}"
        return event(self._context.node, "reboot", "boot", time_ns, text=text, severity=INFO)

    def _read_boot_id(self) -> str:
        return self._read_word("proc/sys/kernel/random/boot_id")[:64]

    def _read_word(self, path: str) -> str:
        try:
            return (self._context.root / path).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def _boot_ns(self) -> int:
        """When this boot began (UTC), 0 if /proc does not tell."""
        try:
            with open(self._context.root / "proc/stat", encoding="ascii", errors="replace") as file:
                for line in file:
                    if line.startswith("btime "):
                        return int(line.split()[1]) * SECOND_NS
        except (OSError, ValueError, IndexError):
            pass
        return 0


def make(options: Options, context: Context) -> KernelLog:
    """The source as the agent makes it."""
    return KernelLog(options, context)
