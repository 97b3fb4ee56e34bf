"""Keeps on disk how far the logs of all BMCs have been read.

A round's cursors are written when the next round begins: only then has what the round found been
taken. After a crash the last entries come again, with the same times and texts, and are the same
points; none is lost.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from collectors.sample import SourceUnavailable

FILE_LIMIT_BYTES = 256 * 1024 * 1024


class CursorFile:
    """One JSON file: node -> where its logs stand."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: dict[str, Any] = {}
        self.pending: dict[str, Any] = {}

    def load(self) -> dict[str, Any]:
        """What was written last; empty where there is nothing or it is damaged."""
        try:
            if self._path.stat().st_size > FILE_LIMIT_BYTES:
                return {}
            held = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return held if isinstance(held, dict) else {}

    def save(self) -> None:
        """Writes ``pending`` where it has changed; SourceUnavailable where it cannot."""
        if self.pending == self._written:
            return
        temporary = Path(f"{self._path}.new")
        try:
            temporary.write_text(json.dumps(self.pending, separators=(",", ":")))
            temporary.replace(self._path)
        except OSError as error:
            said = error.strerror or str(error)
            raise SourceUnavailable(f"{self._path} cannot be written: {said}") from error
        self._written = self.pending
