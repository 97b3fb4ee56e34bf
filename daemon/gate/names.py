"""Which measurements and columns there may be: a name costs every store for ever.

A measurement is a folder of the store, and a tag's or field's name is a column of it. Names of
our own schema are free. Of all others each node may bring in so many, and there may be so many
in all; what is over is refused, so that a sender that invents names is cut. Once there are so many,
a node that has brought few may still bring one, up to twice as many in all: the nodes of a fleet
mostly say the same names, so these few are soon all that honest nodes need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

# Sets of names are remembered as good, up to so many names in all; then they are looked at
# again. A sender can say its names in any order, and each order is a set of its own.
_REMEMBERED_NAMES_LIMIT = 200_000
_NAME_CHARACTERS_LIMIT = 64
# What a node may bring in where others have used up the common bound.
_MEASUREMENTS_SHARE = 8
_COLUMNS_SHARE = 32

TAG_NAMES = frozenset({"node", "gpu", "uuid", "device", "port", "guid", "peer_node", "sensor"}) | {
    "kind", "code", "source", "component", "action", "address", "subnet",
}  # fmt: skip


class Names:
    """The names that have been met since the start."""

    def __init__(
        self,
        known: Collection[tuple[str, str]],
        measurements_limit: int,
        columns_limit: int,
        columns_per_node_limit: int,
        measurements_share: int = _MEASUREMENTS_SHARE,
        columns_share: int = _COLUMNS_SHARE,
    ) -> None:
        self._known = known  # (measurement, field) of our own schema
        self._own = frozenset(measurement for measurement, _ in known)
        self.measurements_limit = measurements_limit
        self.columns_limit = columns_limit
        self.columns_per_node_limit = columns_per_node_limit
        self.measurements_share = measurements_share
        self.columns_share = columns_share
        self._columns: dict[str, set[str]] = {}  # measurement -> names beside our own schema
        self._brought: Counter[tuple[str, str]] = Counter()  # (node, measurement) -> names
        self._begun: Counter[str] = Counter()  # node -> measurements that it was the first to name
        self._layouts: set[tuple[str, tuple[str, ...]]] = set()
        self._remembered = 0  # names in them

    def is_own(self, measurement: str) -> bool:
        """Whether it is one of our schema."""
        return measurement in self._own

    def tag_fault(self, measurement: str, tag: str) -> str:
        """Why this may not be a tag: one called like a column of ours would hide that column."""
        if measurement in self._own:
            for name in (tag, tag.removesuffix("_min"), tag.removesuffix("_max")):
                if (measurement, name) in self._known:
                    return f"{tag} may not be a tag of {measurement}: {name} is a field there"
        return ""

    def knows(self, measurement: str, names: tuple[str, ...]) -> bool:
        """Whether a sample with just these fields was let in before, and it is remembered."""
        return (measurement, names) in self._layouts

    def fault(self, measurement: str, names: tuple[str, ...], node: str) -> str:
        """Why a sample with these fields may not enter; empty, and quick, when it may."""
        layout = (measurement, names)
        if layout in self._layouts:
            return ""
        problem = self.meet(measurement, names, node)
        if not problem:
            if self._remembered + len(names) > _REMEMBERED_NAMES_LIMIT:
                self._layouts.clear()
                self._remembered = 0
            self._layouts.add(layout)
            self._remembered += len(names)
        return problem

    def meet(self, measurement: str, names: Iterable[str], node: str) -> str:
        """Takes in names of columns, or says why not; then none of them is taken in."""
        columns = self._columns.get(measurement)
        if columns is None and measurement not in self._own:
            others = sum(1 for name in self._columns if name not in self._own)
            few = self._begun[node] < self.measurements_share
            if others >= self.measurements_limit * (2 if few else 1):
                return f"measurement budget: there are {others} measurements already"
        fresh = {
            name
            for name in names
            if name not in TAG_NAMES
            and (measurement, name) not in self._known
            and (columns is None or name not in columns)
        }
        for name in fresh:
            if len(name) > _NAME_CHARACTERS_LIMIT:
                return f"name {name[:_NAME_CHARACTERS_LIMIT]!r} is too long"
            if not name.isprintable():
                return f"name {name!r} holds unprintable characters"
        have = 0 if columns is None else len(columns)
        brought = self._brought[node, measurement]
        few = brought + len(fresh) <= self.columns_share
        if fresh and have + len(fresh) > self.columns_limit * (2 if few else 1):
            return f"column budget: {measurement} has {have} tags and fields already"
        if brought + len(fresh) > self.columns_per_node_limit:
            return f"column budget: {node or 'no node'} named {brought} of {measurement} already"
        if fresh or columns is None:
            if columns is None and measurement not in self._own:
                self._begun[node] += 1
            self._columns.setdefault(measurement, set()).update(fresh)
            self._brought[node, measurement] += len(fresh)
        return ""
