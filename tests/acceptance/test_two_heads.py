"""Two heads over one real Slurm: who acts, who takes over, and that a stale one writes nothing."""

from __future__ import annotations

import gzip
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemon.cli.client import HeadAway, ask
from daemon.standby import LOST_EXIT_CODE
from tests.acceptance.house import TOKEN, XID79, House, free_port
from tests.testbed.slurm.cluster import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

SECONDS = 6


class Pair:
    """A house with a second head that shares state and lease with the first."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.lease = house.folder / "shared"
        self.lease.mkdir()
        self.sockets = {"head": house.socket, "second": house.folder / "second.sock"}
        self.port = free_port()
        text = house.config.read_text().replace("deadline_seconds = 6", "deadline_seconds = 2")
        text += f'[head.lease]\ndirectory = "{self.lease}"\nseconds = {SECONDS}\n'
        house.config.write_text(text)
        text = text.replace(str(house.socket), str(self.sockets["second"]))
        text = text.replace(f":{house.port}", f":{self.port}")
        text = text.replace(f":{house.page}", f":{free_port()}")
        self.config = house.folder / "second.toml"
        self.config.write_text(text)
        for node in house.cluster.nodes:
            file = house.folder / node / "agent.toml"
            more = f'standby_urls = ["http://127.0.0.1:{self.port}"]\nrequest_deadline_seconds = 2'
            text = file.read_text()
            file.write_text(text.replace("batch_seconds", f"{more}\nbatch_seconds", 1))

    def start(self) -> None:
        """The first head, two agents, and then the second head."""
        self.house.start_head()
        self.house.start_agent("n2")
        self.house.start_agent("n3")
        wait_for(lambda: self.house.status()["agents_heard"] == 2, "both are heard")
        self.start_second()

    def start_second(self) -> None:
        self.house._start("second", ["run", "--config", str(self.config)], {})
        wait_for(lambda: self.role("second"), "the second head answers")

    def status(self, name: str) -> dict[str, Any]:
        try:
            return dict(ask(str(self.sockets[name]), "/api/v1/status"))
        except HeadAway:
            return {}

    def role(self, name: str) -> str:
        return str(self.status(name).get("role", ""))

    def ended(self, name: str) -> int | None:
        return self.house.processes[name].poll()

    def wait_for_role(self, name: str, role: str) -> None:
        """Waits until that head has this role; a failure shows what it said last."""
        wait_for(
            lambda: self.role(name) == role,
            f"{name} {role}",
            seen=lambda: (self.role(name), self.ended(name), self.house.words(name)[-3:]),
        )


@pytest.fixture
def pair(build_house: Callable[..., House]) -> Pair:
    made = Pair(build_house(policy="drained_share_max = 1.0\npartition_share_max = 1.0"))
    made.start()
    return made


def test_the_other_head_takes_over_from_one_that_was_killed(pair: Pair) -> None:
    house, slurm = pair.house, pair.house.cluster
    assert pair.role("head") == "acts"
    assert "role     acts: holds the lease" in house.tocsin("status").stdout
    assert pair.role("second") == "stands by"
    told = house.tocsin("status", "--socket", str(pair.sockets["second"]))
    assert told.returncode == 0
    assert "STANDS BY" in told.stdout
    assert "holds the lease" in told.stdout
    word = house.tocsin("lock", "n1", "--socket", str(pair.sockets["second"]))
    assert word.returncode == 1
    assert "this head stands by" in word.stderr
    house.kernel_says("n3", XID79)
    wait_for(lambda: house.drained("n3"), "n3 is drained")
    reason = slurm.reason("n3")

    house.kill("head")
    begun = time.monotonic()
    pair.wait_for_role("second", "acts")
    assert time.monotonic() - begun > SECONDS * 0.5, "the lease was not waited for"
    house.kernel_says("n2", XID79)
    wait_for(lambda: house.drained("n2"), "n2 is drained by the second head")
    assert slurm.reason("n3") == reason
    done = house.tocsin("resume", "n3", "--socket", str(pair.sockets["second"]))
    assert done.returncode == 0, done.stderr
    assert not house.drained("n3")

    house.start_head(wait=False)
    pair.wait_for_role("head", "stands by")
    assert pair.role("second") == "acts"


def asks_to_drain(pair: Pair, node: str) -> socket.socket:
    """A request to the first head that would drain ``node``, sent and not yet answered."""
    line = f'event,node={node},kind=xid,code=79 severity=3,text="{XID79}",device="0000:9b:00"'
    body = gzip.compress(f"{line} {time.time_ns()}".encode())
    wire = socket.create_connection(("127.0.0.1", pair.house.port), timeout=10)
    head = (
        "POST /api/v2/write?org=o&bucket=b&precision=ns HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Token {TOKEN}{node}\r\nContent-Encoding: gzip\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    wire.sendall(head.encode() + body)
    return wire


def test_a_frozen_head_that_wakes_up_writes_nothing_and_ends(pair: Pair) -> None:
    house, slurm = pair.house, pair.house.cluster
    house.kill("head", signal.SIGSTOP)
    with asks_to_drain(pair, "n1"):
        pair.wait_for_role("second", "acts")
        house.kernel_says("n2", XID79)
        wait_for(lambda: house.drained("n2"), "n2 is drained by the second head")
        before = slurm.log_size()
        house.kill("head", signal.SIGCONT)
        wait_for(lambda: pair.ended("head") is not None, "the stale head ends")
    assert pair.ended("head") == LOST_EXIT_CODE
    assert any(one.get("event") == "lease_lost" for one in house.words("head"))
    time.sleep(2)
    assert slurm.updates_since(before) == []
    assert not house.drained("n1")
    assert pair.role("second") == "acts"
    assert [one for one in pair_decisions(pair) if one["node"] == "n1"] == []


# Begins a transaction of SQLite and stays in it.
_WRITES = """
import sqlite3, sys
one = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
one.execute("BEGIN EXCLUSIVE")
print("within", flush=True)
sys.stdin.readline()
"""


def test_a_head_frozen_while_it_wrote_to_its_database_is_taken_over_all_the_same(
    pair: Pair,
) -> None:
    """SQLite's lock is the process's, and it keeps it for as long as it stands still."""
    house = pair.house
    house.kernel_says("n3", XID79)
    wait_for(lambda: house.drained("n3"), "n3 is drained")
    (database,) = house.folder.rglob("tocsin.sqlite")
    # A lock taken in the head's place: none can be met within the few milliseconds of a write.
    with subprocess.Popen(
        [sys.executable, "-c", _WRITES, str(database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "within\n"
            holder.send_signal(signal.SIGSTOP)
            house.kill("head", signal.SIGSTOP)
            pair.wait_for_role("second", "acts")
            house.kernel_says("n2", XID79)
            wait_for(lambda: house.drained("n2"), "n2 is drained by the second head")
            house.kill("head", signal.SIGCONT)
            wait_for(lambda: pair.ended("head") is not None, "the stale head ends")
        finally:
            holder.kill()
    assert pair.ended("head") == LOST_EXIT_CODE
    done = house.tocsin("resume", "n3", "--socket", str(pair.sockets["second"]))
    assert done.returncode == 0, done.stderr
    assert pair.role("second") == "acts"


def pair_decisions(pair: Pair) -> list[dict[str, Any]]:
    answer = ask(str(pair.sockets["second"]), "/api/v1/decisions?limit=500")
    return list(answer["decisions"])


def test_without_the_shared_folder_nobody_acts(pair: Pair) -> None:
    house, slurm = pair.house, pair.house.cluster
    away = Path(f"{pair.lease}.away")
    pair.lease.rename(away)
    wait_for(lambda: pair.ended("head") is not None, "the head without a lease ends")
    assert pair.ended("head") == LOST_EXIT_CODE
    assert pair.role("second") == "stands by"
    assert "cannot be read" in pair.status("second")["role_text"]
    before = slurm.log_size()
    house.kernel_says("n2", XID79)
    time.sleep(SECONDS * 1.2)
    assert pair.role("second") == "stands by", "a folder that is gone is no free lease"
    assert slurm.updates_since(before) == []
    away.rename(pair.lease)
    pair.wait_for_role("second", "acts")
    wait_for(lambda: house.drained("n2"), "n2 is drained, once")
    assert len([line for line in slurm.updates_since(before) if "reason set" in line]) == 1
