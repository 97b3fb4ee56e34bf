"""Which Xids boards named before, so that an old one is not taken for a new one."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from collectors.gpu.dcgm_exporter_text import Scraped, xids
from collectors.sample import Sample


class Xids:
    """Which Xids each board named before, kept over restarts.

    An exporter goes on naming the last Xid of a board until DCGM restarts. Only a change is an
    event, and what a board names when it is met for the first time is of unknown age and none.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._changed = False
        self._seen: dict[str, dict[str, float]] = {}
        with contextlib.suppress(OSError, ValueError):
            held = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(held, dict):
                self._seen = {
                    str(key): {str(name): float(value) for name, value in one.items()}
                    for key, one in held.items()
                    if isinstance(one, dict)
                }

    def new(self, one: Scraped, node: str, now_ns: int) -> list[Sample]:
        """The events of Xids that are new on this board."""
        key = f"{node}/{one.board.uuid or one.board.index}"
        before = self._seen.get(key)
        now = {str(code): count for code, count in one.xid_counts.items()}
        now["last"] = one.values.xid or 0.0
        if now == before:
            return []
        self._seen[key] = now
        self._changed = True
        if before is None:
            return []
        risen = {
            code: count - before.get(str(code), 0.0)
            for code, count in one.xid_counts.items()
            if count > before.get(str(code), 0.0)
        }
        last_is_new = now["last"] != before.get("last", 0.0)
        told = Scraped(one.board, one.host, xid_counts=risen)
        told.values.xid = one.values.xid if last_is_new else None
        return xids(told, node, now_ns)

    def save(self) -> None:
        """Writes what changed, whole or not at all."""
        if not self._changed:
            return
        new = self._file.with_suffix(".new")
        with contextlib.suppress(OSError):
            new.write_text(json.dumps(self._seen), encoding="utf-8")
            new.replace(self._file)
            self._changed = False
