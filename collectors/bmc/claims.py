"""Who reads which BMC, where Redfish and IPMI are both configured: one of them, Redfish first.

Both sources of one head look here. Redfish has the first word for every node that it knows the
BMC of; IPMI reads a node once Redfish has not been able to for a while, and gives it back as soon
as Redfish can again. So no BMC is asked twice, and no sensor stands there under two names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from weakref import WeakValueDictionary

# Redfish may fail for so many periods before IPMI steps in: its pauses begin after two tries.
PATIENCE_PERIODS = 3.0
# While IPMI reads a BMC, Redfish looks only so often whether it can again.
PROBE_PERIODS = 10.0


class Claims:
    """Node -> until when Redfish is waited for (monotonic seconds). Used by two threads."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}
        self._instead: set[str] = set()
        self._probe_at: dict[str, float] = {}

    def expect(self, nodes: Iterable[str], period_seconds: float) -> None:
        """Redfish begins with ``nodes``: they are its own until it has had its chance."""
        until = self._monotonic() + PATIENCE_PERIODS * period_seconds
        with self._lock:
            self._until.update((node, until) for node in nodes)

    def read(self, node: str, period_seconds: float) -> None:
        """Redfish has read ``node``."""
        with self._lock:
            self._until[node] = self._monotonic() + PATIENCE_PERIODS * period_seconds
            self._instead.discard(node)

    def held(self, node: str) -> bool:
        """Whether IPMI must leave ``node`` alone."""
        with self._lock:
            return self._monotonic() < self._until.get(node, 0.0)

    def stand_in(self, node: str) -> None:
        """IPMI has read ``node``."""
        with self._lock:
            if node in self._until:
                self._instead.add(node)

    def stood_in(self, node: str) -> bool:
        """Whether IPMI reads ``node`` in place of Redfish: then IPMI says how it is."""
        with self._lock:
            return node in self._instead and self._monotonic() >= self._until.get(node, 0.0)

    def may_try(self, node: str, period_seconds: float) -> bool:
        """Whether Redfish may ask ``node`` now; while IPMI stands in, yes only now and then."""
        with self._lock:
            now = self._monotonic()
            if node not in self._instead or now < self._until.get(node, 0.0):
                self._probe_at.pop(node, None)
                return True
            if now < self._probe_at.setdefault(node, now + PROBE_PERIODS * period_seconds):
                return False
            self._probe_at[node] = now + PROBE_PERIODS * period_seconds
            return True

    def give_up(self) -> None:
        """Redfish ends: all nodes are free."""
        with self._lock:
            self._until.clear()
            self._instead.clear()


_CLAIMS: WeakValueDictionary[Path, Claims] = WeakValueDictionary()
_LOCK = threading.Lock()


def claims_beside(state_dir: Path) -> Claims:
    """The claims of the head whose sources keep their state beside ``state_dir``.

    Sources are made one by one and know nothing of each other but this folder.
    """
    with _LOCK:
        found = _CLAIMS.get(state_dir.parent)
        if found is None:
            found = _CLAIMS[state_dir.parent] = Claims()
        return found
