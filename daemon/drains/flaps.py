"""The flap lock: a node that is drained again and again waits for a person.

``flap_drains`` drains within ``flap_window_seconds`` lock the node, drained as it is: no proof
returns it and ``tocsin resume`` is refused, until somebody has said ``tocsin unlock``. What was
before that word no longer counts. A person who lifts the drain in Slurm has spoken as well.
"""

from __future__ import annotations

from daemon.drains.hand import SELF
from daemon.drains.ledger import SECOND_NS, Ledger
from daemon.policy.limits import Limits


class Flaps:
    """Sets and lifts the locks that are tocsin's own; a person's lock is never touched."""

    def __init__(self, ledger: Ledger, limits: Limits) -> None:
        self._ledger = ledger
        self._limits = limits

    def watch(self, now_ns: int) -> None:
        """Locks what was drained too often, and drops the locks of nodes that are back.

        Asked each cycle, so that a kill between a drain and its lock loses nothing.
        """
        locks = self._ledger.locks()
        held = {case.node for case in self._ledger.held() if case.acknowledged_ns}
        for node, user in locks.items():
            if user == SELF and node not in held:
                self._ledger.unlock(node, "Slurm", now_ns)
        for node in sorted(held - set(locks)):
            why = self.why(node, now_ns)
            if why:
                self._ledger.lock(node, SELF, now_ns, why)

    def why(self, node: str, now_ns: int) -> str:
        """Why ``node`` is to be locked, or empty."""
        limits = self._limits
        begin_ns = now_ns - int(limits.flap_window_seconds * SECOND_NS)
        # What a person has looked at when unlocking it is settled.
        begin_ns = max(begin_ns, self._ledger.last_said_ns(node, "unlock"))
        begin_ns = max(begin_ns, self._ledger.anew_ns().get(node, 0))
        made = self._ledger.drains_of(node, begin_ns)
        if made < limits.flap_drains:
            return ""
        days = limits.flap_window_seconds / 86_400
        return f"drained {made} times in {days:g} days: it waits for a person"

    def locked(self, node: str) -> bool:
        """Whether ``node`` is locked by us."""
        return self._ledger.locks().get(node) == SELF
