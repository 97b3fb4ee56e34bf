import asyncio
import gzip
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from collectors.sample import Batch, Problem, Sample, sample
from daemon.agent.cycle import Agent
from tests.daemon.agent.agents import (
    Counter,
    Failing,
    Log,
    Running,
    Stuck,
    arrived_or_spooled,
    numbers,
    options,
    until,
)
from tests.daemon.head_stub import NODE_TOKEN, Head


async def test_readings_arrive_each_once_and_all_on_a_clean_stop(tmp_path: Path) -> None:
    head = await Head(tmp_path / "store").start()
    source = Counter()
    async with Running(Agent(options(tmp_path, head.url), [source])):
        await until(lambda: len(numbers(head)) > 5)
    assert arrived_or_spooled(head, tmp_path) == [float(n + 1) for n in range(source.cycles)]
    assert source.closed == 1
    await head.stop()


async def test_a_severe_event_does_not_wait_for_the_batch(tmp_path: Path) -> None:
    head = await Head(tmp_path / "store").start()
    log = Log()
    async with Running(Agent(options(tmp_path, head.url, batch_seconds=600), [log, Counter()])):
        log.lines.append(("mild", 1.0))
        await until(lambda: log.acknowledged == 1)
        started = time.monotonic()
        log.lines.append(("GPU has fallen off the bus", 3.0))
        await until(lambda: any(s.text("text").startswith("GPU has") for s in head.accepted))
        assert time.monotonic() - started < 60
        assert all(s.measurement == "event" for s in head.accepted), "the rest waits"
    await head.stop()


async def test_a_severe_event_overtakes_a_backlog(tmp_path: Path) -> None:
    head = Head(tmp_path / "store")
    await head.start()
    await head.stop()
    log = Log()
    slow = options(tmp_path, head.url, drain_batches_per_second=5)
    async with Running(Agent(slow, [log, Counter()])) as agent:
        await until(lambda: agent.normal.waiting()[0] >= 20)
        await head.start()
        log.lines.append(("severe", 3.0))
        await until(lambda: any(s.measurement == "event" for s in head.accepted))
        assert agent.normal.waiting()[0] > 10
    await head.stop()


async def test_a_hung_source_delays_no_other_is_not_started_twice_and_is_said(
    tmp_path: Path,
) -> None:
    head = await Head(tmp_path / "store").start()
    stuck, counter = Stuck(), Counter()

    def said() -> list[Sample]:
        return [s for s in head.accepted if s.tag("source") == "stuck"]

    async with Running(Agent(options(tmp_path, head.url), [stuck, counter])):
        await until(lambda: len(said()) >= 3)
        assert stuck.cycles == 1
        assert counter.cycles > 10
        first, last = said()[0], said()[-1]
        assert first.number("up") == 0.0
        assert last.text("fault").startswith("hung for")
        assert (last.number("age_seconds") or 0) > (first.number("age_seconds") or 0)
        stuck.release.set()
        await until(lambda: stuck.cycles > 2)
        await until(lambda: any(s.number("late") for s in head.accepted))
        await until(lambda: said()[-1].number("up") == 1.0)
    await head.stop()


async def test_a_source_held_by_a_driver_does_not_hold_up_the_end(tmp_path: Path) -> None:
    head = await Head(tmp_path / "store").start()
    stuck = Stuck()
    started = time.monotonic()
    async with Running(Agent(options(tmp_path, head.url), [stuck])):
        await until(lambda: stuck.cycles == 1)
    assert time.monotonic() - started < 60
    assert stuck.closed == 0, "closing a source that is inside a driver would hang too"
    stuck.release.set()
    await head.stop()


async def test_a_failing_source_is_data(tmp_path: Path) -> None:
    head = await Head(tmp_path / "store").start()
    async with Running(Agent(options(tmp_path, head.url), [Failing()])):
        await until(lambda: len({s.text("fault") for s in head.accepted if s.text("fault")}) >= 2)
    faults = {s.text("fault") for s in head.accepted if s.tag("source") == "failing"}
    assert faults == {"no such device; load the driver", "KeyError: 'a bug'"}
    await head.stop()


async def test_an_outage_of_the_head_loses_and_doubles_nothing(tmp_path: Path) -> None:
    head = await Head(tmp_path / "store").start()
    source = Counter(period_seconds=0.02)
    async with Running(Agent(options(tmp_path, head.url), [source])) as agent:
        for _ in range(4):
            await until(lambda: len(numbers(head)) > 3)
            await head.stop()
            waiting = agent.normal.waiting()[0]
            await until(lambda waiting=waiting: agent.normal.waiting()[0] >= waiting + 3)
            assert "does not answer" in agent.reading().text("fault")
            await head.start()
        await until(lambda: agent.normal.waiting()[0] == 0)
        assert agent.reading().text("fault") == ""
    assert arrived_or_spooled(head, tmp_path) == [float(n + 1) for n in range(source.cycles)]
    await head.stop()


async def test_an_answer_that_is_lost_doubles_nothing(tmp_path: Path) -> None:
    head = await Head(tmp_path / "store").start()
    rng = random.Random(3)
    head.loses_answer = lambda: rng.random() < 0.5
    source = Counter(period_seconds=0.02)
    async with Running(Agent(options(tmp_path, head.url), [source])) as agent:
        await until(lambda: sum(uplink.counts.failures for uplink in agent.uplinks) > 8)
        assert head.gateway.counts.repeated_batches > 3
        head.loses_answer = lambda: False
    cycles = [s.number("cycles") for s in head.accepted if s.measurement == "host"]
    assert len(cycles) == len(set(cycles)), "a batch was judged twice"
    assert arrived_or_spooled(head, tmp_path) == [float(n + 1) for n in range(source.cycles)]
    await head.stop()


