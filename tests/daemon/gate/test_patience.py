"""One clock for all who wait for the store."""

import asyncio

import pytest

from daemon.gate.patience import Patience


async def test_who_waits_too_long_is_told_so_and_nobody_else() -> None:
    loop = asyncio.get_running_loop()
    patience = Patience(0.05)
    late, answered = loop.create_future(), loop.create_future()
    patience.bound(answered)
    patience.bound(late)
    answered.set_result(None)
    async with asyncio.timeout(60):
        with pytest.raises(TimeoutError):
            await late
    assert await answered is None


async def test_each_has_the_whole_time_and_the_clock_goes_on_for_those_after_it() -> None:
    loop = asyncio.get_running_loop()
    patience = Patience(0.05)
    for _ in range(3):  # the second time when nobody waits any more
        begin_seconds = loop.time()
        waits = [loop.create_future() for _ in range(2)]
        patience.bound(waits[0])
        await asyncio.sleep(0.03)
        patience.bound(waits[1])
        async with asyncio.timeout(60):
            ends = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(end) for end in ends] == [TimeoutError, TimeoutError]
        assert loop.time() - begin_seconds >= 0.079


async def test_those_that_were_answered_are_not_kept() -> None:
    loop = asyncio.get_running_loop()
    patience = Patience(3600.0)
    for _ in range(1000):
        wait = loop.create_future()
        patience.bound(wait)
        wait.set_result(None)
    assert len(patience._waits) == 1
