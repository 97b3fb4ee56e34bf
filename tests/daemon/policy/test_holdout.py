"""The hold-out: which nodes, why, and that facts drain all the same."""

from __future__ import annotations

import pytest

from daemon.policy.decisions import Action, Guard, Mode
from daemon.policy.holdout import WEEK_NS, HoldOut, draw, held_out
from daemon.slurm.simulated import SimulatedSlurm
from tests.daemon.worlds import GENEROUS, START_NS, House, cluster, lost, risk

NODES = [f"n{i}" for i in range(1, 401)]
RISKY = GENEROUS.model_copy(
    update={"risk_mode": Mode.ACT, "risk_threshold": 0.5, "breaker_candidates": 1000}
)


def house(share: float, mode: Mode = Mode.ACT, nodes: int = 60) -> House:
    limits = RISKY.model_copy(
        update={
            "holdout": HoldOut(share=share),
            "common_cause_nodes": 1000,
            "breaker_drains": 1000,
        }
    )
    slurm = SimulatedSlurm(list(cluster(nodes).values()), lambda: START_NS)
    return House(slurm, limits=limits, mode=mode)


def chosen(share: float, now_ns: int = START_NS, seed: str = "tocsin") -> set[str]:
    return {n for n in NODES if held_out(n, "risk", now_ns, HoldOut(share=share, seed=seed))}


def test_the_share_is_kept_and_a_larger_share_holds_the_same_nodes_and_more() -> None:
    assert 8 <= len(chosen(0.05)) <= 34
    assert 22 <= len(chosen(0.10)) <= 58
    assert chosen(0.05) < chosen(0.10)
    assert chosen(0.0) == set()


def test_the_draw_lasts_a_week_and_then_is_made_anew() -> None:
    begin = START_NS // WEEK_NS * WEEK_NS
    assert chosen(0.1, begin) == chosen(0.1, begin + WEEK_NS - 1)
    assert chosen(0.1, begin) != chosen(0.1, begin + WEEK_NS)
    assert chosen(0.1, begin) != chosen(0.1, begin, "another")


def test_anybody_can_reckon_the_draw() -> None:
    import hashlib

    number, week = draw("gpu-0017", START_NS, "tocsin")
    raw = hashlib.blake2s(f"tocsin\ngpu-0017\n{week}".encode(), digest_size=8).hexdigest()
    assert number == int(raw, 16) / 2**64


@pytest.mark.parametrize("voice", ["risk", "history"])
def test_a_risk_on_a_held_out_node_is_recorded_and_drains_nothing(voice: str) -> None:
    out = [n for n in cluster(60) if held_out(n, voice, START_NS, HoldOut(share=0.3))]
    free = [n for n in cluster(60) if n not in out]
    world = house(0.3)
    world.risks = [risk(out[0], 0.95, voice=voice), risk(free[0], 0.95, voice=voice)]
    made = {one.node: one for one in world.cycle()}
    assert (made[out[0]].action, made[out[0]].guard) == (Action.HOLD, Guard.HELD_OUT)
    assert "week" in made[out[0]].guard_text
    assert made[free[0]].guard is None
    shown = world.adapter.nodes([out[0], free[0]])
    assert (shown[out[0]].drain, shown[free[0]].drain) == (False, True)
    recorded = world.ledger.decisions(node=out[0])
    assert [one.guard for one in recorded] == [Guard.HELD_OUT]


def test_a_fact_drains_a_held_out_node() -> None:
    (first, *_) = [n for n in cluster(60) if held_out(n, "risk", START_NS, HoldOut(share=0.3))]
    world = house(0.3)
    world.risks = [risk(first, 0.95)]
    world.facts = [lost(first)]
    (one,) = [one for one in world.cycle() if one.node == first]
    assert (one.voice, one.action, one.guard) == ("fact", Action.DRAIN, None)
    assert world.adapter.nodes([first])[first].drain


def test_a_fleet_in_shadow_says_shadow_and_not_held_out() -> None:
    world = house(0.5, Mode.SHADOW)
    world.risks = [risk(node, 0.95) for node in cluster(20)]
    assert {one.guard for one in world.cycle()} == {Guard.SHADOW}
