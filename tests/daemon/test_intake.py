"""The way in: durable before it is shown, in order, many at once, and bounded."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from collectors.sample import Sample, sample
from daemon.clock import ManualClock
from daemon.intake import WATCH_BACKLOG, WRITES_AT_ONCE, Intake
from daemon.store.commit import Told
from models.runs import Run

NOW_NS = 1_800_000_000_000_000_000


class Disk:
    """Stands for the group commit: what is written waits until it is ``synced``."""

    def __init__(self) -> None:
        self.synced = asyncio.Event()
        self.synced.set()
        self.fault: Exception | None = None
        self._waiting: set[asyncio.Task[None]] = set()

    def submit(self, samples: Sequence[Sample], batch: Any, told: Told) -> None:
        self._waiting.add(asyncio.create_task(self._tell(told)))

    async def _tell(self, told: Told) -> None:
        await self.synced.wait()
        told(self.fault)

    async def write(self, samples: Sequence[Sample], batch: Any = None) -> None:
        await self.synced.wait()


class Listener:
    """Stands for the watch: notes what it is shown, and may be held up."""

    def __init__(self) -> None:
        self.shown: list[int] = []
        self.free = threading.Event()
        self.free.set()

    def ingest_runs(self, runs: Sequence[Run], arrival_ns: int) -> None:
        assert self.free.wait(60)
        self.shown.append(arrival_ns - NOW_NS)

    def nothing_later(self, now_ns: int) -> None:
        raise AssertionError("no clock was set back")


def intake_of(disk: Disk, listener: Listener, woken: list[int] | None = None) -> Intake:
    def wake() -> None:
        if woken is not None:
            woken.append(len(listener.shown))

    return Intake(cast(Any, disk), cast(Any, listener), cast(Any, None), wake)


def readings(node: str = "n1") -> list[Sample]:
    return [sample("host", NOW_NS, {"load_1m": 1.0}, node=node)]


async def test_nothing_is_shown_before_it_is_durable() -> None:
    disk, listener = Disk(), Listener()
    intake = intake_of(disk, listener)
    disk.synced.clear()
    writes = [intake.accept(readings(), "*", NOW_NS) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert await intake.in_turn(lambda: list(listener.shown)) == []
    disk.synced.set()
    await asyncio.gather(*writes)
    assert await intake.in_turn(lambda: len(listener.shown)) == 3
    intake.close()


async def test_what_was_answered_is_shown_before_whatever_is_asked_next() -> None:
    """A judgement that an urgent event wakes must see that event, though it went no turn ago."""
    listener = Listener()
    intake = intake_of(Disk(), listener)
    for number in range(10):
        await intake.accept(readings(), "*", NOW_NS + number)
        assert await intake.in_turn(lambda: listener.shown[-1]) == number
    intake.close()


async def test_many_writes_at_once_keep_their_order_and_go_over_in_few_steps() -> None:
    listener = Listener()
    intake = intake_of(Disk(), listener)
    steps: list[int] = []
    ingest = intake._ingest
    intake._ingest = lambda writes: (steps.append(len(writes)), ingest(writes))[1]  # type: ignore[method-assign,func-returns-value]
    many = 3 * WRITES_AT_ONCE
    await asyncio.gather(*(intake.accept(readings(), "*", NOW_NS + n) for n in range(many)))
    assert await intake.in_turn(lambda: list(listener.shown)) == list(range(many))
    assert len(steps) <= 4
    assert max(steps) <= WRITES_AT_ONCE
    intake.close()


async def test_a_watch_that_falls_behind_makes_senders_wait() -> None:
    disk, listener = Disk(), Listener()
    intake = intake_of(disk, listener)
    listener.free.clear()
    many = 2 * WATCH_BACKLOG
    writes = [intake.accept(readings(), "*", NOW_NS + n) for n in range(many)]
    while sum(one.done() for one in writes) < WATCH_BACKLOG:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert sum(one.done() for one in writes) == WATCH_BACKLOG
    listener.free.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*writes)
    assert await intake.in_turn(lambda: list(listener.shown)) == list(range(many))
    intake.close()


async def test_a_severe_event_wakes_the_judge_once_it_is_on_its_way_to_the_watch() -> None:
    listener = Listener()
    woken: list[int] = []
    intake = intake_of(Disk(), listener, woken)
    await intake.accept(readings(), "*", NOW_NS)
    assert woken == []
    severe = sample(
        "event", NOW_NS, {"text": "x", "severity": 3.0}, node="n1", kind="xid", code="79"
    )
    await intake.accept([severe], "*", NOW_NS + 1)
    assert len(woken) == 1
    assert await intake.in_turn(lambda: list(listener.shown)) == [0, 1]
    intake.close()


async def test_closing_shows_what_was_accepted() -> None:
    listener = Listener()
    intake = intake_of(Disk(), listener)
    for number in range(5):
        await intake.accept(readings(), "*", NOW_NS + number)
    intake.close()
    assert listener.shown == list(range(5))


async def test_closing_shows_what_was_durable_though_the_watch_is_behind() -> None:
    listener = Listener()
    intake = intake_of(Disk(), listener)
    listener.free.clear()
    many = 2 * WATCH_BACKLOG
    writes = [intake.accept(readings(), "*", NOW_NS + n) for n in range(many)]
    async with asyncio.timeout(60):
        await asyncio.gather(*writes[:WATCH_BACKLOG])
    listener.free.set()
    intake.close()
    assert listener.shown == list(range(many))


async def test_what_the_store_did_not_take_is_told_to_its_sender_and_shown_to_nobody() -> None:
    disk, listener = Disk(), Listener()
    intake = intake_of(disk, listener)
    disk.fault = OSError("no space left on device")
    with pytest.raises(OSError, match="no space"):
        await intake.accept(readings(), "*", NOW_NS)
    intake.close()
    assert listener.shown == []


async def test_the_heads_own_events_wake_nobody_here() -> None:
    """Its outlets do that; and a judgement writes events, which must not bring the next one."""
    listener = Listener()
    woken: list[int] = []
    intake = intake_of(Disk(), listener, woken)
    intake._clock = ManualClock(NOW_NS)
    severe = sample("event", NOW_NS, {"severity": 3.0}, node="n1", kind="xid", code="79")
    assert await intake.keep([severe])
    intake.close()
    assert woken == []
    assert listener.shown == [0]
