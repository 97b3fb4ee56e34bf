"""How many BMCs are visited: each at its own pace, none twice at once, none for the others."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from collectors.bmc.fleet import Fleet, Poll
from collectors.bmc.targets import BmcOptions, Target
from collectors.sample import sample


@dataclass
class Hand:
    """The time, and what each BMC does when it is visited."""

    now: float = 1_000.0
    faults: dict[str, tuple[str, str]] = field(default_factory=dict)
    hangs: set[str] = field(default_factory=set)
    raises: set[str] = field(default_factory=set)
    waits: set[str] = field(default_factory=set)
    read: dict[str, int] = field(default_factory=dict)
    changed: bool = False
    visits: dict[str, int] = field(default_factory=dict)
    inside: dict[str, int] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)


class Visitor:
    def __init__(self, hand: Hand, target: Target) -> None:
        self._hand = hand
        self._node = target.node

    async def visit(self, poll: Poll) -> None:
        hand, node = self._hand, self._node
        hand.visits[node] = hand.visits.get(node, 0) + 1
        hand.inside[node] = hand.inside.get(node, 0) + 1
        assert hand.inside[node] == 1, "two calls in flight at one BMC"
        try:
            if node in hand.hangs:
                await asyncio.sleep(3_600)
            if node in hand.raises:
                raise KeyError("a bug")
            if node in hand.faults:
                poll.fault, poll.kind = hand.faults[node]
                return
            poll.samples.append(sample("bmc", 1, {"value": 1.0}, node=node))
            hand.read[node] = poll.place = hand.read.get(node, 0) + 1
            while node in hand.waits:
                await asyncio.sleep(0.01)
        finally:
            hand.inside[node] -= 1

    def changed(self) -> bool:
        return self._hand.changed

    async def leave(self) -> None:
        self._hand.left.add(self._node)


Make = Callable[..., Fleet]


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def make(hand: Hand) -> Iterator[Make]:
    made: list[Fleet] = []

    def start(*nodes: str, turns: int = 1, **more: float) -> Fleet:
        given = {"period_seconds": 60.0, "deadline_seconds": 2.0, **more}
        options = BmcOptions(**given)  # type: ignore[arg-type]
        targets = [Target(node, node) for node in nodes]
        fleet = Fleet(
            "ipmi",
            targets,
            lambda one: Visitor(hand, one),
            options,
            lambda: hand.now,
            tick_seconds=options.period_seconds / turns,
        )
        made.append(fleet)
        return fleet

    yield start
    for fleet in made:
        fleet.close()


def test_a_bmc_that_fails_pauses_longer_each_time_and_is_tried_again(
    hand: Hand, make: Make
) -> None:
    hand.faults["bad"] = ("the BMC does not answer", "silent")
    fleet = make("bad", "good")
    tried_at: list[float] = []
    for _ in range(200):
        before = hand.visits.get("bad", 0)
        fleet.collect(1)
        time.sleep(0)
        if hand.visits.get("bad", 0) > before:
            tried_at.append(hand.now)
        hand.now += 60
    assert hand.visits["good"] == 200
    pauses = [after - before for before, after in itertools.pairwise(tried_at)]
    assert pauses[0] == 60, "once may be chance"
    assert pauses[:6] == sorted(pauses[:6])
    assert max(pauses) <= 1_800
    assert len(tried_at) < 20


def test_a_refused_login_is_not_tried_again_before_the_password_changes(
    hand: Hand, make: Make
) -> None:
    hand.faults["bad"] = ("the BMC refuses the password", "login")
    fleet = make("bad")
    for _ in range(5):
        fleet.collect(1)
        hand.now += 60
    assert hand.visits["bad"] == 1
    hand.changed = True
    fleet.collect(1)
    assert hand.visits["bad"] == 2


def test_a_bmc_that_comes_back_is_visited_in_every_round_again(hand: Hand, make: Make) -> None:
    hand.faults["bad"] = ("the BMC does not answer", "silent")
    fleet = make("bad")
    fleet.collect(1)
    fleet.collect(1)
    hand.faults.clear()
    hand.now += 3_600
    for _ in range(4):
        fleet.collect(1)
        hand.now += 60
    assert hand.visits["bad"] == 6


def test_one_that_hangs_delays_the_others_in_no_later_round_and_is_never_visited_twice_at_once(
    hand: Hand, make: Make
) -> None:
    hand.hangs.add("hung")
    fleet = make("hung", *(f"n{place}" for place in range(50)), deadline_seconds=4.0)
    fleet.collect(1)
    for turn in range(2, 6):
        begin = time.monotonic()
        batch = fleet.collect(1)
        assert time.monotonic() - begin < 3.0
        assert hand.visits["n7"] == turn
        assert sum(one.measurement == "bmc" for one in batch.samples) == 50
    assert hand.visits["hung"] == 1


def test_a_log_counts_as_read_only_as_far_as_it_was_handed_over(hand: Hand, make: Make) -> None:
    """A crash must not lose what a visit has read that is still under way."""
    fleet = make("slow", "quick", deadline_seconds=1.2)
    fleet.collect(1)
    assert fleet.places == {"slow": 1, "quick": 1}
    hand.waits.add("slow")
    hand.now += 60
    batch = fleet.collect(1)
    assert hand.read == {"slow": 2, "quick": 2}
    assert [one.tag("node") for one in batch.samples if one.measurement == "bmc"] == ["quick"]
    assert fleet.places == {"slow": 1, "quick": 2}
    hand.waits.clear()
    hand.now += 60
    end = time.monotonic() + 60
    while fleet.places["slow"] == 1 and time.monotonic() < end:
        fleet.collect(1)
    assert fleet.places["slow"] >= 2


def test_what_a_round_read_that_nobody_waited_for_comes_with_the_next(
    hand: Hand, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the BMCs had no processor for seconds; the round ended when nobody looked."""
    fleet = make("a", "b")
    submit = asyncio.run_coroutine_threadsafe

    class Late:
        def __init__(self, *arguments: Any) -> None:
            self.future = submit(*arguments)

        def result(self, timeout: float) -> None:
            self.future.result(timeout=60)
            raise TimeoutError

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", Late)
    with pytest.raises(TimeoutError):
        fleet.collect(1)
    monkeypatch.undo()
    samples = fleet.collect(1).samples
    assert sorted(one.tag("node") for one in samples if one.measurement == "bmc") == [
        "a", "a", "b", "b",
    ]  # fmt: skip
    assert fleet.places == {"a": 2, "b": 2}


