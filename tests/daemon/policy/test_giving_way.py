"""A drain waits for no soft reservation: where both are too many, reservations give way."""

from __future__ import annotations

from daemon.beside import Beside, BesideTools
from daemon.drains.soft import SoftOptions
from daemon.policy.cases import LedgerView
from daemon.policy.decide import Situation
from daemon.policy.decisions import Action, Mode
from daemon.policy.holdout import HoldOut
from daemon.policy.limits import Limits
from daemon.policy.soft_wishes import chances, too_many, wishes
from tests.daemon.policy.test_policy import NOW_NS, case
from tests.daemon.softworld import SoftMemory
from tests.daemon.worlds import Clock, House, cluster, lost, risk, simulated

LIMITS = Limits(
    soft=SoftOptions(step="reservation", share_max=1.0), partition_share_max=0.5,
    drained_share_max=1.0, drains_per_hour=1000, holdout=HoldOut(share=0),
)  # fmt: skip


def told(*likely: tuple[str, float], nodes: int = 8) -> Situation:
    known = cluster(nodes)
    risks = tuple(risk(name, probability) for name, probability in likely)
    return Situation(known, 1.0, (), (), risks, dict.fromkeys(known, 1.0))


def given_up(held: list[str], reserved: list[str], *likely: tuple[str, float]) -> set[str]:
    view = LedgerView(held={name: case(name) for name in held})
    found = too_many(told(*likely), LIMITS, view, Mode.ACT, NOW_NS, frozenset(reserved))
    return set(found)


def test_the_least_likely_give_way_and_no_more_than_must() -> None:
    likely = (("n1", 0.9), ("n2", 0.6), ("n3", 0.7))
    assert given_up([], ["n1", "n2", "n3"], *likely) == set()
    assert given_up(["n8"], ["n1", "n2", "n3"], *likely) == set(), "four of eight may be out"
    assert given_up(["n8", "n7"], ["n1", "n2", "n3"], *likely) == {"n2"}
    assert given_up(["n5", "n6", "n7", "n8"], ["n1", "n2", "n3"], *likely) == {"n1", "n2", "n3"}


def test_a_reserved_node_that_is_drained_itself_takes_one_place() -> None:
    likely = (("n1", 0.9), ("n2", 0.8), ("n3", 0.7))
    assert given_up(["n1", "n7"], ["n1", "n2", "n3"], *likely) == set()


def test_a_risk_that_is_no_longer_heard_gives_way_first() -> None:
    assert given_up(["n7", "n8"], ["n1", "n2", "n3"], ("n2", 0.6), ("n3", 0.6)) == {"n1"}


def test_drains_are_made_at_once_and_reservations_end_in_the_next_cycle() -> None:
    clock = Clock()
    made = House(simulated(8, clock), limits=LIMITS)
    made.clock, made.now_ns = clock, clock.now_ns
    soft = SoftMemory(*made.adapter.nodes())
    beside = Beside(
        BesideTools(soft, None, None), made.adapter, made.ledger, LIMITS, Mode.ACT  # type: ignore[arg-type]
    )  # fmt: skip

    def step() -> set[str]:
        clock.pass_seconds(15)
        beside.step(made.situation(made.adapter.nodes()), clock.now_ns())
        return {one.nodes[0] for one in soft.reservations.values()}

    made.risks = [risk(f"n{i}", 0.7 + i / 100) for i in range(1, 5)]
    made.cycle()
    step()
    assert step() == {"n1", "n2", "n3", "n4"}, "half of the partition"
    made.facts = [lost("n7", onset_ns=clock.pass_seconds(1)), lost("n8", onset_ns=clock.now_ns())]
    assert [one.action for one in made.cycle() if one.voice == "fact"] == [Action.DRAIN] * 2
    assert step() == {"n3", "n4"}
    for _ in range(3):
        made.cycle()
        assert step() == {"n3", "n4"}, "none comes and goes"
    words = [one.text for one in made.ledger.audit(node="n1") if one.verb == "soft_undone"]
    assert words == [
        f"drains need the room that the caps leave; {soft_name(made, 'n1')} is deleted"
    ]
    found = told(*((f"n{i}", 0.7) for i in range(1, 5)))
    assert wishes(found, LIMITS, made.ledger.view(clock.now_ns()), Mode.ACT, clock.now_ns(),
                  frozenset({"n3", "n4"})) == []  # fmt: skip
    assert chances(found)["n1"] == 0.7


def soft_name(made: House, node: str) -> str:
    rows = made.database.query("SELECT seq FROM soft_steps WHERE node = ?", (node,))
    return f"tocsin_soft_{rows[0]['seq']:08x}"