async def test_a_source_is_acknowledged_only_when_its_lines_are_on_disk(tmp_path: Path) -> None:
    log = Log(lines=[("one", 1.0), ("two", 3.0)])
    blocked = tmp_path / "spool"
    blocked.write_text("a file where the spool should be")
    head = Head(tmp_path / "store")
    await head.start()
    await head.stop()
    async with Running(Agent(options(tmp_path, head.url), [log])) as agent:
        await until(lambda: agent.urgent.waiting()[0] > 0)
        await asyncio.sleep(0.2)
        assert log.acknowledged == 0
        assert "spool" in agent.reading().text("fault")
        await head.start()
        await until(lambda: log.acknowledged == 2)
    assert {s.text("text") for s in head.accepted if s.measurement == "event"} == {"one", "two"}
    await head.stop()


async def test_only_the_refused_lines_are_set_aside(tmp_path: Path) -> None:
    @dataclass
    class Odd(Counter):
        name: str = "odd"

        def collect(self, now_ns: int) -> Batch:
            self.cycles += 1
            good = sample("host", now_ns, {"cycles": float(self.cycles)}, node="n1")
            bad = sample("host", now_ns, {"bad": 1.0}, node="n1", job_id="7")
            return Batch(self.name, (good, bad), (Problem("odd", "line"),))

    head = await Head(tmp_path / "store").start()
    source = Odd()
    async with Running(Agent(options(tmp_path, head.url), [source])) as agent:
        await until(lambda: len(numbers(head)) > 5)
        await until(lambda: (agent.reading().number("quarantined_lines_total") or 0) >= 5)
    text = (tmp_path / "spool" / "quarantine.lines").read_text()
    assert "may not be a tag" in text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) >= 5
    assert all("job_id=7" in line for line in lines)
    assert arrived_or_spooled(head, tmp_path) == [float(n + 1) for n in range(source.cycles)]
    await head.stop()


async def test_a_wrong_token_keeps_the_readings_until_it_is_mended(tmp_path: Path) -> None:
    head = await Head(tmp_path / "store").start()
    source = Counter()
    configured = options(tmp_path, head.url, token="not-the-right-token")
    async with Running(Agent(configured, [source])) as agent:
        await until(lambda: "refuses our token (401)" in agent.reading().text("fault"))
        assert "not-the-right-token" not in agent.reading().text("fault")
        (tmp_path / "token").write_text(NODE_TOKEN)
        await until(lambda: len(numbers(head)) > 3)
    assert arrived_or_spooled(head, tmp_path) == [float(n + 1) for n in range(source.cycles)]
    await head.stop()


async def test_the_bounds_of_the_spool_are_kept_and_their_cost_is_said(tmp_path: Path) -> None:
    @dataclass
    class Noisy(Counter):
        name: str = "noisy"

        def collect(self, now_ns: int) -> Batch:
            self.cycles += 1
            noise = random.Random(self.cycles)
            fields = {f"f{i}": noise.random() for i in range(500)}
            return Batch(self.name, (sample("noise", now_ns, fields, node="n1"),))

    configured = options(tmp_path, "http://127.0.0.1:9", limit_bytes=65536, batch_seconds=0.02)
    async with Running(Agent(configured, [Noisy(period_seconds=0.02)])) as agent:
        await until(lambda: agent.normal.counts.dropped_batches > 5)
        reading = agent.reading()
        assert (reading.number("dropped_samples_total") or 0) > 5
        assert "samples dropped: the spool's bounds were reached" in reading.text("fault")
        assert (reading.number("spool_bytes") or 1e9) < 65536 * 1.5


async def test_what_the_head_asks_for_is_honoured(tmp_path: Path) -> None:
    times: list[float] = []
    bodies: list[bytes] = []

    async def answer(request: web.Request) -> web.Response:
        times.append(time.monotonic())
        body = await request.read()
        if len(times) == 1:
            return web.Response(status=429, headers={"Retry-After": "1"})
        if body.count(b"\n") > 2:
            return web.Response(status=413)
        bodies.append(body)
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/api/v2/write", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with Running(Agent(options(tmp_path, url, batch_seconds=0.5), [Counter()])) as agent:
        await until(lambda: agent.normal.counts.sent >= 2)
    assert times[1] - times[0] >= 1.0, "Retry-After was not waited for"
    assert all(body.count(b"\n") <= 2 for body in bodies), "413 was not answered with less"
    await runner.cleanup()


def test_the_agent_imports_nothing_heavy() -> None:
    code = (
        "import sys, daemon.agent.cycle;"
        "print({'numpy', 'pyarrow', 'sklearn', 'pandas', 'sqlite3'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_batch_on_disk_is_plain_line_protocol(tmp_path: Path) -> None:
    agent = Agent(options(tmp_path, "http://127.0.0.1:9"), [])

    async def keep() -> None:
        await agent.outbox.add([sample("host", 7, {"load_1m": 0.5}, node="n1")])
        await agent.outbox.flush()

    asyncio.run(keep())
    entry = agent.normal.oldest(time.time_ns())
    assert entry is not None
    assert gzip.decompress(entry.body) == b"host,node=n1 load_1m=0.5 7\n"
