import asyncio
import gzip
import random
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from collectors.lines import decode
from collectors.sample import Batch, Problem, Sample, SourceUnavailable, sample
from daemon.agent.cycle import Agent
from daemon.agent.options import AgentOptions, SpoolOptions, UplinkOptions
from daemon.agent.spool import Entry, Spool
from daemon.gate.gateway import GatewayOptions
from daemon.gate.tokens import Tokens
from daemon.store.tables import to_rows
from tests.daemon.head_stub import NODE_TOKEN, Head


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        await asyncio.sleep(0.01)


@dataclass
class Counter:
    """A source that counts its cycles."""

    name: str = "counter"
    period_seconds: float = 0.05
    deadline_seconds: float = 1.0
    cycles: int = 0
    closed: int = 0

    def collect(self, now_ns: int) -> Batch:
        self.cycles += 1
        reading = sample("host", now_ns, {"cycles": float(self.cycles)}, node="n1")
        return Batch(self.name, (reading,))

    def close(self) -> None:
        self.closed += 1


@dataclass
class Log(Counter):
    """A source with a cursor: it must not be acknowledged before its lines are safe."""

    name: str = "log"
    lines: list[tuple[str, float]] = field(default_factory=list)
    taken: int = 0
    acknowledged: int = 0

    def collect(self, now_ns: int) -> Batch:
        samples = []
        for text, severity in self.lines[self.acknowledged :]:
            self.taken += 1
            fields = {"text": text, "severity": severity}
            tags = {"node": "n1", "kind": "xid", "code": str(self.taken)}
            samples.append(sample("event", now_ns, fields, **tags))
        self._read = len(self.lines)
        return Batch(self.name, tuple(samples))

    def acknowledge(self) -> None:
        self.acknowledged = self._read


@dataclass
class Stuck(Counter):
    """A source that hangs from its first cycle until it is released."""

    name: str = "stuck"
    deadline_seconds: float = 0.05
    release: threading.Event = field(default_factory=threading.Event)

    def collect(self, now_ns: int) -> Batch:
        self.cycles += 1
        self.release.wait(30)
        return Batch(self.name, (sample("host", now_ns, {"late": 1.0}, node="n1"),))


@dataclass
class Failing(Counter):
    """A source that is missing on one cycle and broken on the next."""

    name: str = "failing"

    def collect(self, now_ns: int) -> Batch:
        self.cycles += 1
        if self.cycles % 2:
            raise SourceUnavailable("no such device; load the driver")
        raise KeyError("a bug")


def options(
    tmp_path: Path, url: str, token: str = NODE_TOKEN, limit_bytes: int = 2**20, **uplink: Any
) -> AgentOptions:
    token_file = tmp_path / "token"
    token_file.write_text(token + "\n")
    defaults: dict[str, Any] = {
        "batch_seconds": 0.1,
        "backoff_limit_seconds": 0.3,
        "urgent_backoff_limit_seconds": 0.1,
        "drain_batches_per_second": 1000,
        "request_deadline_seconds": 5,
    }
    return AgentOptions(
        node="n1",
        uplink=UplinkOptions(head_url=url, token_file=token_file, **(defaults | uplink)),
        spool=SpoolOptions(directory=tmp_path / "spool", limit_bytes=limit_bytes),
    )


class Running:
    """An agent that runs while the block is entered."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.stop = asyncio.Event()

    async def __aenter__(self) -> Agent:
        self.task = asyncio.create_task(self.agent.run(self.stop))
        return self.agent

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, 15)


def numbers(head: Head) -> list[float]:
    rows = to_rows(head.store.read("host", 0, 2**62))
    return [row["cycles"] for row in rows if "cycles" in row]


def arrived_or_spooled(head: Head, tmp_path: Path) -> list[float]:
    """The cycles that the head has, then those that a clean stop left on disk (a slow machine)."""
    spool = Spool(tmp_path / "spool" / "normal")
    found = numbers(head)
    while (entry := spool.oldest(time.time_ns())) is not None:
        samples = decode(gzip.decompress(entry.body), 0).samples
        left = [s.number("cycles") for s in samples if s.measurement == "host"]
        found.extend(cycle for cycle in left if cycle is not None)
        spool.done(entry)
    return found


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
        assert time.monotonic() - started < 2
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
    assert time.monotonic() - started < 8
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
        await until(lambda: (agent.reading().number("quarantined_lines_total") or 0) > 3)
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


async def test_tls_with_an_own_authority(tmp_path: Path) -> None:
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "key.pem", "-out", "cert.pem"),
            *("-days", "2", "-subj", "/CN=head", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip("needs openssl to make a certificate")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    head = await Head(tmp_path / "store", tls=server).start()
    trusted = options(tmp_path, head.url, ca_file=tmp_path / "cert.pem")
    async with Running(Agent(trusted, [Counter()])):
        await until(lambda: len(numbers(head)) > 2)
    seen = len(numbers(head))
    async with Running(Agent(options(tmp_path, head.url), [Counter()])) as agent:
        await until(lambda: "certificate" in agent.reading().text("fault").lower())
    assert len(numbers(head)) == seen
    await head.stop()


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
    def collect(self, now_ns):
        Source.number += 1
        print(Source.number, flush=True)
        fields = {"text": f"event {Source.number}", "severity": 1.0}
        return Batch("counter", (sample("event", now_ns, fields, node="n1", kind="k"),))
    def acknowledge(self):
        print("kept", Source.number, flush=True)
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

    # Its time is the machine's: hundreds of batches wait behind a back-off on a busy one.
    await until(lambda: set(range(1, kept + 1)) <= set(arrived()), seconds=90.0)
    child.terminate()
    assert (await child.stdout.read()).splitlines()[-1] == b"ended"
    assert await child.wait() == 0
    assert len(arrived()) == len(set(arrived()))
    await head.stop()


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


def made_by(openssl: list[str], directory: Path) -> None:
    done = subprocess.run(["openssl", *openssl], cwd=directory, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("needs openssl to make certificates")


async def test_a_client_certificate_names_the_node(tmp_path: Path) -> None:
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made_by(
        ["req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority"],
        tmp_path,
    )
    for name, extra in (
        ("head", "subjectAltName=IP:127.0.0.1"),
        ("n1", "basicConstraints=CA:FALSE"),
    ):
        made_by(
            [
                *("req", "-x509", *curve, "-CA", "ca.pem", "-CAkey", "ca.key", "-keyout"),
                *(f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", "-addext", extra),
            ],
            tmp_path,
        )
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.pem"))
    server.load_cert_chain(tmp_path / "head.pem", tmp_path / "head.key")
    server.verify_mode = ssl.CERT_OPTIONAL
    asked = GatewayOptions(client_certificates=True)
    head = await Head(tmp_path / "store", asked, Tokens(), tls=server).start()
    files = {"certificate_file": tmp_path / "n1.pem", "key_file": tmp_path / "n1.key"}
    trusted = options(tmp_path, head.url, ca_file=tmp_path / "ca.pem", **files)
    uplink = trusted.uplink.model_copy(update={"token_file": None})
    async with Running(Agent(trusted.model_copy(update={"uplink": uplink}), [Counter()])):
        await until(lambda: len(numbers(head)) > 2)
    # Without a certificate there is no token that would do either.
    async with Running(
        Agent(options(tmp_path, head.url, ca_file=tmp_path / "ca.pem"), [])
    ) as agent:
        await until(lambda: "refuses our token (401)" in agent.reading().text("fault"))
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
