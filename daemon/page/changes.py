"""Which nodes changed since a viewer last asked, so that 10,000 nodes can be watched.

Every look gives changed rows a new revision. A viewer sends back the revision it holds and
gets only the rows that changed after it. Ages and small moves of a risk would make every row
new each second; they count only when they pass a step that a person would notice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from daemon.page.view import NodeView

_NAMES = tuple(f.name for f in dataclasses.fields(NodeView))
_VALUES = attrgetter(*_NAMES)
_PLAIN = attrgetter(*(name for name in _NAMES if name not in ("risk", "heard_seconds")))

# Ages at which a row counts as changed; beyond the last, every ten minutes.
_AGE_STEPS_SECONDS = (60.0, 300.0, 600.0)


def row(node: NodeView) -> dict[str, Any]:
    """``node`` as a JSON object. Written out for speed: ``plain`` costs 20 times as much."""
    made = dict(zip(_NAMES, _VALUES(node), strict=True))
    risk = node.risk
    if risk is not None:
        made["risk"] = round(risk, 4) if math.isfinite(risk) else None
    if node.heard_seconds is not None:
        made["heard_seconds"] = round(node.heard_seconds, 1)
    return made


@dataclass(frozen=True, slots=True)
class Difference:
    """``rows`` changed and ``gone`` names vanished after the viewer's revision.

    ``full`` is true when these are all rows and the viewer must forget what it had.
    """

    revision: int
    full: bool
    rows: list[dict[str, Any]]
    gone: list[str]


class Changes:
    """Remembers each node's last noticeable row and the revision that brought it."""

    def __init__(self, first_revision: int) -> None:
        """``first_revision`` differs from run to run (a start time in ms), so that a viewer
        that outlives a head is never taken for one that knows this head's rows."""
        self._first = first_revision
        self._revision = first_revision
        self._seen: dict[str, tuple[tuple[Any, ...], int, NodeView]] = {}
        self._gone: dict[str, int] = {}
        self._order: tuple[str, ...] = ()
        self._order_revision = first_revision

    def look(self, nodes: Sequence[NodeView]) -> None:
        """Takes in the fleet as it is now."""
        self._revision += 1
        order = tuple(node.name for node in nodes)
        if order != self._order:
            self._order, self._order_revision = order, self._revision
            for name in self._seen.keys() - set(order):
                del self._seen[name]
                self._gone[name] = self._revision
        for node in nodes:
            noticed = _noticeable(node)
            before = self._seen.get(node.name)
            same = before is not None and before[0] == noticed
            revision = before[1] if same and before is not None else self._revision
            self._seen[node.name] = (noticed, revision, node)
            self._gone.pop(node.name, None)

    def since(self, revision: int) -> Difference:
        """What a viewer that holds ``revision`` must be told."""
        full = not self._first < revision <= self._revision
        if full or revision < self._order_revision:
            rows = [row(self._seen[name][2]) for name in self._order]
            return Difference(self._revision, True, rows, [])
        rows = [row(node) for _, changed, node in self._seen.values() if changed > revision]
        gone = [name for name, changed in self._gone.items() if changed > revision]
        return Difference(self._revision, False, rows, gone)


def _noticeable(node: NodeView) -> tuple[Any, ...]:
    risk, age = node.risk, node.heard_seconds
    step: int | None = None
    if age is not None:
        step = int(age // _AGE_STEPS_SECONDS[-1]) + sum(age >= one for one in _AGE_STEPS_SECONDS)
    return _PLAIN(node), None if risk is None else round(risk, 2), step