def test_a_bug_at_one_bmc_is_told_and_costs_only_itself(hand: Hand, make: Make) -> None:
    hand.raises.add("odd")
    batch = make("odd", "good").collect(1)
    assert batch.up
    assert "KeyError" in batch.fault
    readings = {one.tag("node"): one for one in batch.samples if one.measurement == "source"}
    assert readings["odd"].fields["up"] == 0.0
    assert readings["good"].fields["up"] == 1.0


def test_when_none_is_heard_the_source_is_down_and_each_bmc_says_why(
    hand: Hand, make: Make
) -> None:
    hand.faults = {"a": ("the BMC does not answer", "silent"), "b": ("wrong", "login")}
    batch = make("a", "b").collect(1)
    assert not batch.up
    assert "2 of 2 BMCs not read" in batch.fault
    assert len(batch.samples) == 2


def test_a_thousand_rounds_leave_one_thread_and_closing_leaves_none(hand: Hand, make: Make) -> None:
    before = threading.active_count()
    fleet = make("a", "b")
    for _ in range(1_000):
        fleet.collect(1)
    assert threading.active_count() == before + 1
    fleet.close()
    fleet.close()
    assert threading.active_count() == before
    assert hand.left == {"a", "b"}


def test_a_simulated_week_beside_hung_and_dead_bmcs_piles_nothing_up(
    hand: Hand, make: Make
) -> None:
    hand.hangs = {"hung0", "hung1"}
    hand.faults = {"dead": ("the BMC does not answer", "silent"), "locked": ("refused", "login")}
    fleet = make("good", "dead", "locked", *hand.hangs, deadline_seconds=1.2)
    process = psutil.Process()
    fleet.collect(1)
    hand.now += 60
    fleet.collect(1)
    loop = fleet._loop
    assert loop is not None
    tasks = len(asyncio.all_tasks(loop))
    before = (process.num_fds(), process.num_threads(), len(process.children()))
    for _ in range(7 * 24 * 60):
        hand.now += 60
        fleet.collect(1)
    assert (process.num_fds(), process.num_threads(), len(process.children())) == before
    assert len(asyncio.all_tasks(loop)) <= tasks + 1
    assert hand.visits["good"] == 7 * 24 * 60 + 2
    assert hand.visits["hung0"] == 1, "it was asked again while it hung"
    assert hand.visits["dead"] < 7 * 24 * 60 / 20, "a dead BMC is asked each half hour"


def test_many_are_read_in_turn_each_once_a_period(hand: Hand, make: Make) -> None:
    nodes = [f"n{place}" for place in range(120)]
    hand.faults["n7"] = ("the BMC refuses the password", "login")
    fleet = make(*nodes, turns=12)
    hand.now += 4.9
    per_tick: list[int] = []
    told: list[str] = []
    for _ in range(36):
        batch = fleet.collect(1)
        per_tick.append(sum(one.measurement == "bmc" for one in batch.samples))
        told += [one.tag("node") for one in batch.samples if one.measurement == "source"]
        hand.now += 5.0
    assert max(per_tick) <= 11, "a steady trickle, no burst"
    assert {hand.visits[node] for node in nodes if node != "n7"} == {3}
    assert hand.visits["n7"] == 1
    assert told.count("n7") == 3, "one that pauses is said to be down in every period"
    assert told.count("n8") == 3
