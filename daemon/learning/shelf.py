"""The shelf: the models that this site has trained, which of them scores, and which did before.

``models/NAME/`` holds a model (``model.skops``, ``manifest.json``); ``models/promoted.json`` the
names that were promoted, the newest last. Rolling back takes the last one off. Who did it, and
why, stands in the head's audit; this file only says what holds.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PROMOTED_FILE = "promoted.json"
MANIFEST_LIMIT_BYTES = 16 * 2**20
# So far back can be rolled.
STACK_LIMIT = 50


class ShelfError(Exception):
    """What was asked for cannot be done. The text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One model on the shelf, by its manifest. ``fault``: why it cannot be read, or empty."""

    name: str
    promoted: bool
    gate: bool
    why: str
    threshold: float | None
    trained_until: str
    early: int | None
    failures: int | None
    false_per_1000_node_days: float | None
    net_gpu_hours: float | None
    fault: str = ""


class Shelf:
    """The folder ``directory``. One process writes to it; the training only adds a folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, name: str) -> Path:
        """Where the model ``name`` lies. Raises ShelfError for what is no name."""
        if not NAME.fullmatch(name):
            raise ShelfError(f"{name!r} is no model's name: letters, digits, . _ -")
        return self.directory / name

    def names(self) -> list[str]:
        """All models, the oldest first (names begin with their day)."""
        try:
            found = [one.name for one in self.directory.iterdir() if _is_model(one)]
        except FileNotFoundError:
            return []
        return sorted(name for name in found if NAME.fullmatch(name))

    def stack(self) -> list[str]:
        """The promoted names, the newest last. A file that cannot be read counts as empty."""
        try:
            found = json.loads((self.directory / PROMOTED_FILE).read_bytes())
            names = found["promoted"]
            return [name for name in names if isinstance(name, str) and NAME.fullmatch(name)]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def promoted(self) -> str:
        """The name that scores, or empty."""
        stack = self.stack()
        return stack[-1] if stack else ""

    def promote(self, name: str) -> None:
        """``name`` scores from now on. Raises ShelfError when it is not there."""
        if not _is_model(self.path(name)):
            known = ", ".join(self.names()) or "none"
            raise ShelfError(f"no model is called {name}; there are: {known} (tocsin model list)")
        stack = [one for one in self.stack() if one != name]
        self._write([*stack, name])

    def rollback(self) -> tuple[str, str]:
        """Takes the newest promotion back: (what scored, what scores now, empty for none).

        Raises ShelfError when nothing was promoted.
        """
        stack = self.stack()
        if not stack:
            raise ShelfError("no model was promoted, so there is nothing to roll back")
        left = [one for one in stack[:-1] if _is_model(self.directory / one)]
        self._write(left)
        return stack[-1], left[-1] if left else ""

    def prune(self, keep: int) -> list[str]:
        """Removes the oldest models beyond ``keep``, never a promoted one; their names."""
        held = set(self.stack())
        spare = [name for name in self.names() if name not in held]
        gone = spare[: max(0, len(spare) - keep)]
        for name in gone:
            shutil.rmtree(self.directory / name, ignore_errors=True)
        return gone

    def listed(self) -> list[Kept]:
        """Every model with what its manifest says, the newest first."""
        promoted = self.promoted()
        return [
            kept_of(name, self.directory / name, name == promoted)
            for name in reversed(self.names())
        ]

    def _write(self, stack: Sequence[str]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / PROMOTED_FILE
        fresh = path.with_name(path.name + ".new")
        with fresh.open("w") as file:
            json.dump({"promoted": list(stack)[-STACK_LIMIT:]}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)


def _is_model(path: Path) -> bool:
    return (path / "manifest.json").is_file()


def kept_of(name: str, path: Path, promoted: bool) -> Kept:
    """What the manifest of the model in ``path`` says; a bad one is told, never raised."""
    try:
        facts = facts_of(path)
    except ValueError as error:
        return Kept(name, promoted, False, "", None, "", None, None, None, None, str(error))
    judged = _table(_table(facts.get("judged")).get("challenger"))
    trained = facts.get("trained_on")
    last = _table(trained[-1]) if isinstance(trained, list) and trained else {}
    why = _table(facts.get("gate")).get("why")
    early, failures = _number(judged.get("early")), _number(judged.get("failures"))
    return Kept(
        name,
        promoted,
        gate_is_on(facts),
        why if isinstance(why, str) else "",
        threshold_of(facts),
        str(last.get("end", "")),
        None if early is None else int(early),
        None if failures is None else int(failures),
        _number(judged.get("false_per_1000_node_days")),
        _number(judged.get("net_gpu_hours")),
    )


def facts_of(path: Path) -> dict[str, Any]:
    """The facts of a manifest. Raises ValueError."""
    file = path / "manifest.json"
    try:
        if file.stat().st_size > MANIFEST_LIMIT_BYTES:
            raise ValueError(f"{file} is larger than {MANIFEST_LIMIT_BYTES} bytes")
        return _table(_table(json.loads(file.read_bytes())).get("facts"))
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror or error}") from error


def gate_is_on(facts: Any) -> bool:
    """Whether a model may drain at all. What does not say so may not."""
    return _table(_table(facts).get("gate")).get("learned") == "on"


def threshold_of(facts: Any) -> float | None:
    """The probability from which on it keeps its budget of false drains, if it was judged."""
    value = _number(_table(facts).get("threshold"))
    return value if value is not None and 0 < value <= 1 else None


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return float(value) if good else None
