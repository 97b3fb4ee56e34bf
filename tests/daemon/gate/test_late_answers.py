"""A sender that gave up, or was told to come again, while the store went on: stored and shown once.

The gateway over the real way in (``daemon.intake``) and a real store whose disk may stand still.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from collectors.sample import Sample
from daemon.clock import SystemClock
from daemon.gate.gateway import BATCH_HEADER, GatewayOptions
from daemon.intake import Intake
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError
from daemon.store.packing import Packer
from models.runs import Run
from tests.daemon.gate.test_gateway import post, stored
from tests.daemon.head_stub import Head

LINE = "host,node=n1 load_1m=0.5\n"
BATCH = {BATCH_HEADER: "agent:1"}


class Listener:
    """Stands for the watch: notes what it is shown."""

    def __init__(self) -> None:
        self.shown: list[Sample] = []

    def ingest_runs(self, runs: Sequence[Run], arrival_ns: int) -> None:
        self.shown.extend(one for run in runs for one in run.samples)


class Disk:
    """The store's own write, held up until it is ``free``; then it may fail once."""

    def __init__(self, store: Store) -> None:
        self.free = threading.Event()
        self.begun = threading.Event()
        self.fails = False
        self._write = store.write

    def write(self, packer: Packer) -> None:
        self.begun.set()
        assert self.free.wait(60)
        if self.fails:
            self.fails = False
            raise StoreUnavailableError("no space left")
        self._write(packer)


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 60)


@pytest.mark.parametrize("hangs_up", [True, False])
@pytest.mark.parametrize("fails", [True, False])
async def test_a_batch_whose_sender_did_not_wait_is_stored_and_shown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs_up: bool, fails: bool
) -> None:
    seconds = 60.0 if hangs_up else 0.2
    head = await Head(tmp_path / "store", GatewayOptions(commit_deadline_seconds=seconds)).start()
    listener = Listener()
    watch = cast(Any, listener)
    intake = Intake(head.commit, watch, SystemClock(), lambda: None)
    head.gateway.accept = intake.accept
    disk = Disk(head.store)
    monkeypatch.setattr(head.store, "write", disk.write)
    disk.fails = fails

    first = asyncio.create_task(post(head, LINE, headers=BATCH))
    await until(disk.begun)
    if hangs_up:
        first.cancel()
        await asyncio.wait({first})
    else:
        assert (await first)[0] == 503
    assert listener.shown == [], "nothing is shown before it is durable"

    again = asyncio.create_task(post(head, LINE, headers=BATCH))
    disk.free.set()
    status = (await again)[0]
    for _ in range(100):  # the outcome of the first, where that failed or came late
        if status == 503:
            status = (await post(head, LINE, headers=BATCH))[0]
    assert status == 204
    assert (await post(head, LINE, headers=BATCH))[0] == 204
    assert await intake.in_turn(lambda: len(listener.shown)) == 1
    assert len(stored(head)) == 1
    gateway = head.gateway
    assert (gateway._pending_samples, gateway.pending_bytes, gateway._in_flight) == (0, 0, {})
    await head.stop()
    intake.close()
