"""What tocsin's own drains came to, by the ledger: counted from what happened and was said."""

from __future__ import annotations

import pytest

from daemon.cli.record import lines
from daemon.drains.record import DAY_NS, Made, figures, points, read, record
from daemon.policy.cost import CostOptions
from daemon.policy.decisions import Mode
from tests.daemon.worlds import START_NS, House, lost, simulated

SECOND_NS = 10**9
HOUR_NS = 3600 * SECOND_NS
GPUS = {f"n{number}": 8 for number in range(1, 11)}
COST = CostOptions()


def of(house: House) -> dict[str, float]:
    return figures(read(house.database, GPUS, house.now_ns(), COST))


def drain(house: House, node: str) -> str:
    """A fault, two seconds before it is judged; answers the case's id."""
    house.facts = [lost(node, onset_ns=house.clock.pass_seconds(60))]
    house.clock.pass_seconds(2)
    house.cycle()
    (case,) = [one for one in house.ledger.view(house.now_ns()).held.values() if one.node == node]
    return case.id


def test_drains_are_counted_with_what_people_said_and_what_they_cost() -> None:
    house = House(simulated(10))
    house.cycle()
    right, wrong = drain(house, "n1"), drain(house, "n2")
    drain(house, "n3")
    house.drains.verdict(right, True, "ann", house.now_ns())
    house.drains.verdict(wrong, False, "ann", house.now_ns())
    house.clock.pass_seconds(3600)
    house.facts = []
    house.cycle()
    house.drains.resume("n2", "ann", house.now_ns())
    house.clock.pass_seconds(3600)
    found = of(house)
    assert (found["drains"], found["right"], found["wrong"]) == (3, 1, 1)
    assert found["reaction_median_seconds"] == pytest.approx(2.0)
    # Two nodes of eight GPUs for two hours, one for one, and some seconds.
    assert found["out_gpu_hours"] == pytest.approx(40, abs=1)
    assert found["out_wrong_gpu_hours"] == pytest.approx(8, abs=0.5)
    # Half of two hours, and half an hour to start anew, of eight GPUs.
    assert found["saved_gpu_hours"] == pytest.approx(12)
    days = (house.now_ns() - START_NS) / DAY_NS
    assert found["node_days"] == pytest.approx(10 * days, rel=0.05)
    assert found["wrong_per_1000_node_days"] == pytest.approx(1000 / found["node_days"])


def test_in_shadow_what_was_held_back_is_counted_and_no_drain() -> None:
    house = House(simulated(10), mode=Mode.SHADOW)
    house.facts = [lost("n1"), lost("n2")]
    first, *_ = house.cycle()
    house.drains.verdict(first.id, False, "ann", house.now_ns())
    found = of(house)
    assert (found["drains"], found["shadow_drains"], found["shadow_wrong"]) == (0, 2, 1)
    assert "reaction_median_seconds" not in found  # nothing was measured
    assert found["out_gpu_hours"] == 0


def test_only_the_last_days_count_and_a_drain_that_a_person_was_asked_for_has_no_reaction() -> None:
    now_ns = START_NS + 100 * DAY_NS
    at_ns = now_ns - 2 * HOUR_NS
    made = [
        Made("n1", "fact", at_ns - 5 * SECOND_NS, at_ns, 0, None, False),
        Made("n2", "fact", at_ns - DAY_NS, at_ns, now_ns - HOUR_NS, None, True),
        Made("n3", "risk", at_ns - DAY_NS, at_ns, at_ns, None, False),
        # Drained long ago, and out until a day after the window began.
        Made("n4", "fact", START_NS, START_NS, now_ns - 29 * DAY_NS, None, False),
    ]
    found = record(made, {}, GPUS, START_NS, now_ns, COST)
    assert (found.drains, found.unjudged) == (3, 3)
    assert found.reaction_median_seconds == found.reaction_longest_seconds == 5.0
    assert found.out_gpu_hours == pytest.approx(8 * 2 + 8 * 1 + 8 * 24)
    assert found.node_days == pytest.approx(300)


def test_before_anything_was_watched_there_is_no_rate() -> None:
    found = figures(read(House(simulated(2)).database, GPUS, START_NS, COST))
    assert "wrong_per_1000_node_days" not in found
    assert found["drains"] == 0


def test_what_people_read_never_takes_the_unjudged_for_right() -> None:
    found = record(
        [Made("n1", "fact", START_NS, START_NS + SECOND_NS, 0, None, False)],
        {}, GPUS, START_NS, START_NS + DAY_NS, COST,
    )  # fmt: skip
    told = lines({**figures(found), "days": 30, "unjudged": found.unjudged, "mode": "act"})
    assert told[1].startswith("drains   1: 0 called right, 0 called wrong, 1 not judged")
    assert told[3] == (
        "false    0.00 per 1000 node-days; 100.00 if all that nobody judged were wrong"
    )
    (point,) = points(found, "c1", START_NS)
    assert point.number("drains") == 1.0
