"""What the tests of the policy share."""

from __future__ import annotations

from dataclasses import replace

from collectors.slurm.nodes import NodeState
from daemon.policy.cases import Case, LedgerView, State
from daemon.policy.decide import Situation, decide
from daemon.policy.decisions import Decision, Mode
from daemon.policy.limits import Limits
from models.voices import Fact, Risk, Silence
from tests.daemon.worlds import (
    GENEROUS,
    SECOND_NS,
    START_NS,
    cluster,
)

NOW_NS = START_NS + 10 * SECOND_NS


def judge(
    *facts: Fact,
    nodes: dict[str, NodeState] | None = None,
    risks: tuple[Risk, ...] = (),
    silences: tuple[Silence, ...] = (),
    limits: Limits = GENEROUS,
    ledger: LedgerView | None = None,
    mode: Mode = Mode.ACT,
    age_seconds: float = 5.0,
    coverage: dict[str, float] | None = None,
    groups: dict[str, tuple[str, ...]] | None = None,
    now_ns: int = NOW_NS,
) -> list[Decision]:
    nodes = cluster(4) if nodes is None else nodes
    situation = Situation(
        nodes=nodes,
        slurm_age_seconds=age_seconds,
        facts=facts,
        silences=silences,
        risks=risks,
        coverage=dict.fromkeys(nodes, 1.0) if coverage is None else coverage,
        groups=groups or {},
    )
    return decide(situation, limits, ledger or LedgerView(), mode, now_ns)


def case(
    node: str, one: Decision | None = None, state: State = State.DRAINING, **more: object
) -> Case:
    made = Case(
        id=one.id if one else "f" * 16,
        node=node,
        rule="xid",
        code="x48",
        device="gpu1",
        voice="fact",
        state=state,
        onset_ns=START_NS,
        created_ns=START_NS,
        updated_ns=START_NS,
        reason="tocsin:x48 gpu1 ffff; x; tocsin explain ffff",
        intent_ns=START_NS,
    )
    return replace(made, **more)  # type: ignore[arg-type]
