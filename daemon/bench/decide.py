"""``tocsin bench decide``: the decisions of a fleet that shows nothing, or all the same.

The worst that policy and ledger meet: a time service that fails, a driver that fails everywhere.
What is measured is policy, guards, ledger and what is carried out, on a database in a file; no
reading is taken in, and Slurm is the simulated one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from collectors.slurm.nodes import NodeState
from daemon.bench.figures import Figure, spent
from daemon.clock import ManualClock
from daemon.drains.drains import Drains
from daemon.drains.ledger import Ledger
from daemon.policy.decide import Situation, decide
from daemon.policy.decisions import Mode
from daemon.policy.limits import Limits
from daemon.slurm.simulated import SimulatedSlurm
from daemon.stages import Stages
from daemon.store.database import Database
from models.voices import Entity, Fact, Remedy

_SECOND_NS = 1_000_000_000
_START_NS = 1_795_000_000 * _SECOND_NS
_BETWEEN_NS = 5 * _SECOND_NS


def bench_decide(directory: Path, nodes: int = 1000, steps: int = 4) -> Iterator[Figure]:
    """Each case from its first judgement, which opens every case, over ``steps`` that find them."""
    directory.mkdir(parents=True, exist_ok=True)
    names = [f"gpu{number:05d}" for number in range(nodes)]
    told = [
        Fact(Entity("node", name), "clock", "clock", 1, Remedy.ALERT, _START_NS,
             "clock is off by 111.5 s", "check time service", ("111.5",))
        for name in names
    ]  # fmt: skip
    lost = [
        Fact(Entity("gpu", name, "gpu3"), "xid", "x79", 4, Remedy.DRAIN, _START_NS,
             "fell off the bus", "restart the node", ("NVRM: Xid (PCI:0000:9b:00): 79",))
        for name in names
    ]  # fmt: skip
    kinds: tuple[tuple[str, Sequence[Fact]], ...] = (
        ("calm", ()), ("every node is told of", told), ("every node asks for a drain", lost),
    )  # fmt: skip
    for kind, facts in kinds:
        yield from _judged(directory / f"{len(kind)}.db", kind, names, facts, steps)


def _judged(
    path: Path, kind: str, names: Sequence[str], facts: Sequence[Fact], steps: int
) -> Iterator[Figure]:
    clock = ManualClock(_START_NS)
    states = [
        NodeState(name, base="mixed", partitions=("batch",), gpus_configured=8) for name in names
    ]
    slurm = SimulatedSlurm(states, clock.now_ns)
    ledger, limits = Ledger(Database(path)), Limits()
    drains = Drains(slurm, ledger, limits, Mode.ACT, stages=Stages())
    drains.reconcile(slurm.nodes(), _START_NS)
    seen = {node.name: node for node in states}
    first_seconds, later_seconds = 0.0, 0.0
    for step in range(steps + 1):
        now_ns = _START_NS + _BETWEEN_NS * (step + 1)
        with spent() as took:
            situation = Situation(
                nodes=seen, slurm_age_seconds=1.0, facts=facts, coverage=dict.fromkeys(names, 1.0)
            )
            decisions = decide(situation, limits, ledger.view(now_ns), Mode.ACT, now_ns)
            drains.carry_out(decisions, now_ns)
        if step:
            later_seconds += took.cpu_seconds
        else:
            first_seconds = took.cpu_seconds
    yield Figure(f"decide: {kind}, first judgement, CPU", first_seconds, "s")
    yield Figure(f"decide: {kind}, each later one, CPU", later_seconds / steps, "s")
