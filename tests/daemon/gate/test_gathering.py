"""Writes that come together are read together, and nobody waits for long or for nothing."""

from __future__ import annotations

import asyncio

from daemon.gate.gathering import Gathering

FOREVER_SECONDS = 3600.0


async def test_as_many_as_are_enough_go_on_in_the_order_in_which_they_came() -> None:
    gathering = Gathering(FOREVER_SECONDS, at_once=3)
    order: list[int] = []

    async def write(number: int) -> None:
        await gathering.others()
        order.append(number)

    tasks = [asyncio.create_task(write(number)) for number in range(2)]
    await asyncio.sleep(0)
    assert order == []
    await asyncio.wait_for(write(2), 60)
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert sorted(order) == [0, 1, 2]
    assert order.index(0) < order.index(1)


async def test_too_few_go_on_when_they_have_waited() -> None:
    gathering = Gathering(0.001, at_once=1000)
    await asyncio.wait_for(asyncio.gather(*(gathering.others() for _ in range(5))), 60)
    # And again: the time begins anew with the first of the next ones.
    await asyncio.wait_for(gathering.others(), 60)


async def test_one_that_hung_up_holds_up_none() -> None:
    gathering = Gathering(FOREVER_SECONDS, at_once=2)
    gone = asyncio.create_task(gathering.others())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait_for(gathering.others(), 60)
    assert gone.cancelled()
