"""A disk that hangs under the agent: what memory sends, what the disk keeps, who is told."""

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.agent.acknowledge import InOrder
from daemon.agent.lane import Lane
from daemon.agent.spool import Entry, Spool


class HangingSpool(Spool):
    """Its writes wait until they are let go."""

    def __init__(self, directory: Path, **more: int) -> None:
        super().__init__(directory, **more)
        self.free = threading.Event()
        self.free.set()

    def keep(self, body: bytes, samples: int, now_ns: int) -> tuple[bool, str]:
        assert self.free.wait(60)
        return super().keep(body, samples, now_ns)


async def sent_by(lane: Lane) -> list[bytes]:
    """What an uplink to a head that takes everything sends."""
    bodies = []
    while (entry := await lane.oldest(0)) is not None:
        bodies.append(entry.body)
        await lane.done(entry)
    return bodies


async def until_back(lane: Lane) -> None:
    for _ in range(6000):
        if lane.hung_since_seconds is None:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the disk is still taken for hung")


def hanging(tmp_path: Path, **more: int) -> tuple[HangingSpool, Lane, list[str]]:
    spool = HangingSpool(tmp_path)
    settled: list[str] = []
    lane = Lane(spool, deadline_seconds=0.1, on_settled=settled.append, **more)
    return spool, lane, settled


@pytest.mark.parametrize("sent_first", [True, False])
async def test_a_write_that_ends_well_after_all_is_not_sent_twice(
    tmp_path: Path, sent_first: bool
) -> None:
    spool, lane, settled = hanging(tmp_path)
    spool.free.clear()
    kept = [await lane.keep(b"one", 1, 0), await lane.keep(b"two", 1, 0)]
    assert [durable for durable, _ in kept] == [False, False]
    sent = await sent_by(lane) if sent_first else []
    spool.free.set()
    await until_back(lane)
    lane.deadline_seconds = 60
    assert (await lane.keep(b"three", 1, 0))[0]
    sent += await sent_by(lane)
    assert sent == [b"one", b"two", b"three"]
    assert settled == [key for _, key in kept]
    assert lane.sent_samples == 3
    assert lane.dropped_samples == 0
    lane.close()


async def test_what_memory_had_to_drop_is_sent_from_the_disk_that_has_it(tmp_path: Path) -> None:
    spool, lane, settled = hanging(tmp_path, memory_limit_bytes=6)
    spool.free.clear()
    first = await lane.keep(b"one", 1, 0)
    under_way = await lane.keep(b"two", 1, 0)
    await lane.keep(b"six", 1, 0)  # there is no room for three: the second goes
    assert settled == [under_way[1]]
    spool.free.set()
    await until_back(lane)
    lane.deadline_seconds = 60
    assert await sent_by(lane) == [b"one", b"six"]
    assert settled[1] == first[1]
    assert lane.dropped_samples == 1
    lane.close()


async def test_batches_that_a_full_disk_left_in_memory_are_settled_when_they_go(
    tmp_path: Path,
) -> None:
    """The spool's own memory: by delivery, by its bound, and by age."""
    settled: list[str] = []
    spool = Spool(tmp_path / "no" / "such", memory_limit_bytes=6, limit_age_seconds=1)
    (tmp_path / "no").write_text("a file where a folder should be")
    lane = Lane(spool, deadline_seconds=60, on_settled=settled.append)
    keys = [(await lane.keep(body, 1, 0))[1] for body in (b"one", b"two", b"six")]
    assert settled == keys[:1]
    entry = await lane.oldest(0)
    assert entry is not None
    await lane.done(entry)
    assert settled == keys[:2]
    assert await lane.oldest(10**10) is None
    assert settled == keys
    lane.close()


@given(st.lists(st.booleans(), max_size=12), st.randoms())
def test_a_source_is_told_of_a_batch_when_all_before_it_are_safe(
    durables: list[bool], random: object
) -> None:
    order = InOrder()
    safe: set[int] = set()
    told = 0

    def check(count: int) -> None:
        nonlocal told
        told += count
        assert set(range(told)) <= safe

    unsafe = []
    for number, durable in enumerate(durables):
        if durable:
            safe.add(number)
        else:
            unsafe.append(number)
        check(order.kept(durable, f"k{number}"))
    random.shuffle(unsafe)  # type: ignore[attr-defined]
    for number in unsafe:
        safe.add(number)
        check(order.settled(f"k{number}"))
        assert order.settled("of another lane") == 0
    assert told == len(durables)


async def test_a_batch_beside_a_call_whose_asker_was_cancelled_goes_to_disk(tmp_path: Path) -> None:
    """At the end the sender is cancelled; what is flushed then must outlive the process."""
    spool = Spool(tmp_path)
    lane = Lane(spool, deadline_seconds=60.0)
    goes_on, oldest = threading.Event(), spool.oldest

    def waits(now_ns: int) -> Entry | None:
        goes_on.wait(60)
        return oldest(now_ns)

    spool.oldest = waits  # type: ignore[method-assign]
    sender = asyncio.create_task(lane.oldest(1))
    while not lane._thread.busy:
        await asyncio.sleep(0)
    sender.cancel()
    await asyncio.wait({sender})
    flushed = asyncio.create_task(lane.keep(b"body", 1, 1))
    await asyncio.sleep(0)
    goes_on.set()
    durable, _ = await flushed
    assert durable
    lane.close()
