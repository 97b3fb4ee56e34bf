"""How many writes may be under way at once, and when those turned away should come again.

When ten thousand agents come back to a head, each has one request under way; worked off in
turn, the last would wait longer than any sender does, and the work for those that have given
up would be for nothing. So only so many are let in, the rest are told to come again: the later,
the more of them there are for what is served. Severe events have room of their own, and no node
may take the room of others, by bodies that come letter by letter for example.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field

from daemon.gate.tokens import ANY_NODE

# What happened longer ago hardly counts for how busy it is now.
_MEMORY_SECONDS = 10.0
# Nobody is sent away for longer: a head that is free again must not stand idle.
_WAIT_MOST_SECONDS = 60.0
# So many writes a second are served at least, before it is known how many are.
_SERVED_LEAST_PER_SECOND = 100.0


@dataclass
class Turnstile:
    """Counts what is under way, and what was served and turned away lately."""

    limit: int
    urgent_limit: int
    per_node_limit: int
    wait_seconds: float
    rng: random.Random = field(default_factory=random.Random)
    under_way: int = 0
    _of_node: Counter[str] = field(default_factory=Counter)
    _served: float = 0.0
    _turned: float = 0.0
    _at_seconds: float = 0.0

    def enter(self, node: str, urgent: bool, now_seconds: float) -> float:
        """0 when one more may begin (then :meth:`leave` must follow), else seconds to wait."""
        self._pass_time(now_seconds)
        limit = self.limit + (self.urgent_limit if urgent else 0)
        if node != ANY_NODE and self._of_node[node] >= self.per_node_limit:
            return self.wait_seconds * self.rng.uniform(0.5, 1.5)
        if self.under_way < limit:
            self.under_way += 1
            self._of_node[node] += 1
            return 0.0
        self._turned += 1
        per_second = max(self._served / _MEMORY_SECONDS, _SERVED_LEAST_PER_SECOND)
        wait_seconds = max(self.wait_seconds, self._turned / per_second)
        return min(wait_seconds, _WAIT_MOST_SECONDS) * self.rng.uniform(0.5, 1.5)

    def leave(self, node: str) -> None:
        """One that had begun has been answered."""
        self.under_way -= 1
        self._served += 1
        self._of_node[node] -= 1
        if not self._of_node[node]:
            del self._of_node[node]

    def _pass_time(self, now_seconds: float) -> None:
        passed = max(0.0, now_seconds - self._at_seconds)
        if passed > 0.1:
            share = math.exp(-passed / _MEMORY_SECONDS)
            self._served *= share
            self._turned *= share
            self._at_seconds = now_seconds
