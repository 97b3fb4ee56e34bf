"""A Slurm in memory that follows the real one's rules, for the demo and for replay.

The rules were measured on slurmctld 22.05 (tests/daemon/slurm/test_adapters.py runs the same
contract against both): DRAIN replaces any reason, UNDRAIN clears the flag and the reason, except
on a DOWN node, which keeps both its state and its reason; RESUME clears DOWN and DRAIN; a reason
set on a node that is neither drained nor down is not kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from collectors.slurm.hostlist import valid_name
from collectors.slurm.nodes import Nodes, NodeState
from daemon.slurm.adapter import Check, Outcome, SlurmUnavailable, plain_text


def _no_window() -> None:
    """What happens between look and write: nothing, outside of tests."""


class SimulatedSlurm:
    """The simulated controller and its adapter in one. Safe for use from many threads.

    ``away`` set to a text makes every call fail with it, as a stopped slurmctld does.
    """

    name = "simulated"

    def __init__(
        self,
        nodes: Iterable[NodeState],
        now_ns: Callable[[], int],
        window: Callable[[], None] = _no_window,
    ) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._now_ns = now_ns
        self._window = window
        self._lock = threading.RLock()
        self._start_ns = now_ns()
        self.away = ""
        self.writes_total = 0

    # ---- what a person, a job or a fault does ----------------------------------------------

    def set(self, name: str, *, user: str = "operator", state: str = "", reason: str = "") -> None:
        """``scontrol update`` by somebody: ``state`` is drain, undrain, resume, down or empty."""
        with self._lock:
            self._nodes[name] = self._updated(self._nodes[name], user, state, reason)
            self.writes_total += 1

    def put(self, node: NodeState) -> None:
        """Replaces what is known of one node: jobs came or went, it rebooted, it fell silent."""
        with self._lock:
            self._nodes[node.name] = node

    def change(self, name: str, change: Callable[[NodeState], NodeState]) -> None:
        """The same for a part of it, with nobody's write in between."""
        with self._lock:
            self._nodes[name] = change(self._nodes[name])

    def restart(self) -> None:
        """slurmctld starts anew: nodes keep what they had."""
        with self._lock:
            self._start_ns = self._now_ns()

    def taken_over(self, started_ns: int, *forgotten: str) -> None:
        """Another slurmctld answers from now on, running since ``started_ns``, which does not know
        of the drains of ``forgotten``.
        """
        with self._lock:
            self._start_ns = started_ns
            for name in forgotten:
                self._nodes[name] = self._updated(self._nodes[name], "", "undrain", "")

    def _updated(self, node: NodeState, user: str, state: str, reason: str) -> NodeState:
        if state == "drain":
            node = replace(node, flags=node.flags | {"DRAIN"})
        elif state == "down":
            node = replace(node, base="down")
        elif state == "resume":
            base = "idle" if node.down else node.base
            node = replace(node, base=base, flags=node.flags - {"DRAIN", "FAIL"})
        elif state == "undrain":
            node = replace(node, flags=node.flags - {"DRAIN", "FAIL"})
        if not (node.drain or node.down or node.failed):
            return replace(node, reason="", reason_user="", reason_time_ns=0)
        if reason:
            return replace(node, reason=reason, reason_user=user, reason_time_ns=self._now_ns())
        return node

    # ---- the adapter -------------------------------------------------------------------------

    def nodes(self, names: Iterable[str] | None = None) -> Nodes:
        """See adapter.SlurmAdapter."""
        self._answer()
        with self._lock:
            if names is None:
                return dict(self._nodes)
            return {name: self._nodes[name] for name in names if name in self._nodes}

    def drain(self, reasons: Mapping[str, str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter."""
        clean = {name: plain_text(reason) for name, reason in reasons.items()}
        for name, reason in clean.items():
            if not valid_name(name) or not reason:
                raise ValueError(f"no node name, or no reason: {name!r}")
        return self._write("drain", clean, check)

    def undrain(self, names: Iterable[str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter."""
        return self._write("undrain", dict.fromkeys(names, ""), check)

    def comment(self, comments: Mapping[str, str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter."""
        clean = {name: plain_text(text) for name, text in comments.items()}
        return self._write("comment", clean, check)

    def controller_start_ns(self) -> int:
        """See adapter.SlurmAdapter."""
        self._answer()
        return self._start_ns

    def topology(self) -> str:
        """See adapter.SlurmAdapter."""
        self._answer()
        return ""

    def describe(self) -> list[str]:
        """See adapter.SlurmAdapter."""
        return [f"a simulated Slurm of {len(self._nodes)} nodes"]

    def close(self) -> None:
        """Nothing is held open."""

    def _answer(self) -> None:
        if self.away:
            raise SlurmUnavailable(self.away, "stopped")

    def _write(self, state: str, values: Mapping[str, str], check: Check) -> Outcome:
        self._answer()
        done: dict[str, NodeState] = {}
        skipped: dict[str, str] = {}
        restored: dict[str, str] = {}
        with self._lock:
            looked = {name: self._nodes.get(name) for name in values}
        for name, node in looked.items():
            why = "Slurm does not know this node" if node is None else check(node)
            if why:
                skipped[name] = why
        self._window()
        with self._lock:
            for name, value in values.items():
                node, now = looked[name], self._nodes.get(name)
                if name in skipped or node is None or now is None:
                    continue
                if state != "comment" and now.reason != node.reason:
                    # Here a write can be conditional, as the real one is by its log: the
                    # reason that was set in between stays.
                    restored[name] = now.reason
                    continue
                if state == "comment":
                    new = replace(now, comment=value)
                else:
                    new = self._updated(now, "tocsin", state, value)
                self._nodes[name] = done[name] = new
                self.writes_total += 1
        return Outcome(done, skipped, {}, restored)
