"""A reservation keeps its share of nodes: whoever booked four nodes is not left with one."""

from __future__ import annotations

from dataclasses import replace

from collectors.slurm.nodes import NodeState
from daemon.policy.cases import LedgerView
from daemon.policy.decide import Situation, decide
from daemon.policy.decisions import Action, Decision, Guard, Mode
from daemon.policy.limits import Limits
from tests.daemon.worlds import GENEROUS, SECOND_NS, START_NS, by_node, cluster, lost


def judged(nodes: dict[str, NodeState], lost_nodes: int, limits: Limits) -> dict[str, Decision]:
    facts = tuple(lost(f"n{i}", onset_ns=START_NS + i) for i in range(1, lost_nodes + 1))
    situation = Situation(nodes, 1.0, facts, coverage=dict.fromkeys(nodes, 1.0))
    now_ns = START_NS + 60 * SECOND_NS
    return by_node(decide(situation, limits, LedgerView(), Mode.ACT, now_ns))


def reserved(nodes: int, name: str) -> dict[str, NodeState]:
    """Twenty nodes, the first ``nodes`` of them in the reservation."""
    return {
        one: replace(state, reservation=name if int(one[1:]) <= nodes else "")
        for one, state in cluster(20).items()
    }


def test_no_more_than_its_share_of_a_reservation_is_drained() -> None:
    found = judged(reserved(4, "course"), 4, GENEROUS)
    assert [one.action for one in found.values()].count(Action.DRAIN) == 2
    (refused, _) = [one for one in found.values() if one.action is Action.HOLD]
    assert refused.guard is Guard.CAP_GROUP
    assert refused.guard_text == "2 of 4 nodes of reservation course are held; at most 2 may be"


def test_many_nodes_of_one_reservation_that_show_the_same_have_one_cause() -> None:
    found = judged(reserved(12, "course"), 7, GENEROUS)
    assert {one.guard for one in found.values()} == {Guard.COMMON_CAUSE}


def test_a_reservation_of_tocsins_own_holds_up_no_drain() -> None:
    limits = GENEROUS.model_copy(update={"nodes_min": 0})
    (decision,) = judged(reserved(1, "tocsin_soft_00000001"), 1, limits).values()
    assert decision.action is Action.DRAIN
