"""Slurm's weights, features and reservations in memory: the rules measured on 22.05."""

from __future__ import annotations

from collections.abc import Callable

from daemon.slurm.adapter import SlurmUnavailable
from daemon.slurm.proving import Reservation
from daemon.slurm.soft import FLAGS, Shown


class SoftMemory:
    """``SoftTools``. ``away`` makes every call fail; ``after_write`` is called after each write."""

    user = "tocsin"

    def __init__(self, *nodes: str) -> None:
        self.conf = {name: Shown(1, ("h200", "ib"), ("h200", "ib")) for name in nodes}
        self.nodes = dict(self.conf)
        self.reservations: dict[str, Reservation] = {}
        self.away = ""
        self.writes: list[str] = []
        self.after_write: Callable[[], None] = lambda: None

    def restart(self) -> None:
        """slurmctld reads slurm.conf again: what was set by scontrol is gone."""
        self.nodes = dict(self.conf)

    def shown(self, node: str) -> Shown | None:
        self._answer()
        return self.nodes.get(node)

    def set_weight(self, node: str, weight: int) -> None:
        old = self.nodes[node]
        self._write(f"{node} weight={weight}")
        self.nodes[node] = Shown(weight, old.available, old.active)
        self.after_write()

    def set_features(self, node: str, shown: Shown) -> None:
        self._write(f"{node} features={','.join(shown.active)}")
        self.nodes[node] = Shown(self.nodes[node].weight, shown.available, shown.active)
        self.after_write()

    def reservation(self, name: str) -> Reservation | None:
        self._answer()
        return self.reservations.get(name)

    def reserve(self, name: str, node: str, minutes: int) -> None:
        self._write(f"reserve {name} {node} {minutes}")
        self.reservations[name] = Reservation(name, (node,), (self.user,), True, FLAGS)
        self.after_write()

    def release(self, name: str) -> None:
        self._write(f"release {name}")
        self.reservations.pop(name, None)
        self.after_write()

    def _write(self, what: str) -> None:
        self._answer()
        self.writes.append(what)

    def _answer(self) -> None:
        if self.away:
            raise SlurmUnavailable(self.away, "stopped")
