"""What one sender may say in a second, under a clock of ours."""

from daemon.gate.rates import LOUD_SECONDS, Rate, Rates
from daemon.gate.tokens import ANY_NODE


def rates() -> Rates:
    return Rates(Rate(10.0, 100.0), Rate(1000.0, 5000.0))


def test_who_has_something_left_is_heard_and_pays_afterwards() -> None:
    bounds = rates()
    assert bounds.wait("n1", 0.0) == 0.0
    bounds.spend("n1", 300, 10, 0.0)  # three times what the bucket holds
    assert bounds.wait("n1", 0.0) > 20.0
    assert bounds.wait("n1", 19.0) > 0.0
    assert bounds.wait("n1", 20.2) == 0.0


def test_bytes_are_bounded_as_lines_are() -> None:
    bounds = rates()
    bounds.spend("n1", 1, 8000, 0.0)
    assert 3.0 < bounds.wait("n1", 0.0) < 3.1
    assert bounds.wait("n1", 3.1) == 0.0


def test_one_loud_sender_slows_no_other_and_relays_have_no_bucket() -> None:
    bounds = rates()
    for node in ("n1", ANY_NODE):
        bounds.spend(node, 10_000, 10_000_000, 0.0)
    assert bounds.wait("n1", 0.0) > 0.0
    assert bounds.wait("n2", 0.0) == bounds.wait(ANY_NODE, 0.0) == 0.0


def test_who_was_slowed_is_told_for_a_while() -> None:
    bounds = rates()
    bounds.spend("n1", 200, 0, 0.0)
    bounds.wait("n1", 1.0)
    assert bounds.loud(1.0) == ["n1"]
    assert bounds.loud(1.0 + LOUD_SECONDS) == []


def test_an_empty_request_costs_a_line() -> None:
    bounds = rates()
    for _ in range(100):
        assert bounds.wait("n1", 0.0) == 0.0
        bounds.spend("n1", 0, 0, 0.0)
    assert bounds.wait("n1", 0.0) > 0.0
