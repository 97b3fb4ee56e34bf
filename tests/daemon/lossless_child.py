"""The sides of :mod:`tests.daemon.agent.test_lossless`, each a process that may be killed any time.

Both have a clock that runs as fast as the test says, so that an outage of seconds is one of hours
for the spool's age, for the bounds of times at the door, and for hours and days of the store.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collectors.sample import Batch, Sample, Value, sample


def fast_clock(begin_ns: int, speed: float) -> Callable[[], int]:
    """UTC nanoseconds that run ``speed`` times as fast from ``begin_ns`` on."""
    return lambda: begin_ns + int((time.time_ns() - begin_ns) * speed)


class Counter:
    """Events with numbers; says which it has made and which it need not say again."""

    name, period_seconds, deadline_seconds = "counter", 0.1, 1.0

    def __init__(self, number: int) -> None:
        self.number = number
        self._told: deque[int] = deque()

    def collect(self, now_ns: int) -> Batch:
        """One event; every seventh is severe and goes by the urgent lane."""
        self.number += 1
        self._told.append(self.number)
        severity = 0.0 if self.number % 7 else 3.0
        fields: dict[str, Value] = {"text": f"event {self.number}", "severity": severity}
        return Batch("counter", (sample("event", now_ns, fields, node="n1", kind="k"),))

    def acknowledge(self) -> None:
        """The oldest that was not acknowledged yet is safe."""
        print(self._told.popleft(), flush=True)

    def close(self) -> None:
        """Nothing to close."""


async def agent(given: dict[str, Any]) -> None:
    """The agent, until it is killed."""
    from daemon.agent.cycle import Agent
    from daemon.agent.options import AgentOptions

    now_ns = fast_clock(given["begin_ns"], given["speed"])
    options = AgentOptions.model_validate(given["options"])
    running = Agent(options, [Counter(given["number"])], now_ns)
    if given["disk_hangs"]:
        hang_the_disk(running)
    await running.run(asyncio.Event())


def hang_the_disk(running: Any) -> None:
    """Has one sync in twenty take longer than the spools wait for their disk."""
    real = os.fsync

    def slow(handle: Any) -> None:
        if random.random() < 0.05:
            time.sleep(random.random() * 1.5)
        real(handle)

    os.fsync = slow
    for lane in running.lanes:
        lane.deadline_seconds = 0.2


class Clock:
    """The fast clock as the gateway wants it."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.now_ns = fast_clock(given["begin_ns"], given["speed"])

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return self.now_ns() / 1e9


async def head(given: dict[str, Any]) -> None:
    """Gateway, store and InfluxDB sink, until they are killed."""
    from aiohttp import web

    from daemon.gate.gateway import BatchKey, Gateway, GatewayOptions, routes
    from daemon.gate.tokens import parse_tokens
    from daemon.listen import Address, Listeners
    from daemon.store.commit import GroupCommit
    from daemon.store.embedded import Store
    from daemon.store.influx import InfluxSink
    from daemon.store.influx_options import InfluxOptions
    from daemon.store.options import StoreOptions

    clock = Clock(given)
    folder = Path(given["folder"])
    options = StoreOptions(directory=folder, segment_bytes=65536, reserve_bytes=0)
    store = Store(folder, options, clock.now_ns)
    commit = GroupCommit(store)

    async def accept(
        samples: Sequence[Sample], node: str, arrival_ns: int, batch: BatchKey | None = None
    ) -> None:
        await commit.write(samples, batch)
        with open(given["judged"], "a") as file:
            file.write("".join(f"{one.text('text')}\n" for one in samples if one.text("text")))

    async def upkeep() -> None:
        while True:
            await asyncio.sleep(random.random() * 0.3)
            await asyncio.to_thread(store.roll, clock.now_ns())
            if random.random() < 0.3:
                await asyncio.to_thread(store.upkeep, clock.now_ns())

    tokens = parse_tokens(f"n1 {given['token']}")
    app = web.Application()
    app.add_routes(routes(Gateway(accept, tokens, clock, GatewayOptions(), marks=store)))
    work = [upkeep()]
    if given["influx"]:
        url = InfluxOptions(
            url=given["influx"], bucket="lossless", backoff_limit_seconds=0.3, poll_seconds=0.05
        )
        work.append(InfluxSink(store, url).run())
    await Listeners().open_tcp(app, Address("127.0.0.1", given["port"]))
    print("listens", flush=True)
    await asyncio.gather(*work)


if __name__ == "__main__":
    asyncio.run({"agent": agent, "head": head}[sys.argv[1]](json.loads(sys.argv[2])))
