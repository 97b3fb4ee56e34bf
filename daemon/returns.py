"""Tells the watch which nodes came back into service, by the ledger's word and not by a message.

What was certain of a node before its return is spent. A message that says so can be lost: with a
reading that was given up at its deadline while the hand's thread went on, or with a kill right
after the return was written down. The next fault of the same kind would then be taken for the old
one, and nobody would act on it. So each judgement looks what the ledger has that was not told.
"""

from __future__ import annotations

from collections.abc import Mapping

from models.watch import Watch


class Returns:
    """Which returns the watch knows of. For the watch's thread alone."""

    def __init__(self, watch: Watch, told_ns: Mapping[str, int]) -> None:
        """``told_ns``: node to the time, UTC ns, of the last return that it knows of."""
        self._watch = watch
        self._told_ns = dict(told_ns)

    def tell(self, returned_ns: Mapping[str, int]) -> None:
        """Tells what is newer than what was told.

        A return that the ledger now has earlier is no new one: the clock was set back since.
        """
        for node, at_ns in returned_ns.items():
            told_ns = self._told_ns.get(node, 0)
            self._told_ns[node] = at_ns
            if at_ns > told_ns:
                self._watch.clear(node, at_ns)
