"""Where reading of the kernel log goes on: a small file, written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from pathlib import Path
from typing import Any

_LIMIT_BYTES = 64 * 1024

Position = dict[str, Any]


class Unacknowledged:
    """Where each batch that is not safe yet ends, oldest first; bounded.

    When there are too many, the last ones become one, which is safe when all of them are.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ends: deque[list[Any]] = deque()  # [position, how many batches it stands for]

    def __bool__(self) -> bool:
        return bool(self._ends)

    def add(self, position: Position) -> None:
        """One more batch, which ends at ``position``."""
        if len(self._ends) < self._limit:
            self._ends.append([position, 1])
        else:
            self._ends[-1] = [position, self._ends[-1][1] + 1]

    def acknowledge(self) -> Position | None:
        """The oldest batch is safe: where reading may go on, where that is known now."""
        if not self._ends:
            return None
        self._ends[0][1] -= 1
        return None if self._ends[0][1] else self._ends.popleft()[0]


class CursorFile:
    """One JSON file in the source's own folder. A broken one is told, then ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""

    def load(self) -> Position | None:
        """What was saved last; None if nothing was, or if it can't be read."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self.problem = f"the cursor {self.path} can't be read: {error.strerror}"
            return None
        try:
            state = json.loads(raw[:_LIMIT_BYTES])
        except (ValueError, RecursionError):
            state = None
        if not isinstance(state, dict):
            self.problem = f"the cursor {self.path} is broken and is begun anew"
            return None
        return state

    def save(self, position: Position, *, durable: bool) -> None:
        """Puts ``position`` in place of the old one; ``durable`` waits for the disk.

        Raises OSError where the folder can't be written.
        """
        body = json.dumps(position, separators=(",", ":")).encode()
        temporary = self.path.with_suffix(".new")
        try:
            with open(temporary, "wb") as file:
                file.write(body)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        if durable:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
