"""Which events were heard already: a sender that got no answer sends them again.

Each node has a share of its own, so that what one node tells without end makes the head forget
nothing of the others. It may have more while there is room: of a storm that is told once more, all
must be known, for what was forgotten counts twice and makes the head forget the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from collectors.sample import Sample, Tags

REMEMBERED = 65_536  # of all nodes together
LEAST_OF_NODE = 16  # however many nodes there are

Key = tuple[Tags, int]  # an event is known again by its tags and its time in ns


class HeardEvents:
    """The newest events of each node."""

    def __init__(self) -> None:
        self._of_node: dict[str, dict[Key, None]] = {}
        self._count = 0

    def is_repeat(self, one: Sample) -> bool:
        """Whether this very event was heard before; from now on it was."""
        node = one.tag("node")
        heard = self._of_node.get(node)
        if heard is None:
            heard = self._of_node[node] = {}
        key = (one.tags, one.time_ns)
        if key in heard:
            return True
        heard[key] = None
        self._count += 1
        share = max(LEAST_OF_NODE, REMEMBERED // len(self._of_node))
        while self._count > REMEMBERED and len(heard) > share:
            del heard[next(iter(heard))]
            self._count -= 1
        return False

    def __iter__(self) -> Iterator[Key]:
        for heard in self._of_node.values():
            yield from heard

    def load(self, keys: Iterable[Key]) -> None:
        """Takes back what iterating gave."""
        for key in keys:
            self._of_node.setdefault(dict(key[0]).get("node", ""), {})[key] = None
        self._count = sum(map(len, self._of_node.values()))
