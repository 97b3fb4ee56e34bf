"""Whoever writes gets an answer, whatever the committing thread does."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from pathlib import Path

import pytest

from collectors.sample import sample
from daemon.store.commit import GroupCommit
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError

ONE = sample("gpu", 1, {"power_watts": 1.0}, node="n1")


async def test_a_write_after_the_end_is_refused_and_does_not_wait_for_ever(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        commit = GroupCommit(store)
        await commit.write([ONE])
        await commit.close()
        with pytest.raises(StoreUnavailableError):
            await asyncio.wait_for(commit.write([ONE]), 5.0)


async def test_a_thread_that_could_not_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with closing(Store(tmp_path)) as store:
        commit = GroupCommit(store)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", fails)
            with pytest.raises(RuntimeError):
                await commit.write([ONE])
        await asyncio.wait_for(commit.write([ONE]), 5.0)
        await commit.close()
        assert store.read("gpu", 0, 10).num_rows == 1


async def test_what_comes_while_the_group_is_closed_is_refused_and_not_half_taken(
    tmp_path: Path,
) -> None:
    """Nobody would tell its writer that the store was closed before it was synced."""
    with closing(Store(tmp_path)) as store:
        commit = GroupCommit(store, 0.1)
        first = asyncio.create_task(commit.write([ONE]))
        await asyncio.sleep(0)
        ends = asyncio.create_task(commit.close())
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailableError, match="is being closed"):
            await asyncio.wait_for(commit.write([ONE]), 60.0)
        await ends
        await first
        assert store.read("gpu", 0, 10).num_rows == 1
