"""In which order a source may take its batches for safe: the order in which it gave them.

A source moves its cursor on by one batch each time it is told that one is safe. While a disk
hangs, a batch is held in memory only, and the next one may be on disk before it: were the source
told of that one at once, its cursor would pass the first, and a crash would lose it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class _Unsafe:
    """A batch that only memory holds, and how many safe ones came after it."""

    key: str
    behind: int = 0


class InOrder:
    """The batches of one source that are not safe yet. Grows with those only."""

    def __init__(self) -> None:
        self._unsafe: deque[_Unsafe] = deque()

    def kept(self, durable: bool, key: str) -> int:
        """One more batch, on disk or only in memory; of how many the source may be told now."""
        if not durable:
            self._unsafe.append(_Unsafe(key))
            return 0
        if self._unsafe:
            self._unsafe[-1].behind += 1
            return 0
        return 1

    def settled(self, key: str) -> int:
        """The batch that memory held is with the head, or given up and counted as lost; of how
        many the source may be told now."""
        for place, one in enumerate(self._unsafe):
            if one.key == key:
                del self._unsafe[place]
                if place == 0:
                    return 1 + one.behind
                self._unsafe[place - 1].behind += 1 + one.behind
                return 0
        return 0
