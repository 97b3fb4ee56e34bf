"""Writes under way: bounded, and who is turned away is told to come again at a fitting time."""

import random

from daemon.gate.turnstile import Turnstile


def turnstile() -> Turnstile:
    return Turnstile(
        limit=3, urgent_limit=2, per_node_limit=4, wait_seconds=5.0, rng=random.Random(1)
    )


def test_only_so_many_are_let_in_and_severe_events_have_room_of_their_own() -> None:
    gate = turnstile()
    assert [gate.enter("*", False, 0.0) for _ in range(3)] == [0.0] * 3
    assert gate.enter("*", False, 0.0) >= 2.5
    assert [gate.enter("*", True, 0.0) for _ in range(2)] == [0.0] * 2
    assert gate.enter("*", True, 0.0) >= 2.5
    gate.leave("*")
    assert gate.under_way == 4
    assert gate.enter("*", False, 0.0) > 0
    gate.leave("*")
    gate.leave("*")
    assert gate.enter("*", False, 0.0) == 0.0


def test_the_more_are_turned_away_the_later_they_come_again() -> None:
    gate = turnstile()
    for _ in range(3):
        gate.enter("*", False, 0.0)
    early = [gate.enter("*", False, 0.0) for _ in range(100)]
    for _ in range(4000):
        gate.enter("*", False, 0.0)
    late = [gate.enter("*", False, 0.0) for _ in range(100)]
    assert max(early) <= 7.5
    assert 15 < min(late) < max(late) <= 90
    # Spread, so that they do not come again at once.
    assert len({round(wait) for wait in late}) > 10
    # What was long ago counts no more.
    assert gate.enter("*", False, 200.0) <= 7.5


def test_a_head_that_serves_quickly_calls_them_back_sooner() -> None:
    waits = []
    for served in (0, 20_000):
        gate = turnstile()
        for _ in range(served):
            gate.enter("*", False, 0.0)
            gate.leave("*")
        for _ in range(3):
            gate.enter("*", False, 0.0)
        for _ in range(4000):
            gate.enter("*", False, 0.0)
        waits.append(sum(gate.enter("*", False, 0.0) for _ in range(50)) / 50)
    assert waits[1] < waits[0] / 2


def test_one_node_cannot_take_the_room_of_others() -> None:
    gate = Turnstile(limit=100, urgent_limit=2, per_node_limit=4, wait_seconds=5.0)
    assert [gate.enter("n1", True, 0.0) for _ in range(4)] == [0.0] * 4
    assert gate.enter("n1", True, 0.0) > 0
    assert gate.enter("n2", False, 0.0) == 0.0
    gate.leave("n1")
    assert gate.enter("n1", False, 0.0) == 0.0
    for _ in range(50):
        assert gate.enter("*", False, 0.0) == 0.0
