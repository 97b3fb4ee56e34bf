"""What cases are called: their ids, no longer than it takes to tell them apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# So much of an id people type at the least.
SHORT_ID_CHARACTERS = 4


class Names:
    """The ids that people may have met, found by how they begin.

    Ten thousand nodes that show the same are ten thousand new cases in one judgement: none of
    them may look through all the others for its name.
    """

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._by_head: dict[str, dict[str, None]] = {}
        self.add(ids)

    def add(self, ids: Iterable[str]) -> None:
        """More ids; one that is known already changes nothing."""
        for one in ids:
            self._by_head.setdefault(one[:SHORT_ID_CHARACTERS], {})[one] = None

    def like(self, case: str) -> Sequence[str]:
        """The ids that begin as ``case`` does, ``case`` among them if it is known."""
        return tuple(self._by_head.get(case[:SHORT_ID_CHARACTERS], ()))
