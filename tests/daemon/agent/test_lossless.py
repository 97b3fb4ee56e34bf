"""Agent, head and InfluxDB, each killed again and again: every reading arrives, and once.

An hour passes in each second, so that outages are of hours. What the agent has said to be on
its disk is counted against the store, the events' table and InfluxDB.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from daemon.store.embedded import Store
from daemon.store.reader import Reader
from daemon.store.tables import to_rows
from tests.daemon.head_stub import NODE_TOKEN
from tests.testbed.store.servers import Influx1, MissingServerError, free_port

ROUNDS = int(os.environ.get("TOCSIN_LOSSLESS_ROUNDS", "5"))
SPEED = 3600.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400 + 40 * ROUNDS)]


class Side:
    """A process that is started, read and killed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[str] = []
        self.child: subprocess.Popen[str] | None = None

    def start(self, given: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "tests.daemon.lossless_child", self.name]
        self.child = subprocess.Popen(
            [*command, json.dumps(given)], stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, args=(self.child,), daemon=True)
        self._reader.start()

    def _read(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            if line.endswith("\n"):  # half a line was not said
                self.lines.append(line.strip())

    def kill(self) -> None:
        if self.child is not None:
            assert self.child.poll() is None, f"the {self.name} ended by itself"
            self.child.kill()
            self.child.wait()
            self._reader.join()
            self.child = None


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def numbers(texts: Iterable[str]) -> Counter[int]:
    return Counter(int(text.split()[1]) for text in texts)


class World:
    """The three sides, and what each place holds in the end."""

    def __init__(self, folder: Path, disk_hangs: bool) -> None:
        self.folder = folder
        self.disk_hangs = disk_hangs
        (folder / "token").write_text(NODE_TOKEN)
        self.judged_file = folder / "judged"
        self.judged_file.touch()
        self.agent, self.head = Side("agent"), Side("head")
        self.influx = self._influx()
        self.port = free_port()
        self.clock = {"begin_ns": time.time_ns(), "speed": SPEED}
        self.runs = 0

    def _influx(self) -> Influx1 | None:
        server = Influx1(self.folder / "influx")
        try:
            server.start()
        except MissingServerError:
            return None
        server.create("lossless")
        return server

    def start(self, name: str) -> None:
        if name == "influx" and self.influx is not None:
            self.influx.start()
        elif name == "agent":
            self.runs += 1
            uplink = {
                "head_url": f"http://127.0.0.1:{self.port}",
                "token_file": str(self.folder / "token"),
                "batch_seconds": 0.2,
                "backoff_limit_seconds": 0.3,
                "urgent_backoff_limit_seconds": 0.2,
                "drain_batches_per_second": 200,
            }
            spool = {"directory": str(self.folder / "spool")}
            options = {"node": "n1", "uplink": uplink, "spool": spool}
            number = self.runs * 1_000_000
            given = {"options": options, "number": number, "disk_hangs": self.disk_hangs}
            self.agent.start({**given, **self.clock})
        elif name == "head":
            given = {"folder": str(self.folder / "store"), "judged": str(self.judged_file)}
            influx = self.influx.url if self.influx else ""
            given |= {"token": NODE_TOKEN, "influx": influx}
            self.head.start({**given, "port": self.port, **self.clock})

    def kill(self, name: str) -> None:
        if name == "influx":
            if self.influx is not None:
                self.influx.kill()
        else:
            (self.agent if name == "agent" else self.head).kill()

    def stop(self) -> None:
        for side in (self.agent, self.head):
            if side.child is not None:
                side.child.kill()
                side.child.wait()
        if self.influx is not None:
            self.influx.stop()

    def kept(self) -> set[int]:
        return {int(line) for line in self.agent.lines}

    def judged(self) -> Counter[int]:
        return numbers(self.judged_file.read_text().splitlines())

    def stored(self) -> Counter[int]:
        rows = to_rows(Reader(self.folder / "store").read("event", 0, 2**62))
        return numbers(row["text"] for row in rows)

    def in_influx(self) -> Counter[int]:
        if self.influx is None:
            return self.stored()
        answer = self.influx.query("lossless", "SELECT text FROM event")["results"][0]
        rows = answer.get("series", [{"values": []}])[0]["values"]
        return numbers(row[1] for row in rows)

    def goes_on(self) -> None:
        """Agent and head both do something now."""
        kept, judged = len(self.agent.lines), self.judged_file.stat().st_size
        until(lambda: len(self.agent.lines) > kept + 5, 60, "the agent says nothing")
        until(lambda: self.judged_file.stat().st_size > judged, 60, "nothing arrives")


VICTIMS = (("head",), ("agent",), ("head", "agent"), ("influx",), ("head", "influx"))


@pytest.mark.parametrize("disk_hangs", [False, True], ids=["", "while the disk hangs"])
def test_hours_of_outage_restarts_and_kill_9_of_every_side_lose_and_double_nothing(
    tmp_path: Path, disk_hangs: bool
) -> None:
    world = World(tmp_path, disk_hangs)
    rng = random.Random(17)
    try:
        world.start("head")
        world.start("agent")
        for turn in range(ROUNDS):
            if rng.random() < 0.8:
                world.goes_on()  # else it may be killed while it still starts
            time.sleep(rng.random() * 0.5)
            for name in VICTIMS[turn % len(VICTIMS)]:
                world.kill(name)
            time.sleep(rng.random() * 1.5)  # so many hours
            for name in VICTIMS[turn % len(VICTIMS)]:
                world.start(name)
        world.goes_on()
        kept = world.kept()
        begin = time.monotonic()
        until(lambda: kept <= world.stored().keys() or time.monotonic() > begin + 200, 220, "")
        lacking = sorted(kept - world.stored().keys())
        assert not lacking, f"{len(lacking)} of {len(kept)} have not arrived: {lacking[:9]}"
        until(lambda: kept <= world.in_influx().keys(), 60, "InfluxDB lacks readings")
        world.kill("agent")
        world.kill("head")
        in_influx = world.in_influx()
    finally:
        world.stop()
    in_parquet = world.stored()
    store = Store(tmp_path / "store")
    in_events = numbers(one.text for one in store.events(limit=10**7))
    store.close()
    for where, found in (
        ("Parquet and spool", in_parquet),
        ("the events' table", in_events),
        ("InfluxDB", in_influx),
    ):
        assert kept <= found.keys(), f"{where} lacks {sorted(kept - found.keys())[:9]}"
        assert set(found.values()) == {1}, f"{where} has one twice"
    # Killed between commit and judgement the head judges from the store when it starts again;
    # what it has judged in its life it must not judge twice.
    # An agent killed while its disk hangs may have sent a batch from memory that is on disk as
    # well: the store keeps its points once, but they are shown to the watch once more.
    assert max(world.judged().values()) <= 1 + disk_hangs
    # They agree on what there is, also beyond what the agent lived to say that it had kept.
    assert in_parquet == in_events
    assert len(kept) > 5 * ROUNDS
    assert not list((tmp_path / "store" / "damaged").iterdir())
