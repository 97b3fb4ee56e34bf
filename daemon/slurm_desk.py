"""What the head knows of Slurm: the last reading, its age, and who stands with whom.

One cycle of the ``slurm`` source fills it; policy, page and silence look here and never ask
Slurm themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

import structlog

from collectors.sample import Batch, Cycle
from collectors.slurm.nodes import Nodes, NodeState
from collectors.slurm.reader import Job
from collectors.slurm.source import Reading, SlurmSource
from daemon.policy.groups import Groups, configured, joined, of_features
from daemon.slurm.adapter import SlurmAdapter, SlurmError
from daemon.slurm.topology import of_topology

log = structlog.get_logger("tocsin.slurm")

# Leaf switches are re-cabled by people: once an hour is often enough to ask.
TOPOLOGY_SECONDS = 3600.0


class SlurmDesk:
    """The newest node states. Read from any thread: what is shown is replaced whole."""

    def __init__(
        self,
        source: SlurmSource,
        adapter: SlurmAdapter,
        groups: Mapping[str, Mapping[str, str]],
        monotonic: Callable[[], float],
    ) -> None:
        self.source = source
        self.adapter = adapter
        self.nodes: Mapping[str, NodeState] = {}
        self.fault = "not read yet"
        self._monotonic = monotonic
        self._cycle = Cycle(source, "", monotonic)
        self._read_seconds: float | None = None
        # The newest reading, and when it began and ended, where it is not shown yet.
        self._unshown: tuple[Reading, float, float] | None = None
        # Nodes read anew, and when: a reading that began before must not undo them.
        self._again: dict[str, tuple[float, NodeState]] = {}
        self._lock = threading.Lock()  # a reading and what is read anew come by two threads
        self._configured = configured(groups)
        self._topology: Groups = {}
        self._topology_seconds: float | None = None

    def read(self, now_ns: int) -> Batch:
        """One cycle, in a thread. ``batch.up`` tells whether there is a reading to ``show``."""
        began = self._monotonic()
        batch = self._cycle.run(now_ns)
        self.fault = batch.fault
        reading = self.source.latest
        if batch.up and reading is not None:
            self._unshown = reading, began, self._monotonic()
            self._read_topology(reading.nodes)
        return batch

    def show(self, reading: Reading | None) -> None:
        """Makes ``reading`` the one that is judged by: once the ledger was held against it.

        Before that nobody knows who came back in it, and a node that a person has just returned
        would be drained anew for what was. So no other is shown, where one came late meanwhile.
        """
        unshown = self._unshown
        if unshown is None or unshown[0] is not reading:
            return
        shown, began, ended = unshown
        with self._lock:
            newer = {name: one for name, (at, one) in self._again.items() if at >= began}
            self.nodes = {**shown.nodes, **newer}
            self._again = {name: self._again[name] for name in newer}
            self._read_seconds, self._unshown = ended, None

    def read_again(self, names: Iterable[str]) -> None:
        """Reads a few nodes anew: people who look now should see what was just written."""
        try:
            fresh = self.adapter.nodes(names)
        except SlurmError as error:
            log.info("nodes_not_read_again", why=str(error))
            return
        self.saw(fresh)

    def saw(self, fresh: Mapping[str, NodeState]) -> None:
        """Takes in nodes that were just read, by whomever."""
        at = self._monotonic()
        with self._lock:
            self._again = {**self._again, **{name: (at, one) for name, one in fresh.items()}}
            if fresh:
                self.nodes = {**self.nodes, **fresh}

    def _read_topology(self, nodes: Nodes) -> None:
        now = self._monotonic()
        asked = self._topology_seconds
        if asked is not None and now - asked < TOPOLOGY_SECONDS:
            return
        self._topology_seconds = now
        try:
            self._topology = of_topology(self.adapter.topology(), nodes)
        except Exception as error:  # groups are missing then, and no reading of the nodes
            log.warning("topology_not_read", why=f"{type(error).__name__}: {error}")

    @property
    def jobs(self) -> Mapping[str, Job]:
        """The jobs that hold nodes, by id, as last read."""
        reading = self.source.latest
        return reading.jobs if reading is not None else {}

    @property
    def age_seconds(self) -> float:
        """Seconds since node states were read; infinite before the first reading."""
        if self._read_seconds is None:
            return float("inf")
        return self._monotonic() - self._read_seconds

    def expected_gpus(self) -> dict[str, int]:
        """The GPUs that Slurm's configuration gives each node."""
        return {name: node.gpus_configured for name, node in self.nodes.items()}

    def groups(self, *more: Groups) -> dict[str, tuple[str, ...]]:
        """Each node's racks, feeds and leaf switches: configured, by feature, by topology."""
        features = {name: node.features for name, node in self.nodes.items()}
        return joined(self._configured, of_features(features), self._topology, *more)
