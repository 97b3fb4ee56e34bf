"""Of which nodes the head itself refuses part of what they send: what is missing then is no word
of the node.

A budget of the gateway that a second sender with a node's token has used up leaves the GPUs of
that node out, and lets in that all of them were read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

# The gateway forgets at midnight whom it cut, and knows again with the next lines that it refuses.
KEEP_SECONDS = 3600.0


class Refused:
    """Remembers for an hour. Safe for threads: what is answered is replaced whole."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: dict[str, tuple[float, str]] = {}

    def lately(self, cut: Mapping[str, str]) -> Mapping[str, str]:
        """Node to why; ``cut`` is what the gateway's admission says now."""
        now = self._monotonic()
        if not cut and not self._seen:
            return {}
        kept = {name: one for name, one in self._seen.items() if now - one[0] < KEEP_SECONDS}
        self._seen = kept | {name: (now, why) for name, why in dict(cut).items()}
        return {name: why for name, (_, why) in self._seen.items()}
