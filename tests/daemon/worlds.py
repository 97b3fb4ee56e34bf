"""Small worlds for tests of policy, ledger and drains: nodes, facts, a clock, one database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from collectors.slurm.nodes import NodeState
from daemon.clock import ManualClock
from daemon.drains.drains import Drains
from daemon.drains.ledger import Ledger
from daemon.policy.decide import Situation, decide
from daemon.policy.decisions import Decision, Mode
from daemon.policy.limits import Limits
from daemon.slurm.adapter import SlurmAdapter
from daemon.slurm.proving import Proving
from daemon.slurm.simulated import SimulatedSlurm
from daemon.stages import Stages
from daemon.store.database import Database
from models.voices import Entity, Fact, Remedy, Risk, Silence

SECOND_NS = 1_000_000_000
START_NS = 1_795_000_000 * SECOND_NS
GENEROUS = Limits(
    drains_per_hour=1000, drained_share_max=1.0, partition_share_max=1.0, drained_nodes_max=1000
)


class Clock(ManualClock):
    """A clock that is moved by hand."""

    def __init__(self, start_ns: int = START_NS) -> None:
        super().__init__(start_ns)

    def pass_seconds(self, seconds: float) -> int:
        """Moves on; answers the new time."""
        self._now_ns += int(seconds * SECOND_NS)
        self._seconds += seconds
        return self._now_ns


def idle(name: str, **changes: object) -> NodeState:
    """An idle node of eight GPUs in two partitions."""
    node = NodeState(
        name,
        base="idle",
        partitions=("batch",),
        gpus_configured=8,
        boot_time_ns=START_NS - 86_400 * SECOND_NS,
    )
    return replace(node, **changes)  # type: ignore[arg-type]


def cluster(count: int) -> dict[str, NodeState]:
    return {f"n{i}": idle(f"n{i}") for i in range(1, count + 1)}


def lost(node: str, gpu: int = 3, onset_ns: int = START_NS, rule: str = "xid") -> Fact:
    """XID 79: the GPU fell off the bus."""
    return Fact(
        Entity("gpu", node, f"gpu{gpu}"),
        rule,
        "x79",
        3,
        Remedy.DRAIN,
        onset_ns,
        "fell off the bus",
        "restart the node",
        ("NVRM: Xid (PCI:0000:9b:00): 79",),
    )


def alert(node: str, onset_ns: int = START_NS) -> Fact:
    return Fact(
        Entity("gpu", node, "gpu0"),
        "row_remap_pending",
        "remap",
        1,
        Remedy.ALERT,
        onset_ns,
        "pending",
    )


def silent(node: str, source: str = "", cause: str = "agent") -> Silence:
    return Silence(node, source, cause, START_NS, 90.0, f"{node}: nothing heard for 90 s")


def risk(node: str, probability: float, gpu: int = 0, voice: str = "risk") -> Risk:
    return Risk(Entity("gpu", node, f"gpu{gpu}"), probability, 86_400.0, "trees", voice)


class House:
    """Policy, ledger and drains over one Slurm: ``cycle`` is what the head does each time."""

    def __init__(
        self,
        adapter: SlurmAdapter,
        *,
        database: Database | None = None,
        limits: Limits = GENEROUS,
        mode: Mode = Mode.ACT,
        now_ns: Callable[[], int] | None = None,
        prover: Proving | None = None,
    ) -> None:
        self.clock = Clock()
        self.now_ns = now_ns or self.clock.now_ns
        self.adapter = adapter
        self.database = database or Database(":memory:")
        self.ledger = Ledger(self.database)
        self.limits = limits
        self.mode = mode
        self.stages = Stages()
        # Whether a stage that fails fails the test: the head itself would go on.
        self.strict = True
        self.drains = Drains(adapter, self.ledger, limits, mode, prover=prover, stages=self.stages)
        self.facts: list[Fact] = []
        self.risks: list[Risk] = []
        self.silences: list[Silence] = []
        self.coverage: Mapping[str, float] | None = None
        self.groups: Mapping[str, tuple[str, ...]] = {}

    def situation(self, nodes: Mapping[str, NodeState], age_seconds: float = 1.0) -> Situation:
        coverage = self.coverage if self.coverage is not None else dict.fromkeys(nodes, 1.0)
        return Situation(
            nodes, age_seconds, tuple(self.facts), tuple(self.silences), tuple(self.risks),
            coverage, self.groups,
        )  # fmt: skip

    def cycle(self, nodes: Mapping[str, NodeState] | None = None) -> list[Decision]:
        """Read Slurm, reconcile, decide, carry out."""
        now_ns = self.now_ns()
        nodes = self.adapter.nodes() if nodes is None else nodes
        for node, at_ns in self.drains.reconcile(nodes, now_ns):
            self.facts = [
                one for one in self.facts if one.entity.node != node or one.onset_ns > at_ns
            ]
        decisions = decide(
            self.situation(nodes), self.limits, self.ledger.view(now_ns), self.mode, now_ns
        )
        final = self.drains.carry_out(decisions, now_ns)
        faults = [words for words in self.stages.end().values() if words]
        assert not (self.strict and faults), faults
        return final


def simulated(count: int = 4, clock: Clock | None = None) -> SimulatedSlurm:
    moment = clock or Clock()
    return SimulatedSlurm(cluster(count).values(), moment.now_ns)


def by_node(decisions: Iterable[Decision]) -> dict[str, Decision]:
    return {one.node: one for one in decisions}
