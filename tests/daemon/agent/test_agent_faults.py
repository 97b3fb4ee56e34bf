"""The agent is killed, its clock jumps, its disk hangs: nothing is lost."""

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from daemon.agent.cycle import Agent
from daemon.agent.spool import Entry, Spool
from tests.daemon.agent.agents import (
    Counter,
    Log,
    Running,
    arrived_or_spooled,
    numbers,
    options,
    until,
)
from tests.daemon.head_stub import Head

CHILD = """
import asyncio, sys, time
from pathlib import Path
from collectors.lines import decode
from collectors.sample import Batch, sample
from daemon.agent.cycle import run_agent
from daemon.agent.options import AgentOptions
import json
class Source:
    name, period_seconds, deadline_seconds = "counter", 0.02, 1.0
    number = int(sys.argv[2])
    told = []
    def collect(self, now_ns):
        Source.number += 1
        Source.told.append(Source.number)
        print(Source.number, flush=True)
        fields = {"text": f"event {Source.number}", "severity": 1.0}
        return Batch("counter", (sample("event", now_ns, fields, node="n1", kind="k"),))
    def acknowledge(self):
        print("kept", Source.told.pop(0), flush=True)
    def close(self):
        pass
asyncio.run(run_agent(AgentOptions.model_validate_json(sys.argv[1]), [Source()]))
forbidden = {"numpy", "pyarrow", "sklearn", "pandas"} & set(sys.modules)
assert not forbidden, forbidden
print("ended", flush=True)
"""


@pytest.mark.slow
async def test_kill_9_of_the_agent_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    head = await Head(tmp_path / "store").start()
    configured = options(tmp_path, head.url).model_dump_json()
    kept = number = 0
    for turn in range(6):
        if turn % 2:
            await head.stop()
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, configured, str(number), stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        seen = 0
        while seen < 5 + turn * 3:
            words = (await child.stdout.readline()).split()
            if words[0] == b"kept":
                kept, seen = int(words[1]), seen + 1
            else:
                number = int(words[0])
        child.kill()
        for line in (await child.stdout.read()).splitlines():
            words = line.split()
            kept = int(words[1]) if words[0] == b"kept" else kept
            number = number if words[0] == b"kept" else int(words[0])
        await child.wait()
        if turn % 2:
            await head.start()
    # A last one empties the spool and ends by SIGTERM.
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, configured, str(number), stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    await child.stdout.readline()

    def arrived() -> list[int]:
        return [int(e.text.split()[1]) for e in head.store.events(limit=10**6)]

    await until(lambda: set(range(1, kept + 1)) <= set(arrived()))
    child.terminate()
    assert (await child.stdout.read()).splitlines()[-1] == b"ended"
    assert await child.wait() == 0
    assert len(arrived()) == len(set(arrived()))
    await head.stop()


@pytest.mark.parametrize("step_hours", [-1, 1])
async def test_a_clock_that_jumps_an_hour_loses_nothing(tmp_path: Path, step_hours: int) -> None:
    head = await Head(tmp_path / "store").start()
    source = Counter(period_seconds=0.02)
    step_ns = [0]
    agent = Agent(options(tmp_path, head.url), [source], now_ns=lambda: time.time_ns() + step_ns[0])
    async with Running(agent):
        await until(lambda: len(numbers(head)) > 3)
        step_ns[0] = step_hours * 3600 * 10**9
        seen = source.cycles
        await until(lambda: source.cycles > seen + 10)
    assert sorted(arrived_or_spooled(head, tmp_path)) == [
        float(n + 1) for n in range(source.cycles)
    ]
    await head.stop()


async def test_a_disk_that_hangs_stops_neither_events_nor_sources(tmp_path: Path) -> None:
    head = await Head(tmp_path / "store").start()
    log, counter = Log(), Counter()
    agent = Agent(options(tmp_path, head.url), [log, counter])
    release = threading.Event()
    writes: list[int] = []

    def hangs(spool: Spool) -> None:
        real = spool._write

        def write(entry: Entry) -> None:
            writes.append(1)
            release.wait(30)
            real(entry)

        spool._write = write  # type: ignore[method-assign]

    for lane in agent.lanes:
        lane.deadline_seconds = 0.1
        hangs(lane.spool)
    async with Running(agent):
        log.lines.append(("GPU has fallen off the bus", 3.0))
        await until(lambda: any(s.text("text").startswith("GPU has") for s in head.accepted))
        await until(lambda: len(numbers(head)) > 5)
        assert len(writes) <= 2, "one call of each lane hangs, and no more are made after it"
        assert "the disk hangs" in agent.reading().text("fault")
        await until(lambda: log.acknowledged == 1)
        release.set()
        await until(lambda: agent.reading().text("fault") == "")
        seen = counter.cycles
        await until(lambda: seen + 5 in numbers(head))
    assert set(arrived_or_spooled(head, tmp_path)) == {float(n + 1) for n in range(counter.cycles)}
    await head.stop()
