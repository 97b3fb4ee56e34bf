"""Runs the demo: builds the cluster and its past, starts the real head, and feeds it.

Everything between the agents and Slurm is the head of production: gateway, store, watch,
policy, ledger, page, operator's socket. Only time, the agents and Slurm are simulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from collectors.lines import encode
from collectors.sample import Sample
from daemon.assemble import open_ears
from daemon.clock import NANOSECONDS
from daemon.config import Config, store_directory
from daemon.demo.clock import PacedClock
from daemon.demo.cluster import Cluster, rack_size
from daemon.demo.plot import plot
from daemon.demo.source import simulated_source
from daemon.gate.tokens import TokenFile
from daemon.head import Head
from daemon.headview import HeadEyes
from daemon.listen import Listeners
from daemon.loop import run_head
from daemon.page.view import DecisionView, Refused, iso
from daemon.store.embedded import Store

# The page's charts begin with a stretch of calm, read at a slow cadence to start soon.
PAST_SECONDS = 1800.0
PAST_PERIOD_SECONDS = 60.0
PERIOD_SECONDS = 30.0
# At high speed the fleet is read less often in simulated time, not more often in real time.
LEAST_REAL_PERIOD_SECONDS = 0.4

# So long the story waits for a head that does not keep up; then it goes on, and shows it.
WAIT_SECONDS = 20.0

Print = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """``speed`` simulated seconds pass in a second. ``seconds`` 0 runs until Ctrl-C."""

    nodes: int = 64
    gpus: int = 8
    speed: float = 60.0
    seconds: float = 0.0
    port: int = 8650
    seed: int = 7

    @property
    def period_seconds(self) -> float:
        """How often the fleet is read, in simulated time."""
        return max(PERIOD_SECONDS, LEAST_REAL_PERIOD_SECONDS * self.speed)


def run_demo(options: DemoOptions, say: Print = print) -> int:
    """Runs until Ctrl-C, SIGTERM or ``seconds``; leaves nothing behind. The exit code."""
    with tempfile.TemporaryDirectory(prefix="tocsin-demo-") as folder:
        run_head(_demo(options, Path(folder), say))
    return 0


def demo_config(options: DemoOptions, folder: Path) -> Config:
    """The configuration of the demo: everything in ``folder``, in mode act, on loopback."""
    judge_seconds = max(5.0, LEAST_REAL_PERIOD_SECONDS * options.speed)
    tokens = folder / "tokens"
    return Config.model_validate(
        {
            "mode": "act",
            "head": {
                "listen": "127.0.0.1:0",
                "state_dir": folder / "head",
                "socket": folder / "tocsin.sock",
                "operators_group": "",
                "tokens_file": tokens,
                "judge_seconds": min(judge_seconds, 300.0),
                "checkpoint_seconds": 3600.0,
            },
            "slurm": {"cluster": "demo"},
            "gateway": {"lines_per_second_limit": 1e9, "burst_lines_limit": 10_000_000},
            # A small fleet rounds shares to nothing, and a demo shows the question to a person
            # at a risk that a real site would only watch.
            "policy": {
                "drained_share_max": 0.08,
                "risk_mode": "approve",
                "risk_threshold": 0.02,
                "holdout": {"share": 0.0},
            },
            "learning": {"enabled": False},
            "page": {"listen": f"127.0.0.1:{options.port}"},
        }
    )


def new_token(file: Path) -> str:
    """A token for the relay that speaks for all simulated agents, also written to ``file``."""
    token = secrets.token_urlsafe(24)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as handle:
        handle.write(f"* {token}\n")
    return token


async def _demo(options: DemoOptions, folder: Path, say: Print) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    config = demo_config(options, folder)
    token = new_token(config.head.tokens_file)
    story_ns = time.time_ns()
    say(
        f"tocsin demo: {options.nodes} nodes x {options.gpus} GPUs, {options.speed:g} simulated "
        "seconds a second; making their past ..."
    )
    cluster = await asyncio.to_thread(_cluster_with_past, options, config, story_ns)
    clock = PacedClock(options.speed, story_ns)
    source = simulated_source(
        cluster.slurm, options.period_seconds, folder / "slurm", cluster.running
    )
    head = Head(config, clock=clock, adapter=cluster.slurm, slurm=source, speed=options.speed)
    listeners = Listeners()
    tasks: list[asyncio.Task[None]] = []
    try:
        await head.start()
        tokens = TokenFile(config.head.tokens_file)
        gate, page = await open_ears(head, config, tokens, listeners)
        say(f"page      http://{page}/")
        # As it was called where it is not on the PATH: `make demo` has an environment of its own.
        command = "tocsin" if shutil.which("tocsin") else sys.argv[0]
        say(f"socket    TOCSIN_SOCKET={config.head.socket} {command} status")
        say("Ctrl-C ends it. Drains and what holds them back, as they happen (simulated UTC):")
        url = f"http://{gate}/api/v2/write"
        feeder = Feeder(cluster, clock, url, token, options, lambda: _keeps_up(head, options))
        eyes = HeadEyes(head)
        tasks = [
            asyncio.create_task(feeder.run()),
            asyncio.create_task(_tell(eyes, say)),
            asyncio.create_task(_give_back(feeder, eyes, say)),
        ]
        await _until(stop, options.seconds, tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listeners.close()
        await head.stop()
    say("demo ends; nothing is left behind")


def _cluster_with_past(options: DemoOptions, config: Config, story_ns: int) -> Cluster:
    """The cluster, with an hour of calm in the store that the head will open."""
    start_ns = story_ns - int(PAST_SECONDS * NANOSECONDS)
    acts = plot(options.nodes, options.gpus, rack_size(options.nodes), options.seed)
    cluster = Cluster(options.nodes, options.gpus, options.seed, start_ns, story_ns, acts)
    store = Store(store_directory(config), config.store, lambda: story_ns)
    try:
        step_ns = int(PAST_PERIOD_SECONDS * NANOSECONDS)
        for now_ns in range(start_ns + step_ns, story_ns, step_ns):
            store.append(cluster.step(now_ns))
            store.commit()
    finally:
        store.close()
    return cluster


class Feeder:
    """Plays all agents: reads the fleet each period and posts what they would have posted."""

    def __init__(
        self,
        cluster: Cluster,
        clock: PacedClock,
        url: str,
        token: str,
        options: DemoOptions,
        keeps_up: Callable[[], bool],
    ) -> None:
        self.cluster = cluster
        self._clock = clock
        self._url = url
        self._headers = {"Authorization": f"Token {token}"}
        self._period_seconds = options.period_seconds
        self._keeps_up = keeps_up
        self.refused = 0

    async def run(self) -> None:
        """Feeds until it is cancelled. Time runs on only when a reading was taken."""
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                now_ns = self._clock.now_ns()
                due_seconds = self._clock.monotonic() + self._period_seconds
                samples = await asyncio.to_thread(self.cluster.step, now_ns)
                await self._post(session, samples)
                waited_since = time.monotonic()
                while (  # noqa: ASYNC110 - the head has no event for it
                    not self._keeps_up() and time.monotonic() - waited_since < WAIT_SECONDS
                ):
                    await asyncio.sleep(0.05)
                self._clock.allow(due_seconds)
                await self._clock.reached(due_seconds)

    async def _post(self, session: aiohttp.ClientSession, samples: list[Sample]) -> None:
        # In portions: a fleet of thousands is more than one request may carry.
        for first in range(0, len(samples), 5000):
            body = await asyncio.to_thread(encode, samples[first : first + 5000])
            async with session.post(self._url, data=body, headers=self._headers) as answer:
                if answer.status >= 300:
                    self.refused += 1
                    text = (await answer.text())[:300]
                    print(f"gateway: HTTP {answer.status} {text}", file=sys.stderr)  # noqa: T201


def _keeps_up(head: Head, options: DemoOptions) -> bool:
    """Whether the head has read Slurm and judged within the last two periods."""
    late_seconds = 2 * options.period_seconds
    judged_seconds = (head.clock.now_ns() - head.judgement.now_ns) / NANOSECONDS
    return head.desk.age_seconds <= late_seconds and judged_seconds <= late_seconds


async def _tell(eyes: HeadEyes, say: Print) -> None:
    """Prints each alert when it is new, and each case when it is decided or decided anew."""
    told: set[tuple[str, str, str]] = set()
    known: set[str] = set()
    while True:
        fleet = await eyes.fleet()
        for alert in fleet.alerts:
            if alert.key not in known:
                say(f"{iso(fleet.time_ns)[11:19]}  ALERT  {alert.title}")
        known = {alert.key for alert in fleet.alerts}
        for one in reversed(await eyes.decisions(100)):
            state = (one.id, one.action, one.guard)
            if state not in told and one.guard != "ours":
                told.add(state)
                say(line_of(one))
        await asyncio.sleep(0.4)


def line_of(one: DecisionView) -> str:
    """One decision on one line: time, action, node, part, reason, guard."""
    time_text = iso(one.time_ns)[11:19]
    guard = f"  [{one.guard}: {one.guard_text}]" if one.guard else ""
    return f"{time_text}  {one.action:<6} {one.node} {one.device:<5} {one.reason}{guard}"


async def _give_back(feeder: Feeder, eyes: HeadEyes, say: Print) -> None:
    """Plays the operator who gives mended nodes back."""
    waiting: set[str] = set()
    while True:
        waiting |= set(feeder.cluster.returned())
        for name in sorted(waiting):
            with contextlib.suppress(Refused):
                say(f"          operator: {await eyes.resume(name, 'operator')}")
            waiting.discard(name)
        await asyncio.sleep(0.5)


async def _until(stop: asyncio.Event, seconds: float, tasks: list[asyncio.Task[None]]) -> None:
    """Returns at Ctrl-C or after ``seconds``; raises what a task died of."""
    stopped = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait(
            [stopped, *tasks], timeout=seconds or None, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done - {stopped}:
            task.result()
    finally:
        stopped.cancel()
