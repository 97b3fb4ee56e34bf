"""Whatever happens to a log file between looks, each line comes once and in order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from collectors.kernel.cursor import CursorFile
from collectors.kernel.file import FileTail


class Log(RuleBasedStateMachine):
    """A writer, a rotator and a reader that may be killed, against a list of what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tocsin-log-"))
        self.path = self.folder / "kern.log"
        self.path.write_text("")
        self.cursor = CursorFile(self.folder / "cursor.json")
        self.tail = FileTail(self.path)
        self.written: list[str] = []
        self.seen: list[str] = []
        self.safe = 0  # how many of the seen lines are acknowledged
        self.rotated = 0
        self.rotations_since_safe = 0
        self.unread = 0
        self.look(1)
        self.acknowledge()

    def teardown(self) -> None:
        self.tail.close()
        shutil.rmtree(self.folder)

    def write(self, path: Path, count: int, words: int) -> None:
        with open(path, "a") as file:
            for _ in range(count):
                line = f"line {len(self.written)} " + "x" * words
                self.written.append(line)
                self.unread += 1
                file.write(line + "\n")

    @rule(count=st.integers(1, 5), words=st.integers(0, 300))
    def append(self, count: int, words: int) -> None:
        self.write(self.path, count, words)

    @rule(pieces=st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=3))
    def append_in_pieces(self, pieces: list[str]) -> None:
        for piece in pieces:
            with open(self.path, "a") as file:
                file.write(piece)
            self.look(1_000)
        with open(self.path, "a") as file:
            file.write("\n")
        self.written.append("".join(pieces))
        self.unread += 1

    # A reader that follows a name sees at most one rotation back: the acknowledged place is
    # either in the file itself or in the one that was rotated last.
    @precondition(lambda self: self.rotations_since_safe == 0)
    @rule(late=st.integers(0, 2))
    def rotate(self, late: int) -> None:
        """logrotate's ``create``; the old writer may write on for a moment."""
        self.rotated += 1
        self.rotations_since_safe += 1
        self.unread += 1  # the new file was not seen yet
        old = self.path.with_name(f"kern.log.{self.rotated}")
        self.path.rename(old)
        self.write(old, late, 3)
        self.path.write_text("")

    @rule(limit=st.integers(1, 1_000))
    def look(self, limit: int) -> None:
        for _ in range(200):
            lines = self.tail.read(limit)
            self.seen += [one.raw.decode() for one in lines]
            if not lines:
                break
        self.unread = 0

    @rule()
    def acknowledge(self) -> None:
        self.cursor.save(self.tail.position(), durable=False)
        self.safe = len(self.seen)
        if self.unread == 0:
            self.rotations_since_safe = 0

    @precondition(lambda self: self.unread == 0)
    @rule()
    def truncate_in_place(self) -> None:
        """logrotate's ``copytruncate``, when all was read."""
        with open(self.path, "r+") as file:
            file.truncate(0)
        self.look(10)
        self.acknowledge()

    @rule()
    def kill_and_start_again(self) -> None:
        self.tail.close()
        self.tail = FileTail(self.path)
        position = self.cursor.load()
        self.tail.resume(position)
        del self.seen[self.safe if position is not None else 0 :]
        self.unread = 1

    @invariant()
    def each_line_once_and_in_order(self) -> None:
        assert self.seen == self.written[: len(self.seen)]


TestLog = Log.TestCase
TestLog.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
