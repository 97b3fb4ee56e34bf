"""The demo's time."""

from __future__ import annotations

from daemon.demo.clock import PacedClock


class Wall:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def test_time_stands_until_it_is_let_go() -> None:
    wall = Wall()
    clock = PacedClock(60, 5, wall)
    wall.seconds += 100
    assert clock.monotonic() == 0.0
    assert clock.now_ns() == 5


def test_time_runs_fast_up_to_what_is_allowed_and_waits_there() -> None:
    wall = Wall()
    clock = PacedClock(60, 0, wall)
    clock.allow(30)
    wall.seconds += 0.25
    assert clock.monotonic() == 15.0
    wall.seconds += 10
    assert clock.monotonic() == 30.0
    clock.allow(60)
    assert clock.monotonic() == 30.0  # a stall is not made up for
    wall.seconds += 0.25
    assert clock.monotonic() == 45.0


def test_time_never_runs_back() -> None:
    wall = Wall()
    clock = PacedClock(60, 0, wall)
    clock.allow(100)
    wall.seconds += 1
    before = clock.now_ns()
    clock.allow(10)
    wall.seconds -= 1
    assert clock.now_ns() >= before
