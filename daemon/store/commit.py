"""Group commit: many writers, one sync. For the head's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from collectors.sample import Sample
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError


class Batch(Protocol):
    """What names a batch."""

    @property
    def node(self) -> str: ...
    @property
    def instance(self) -> str: ...
    @property
    def sequence(self) -> int: ...


class GroupCommit:
    """Gathers what comes within a short window and commits it at once, in its own thread.

    :meth:`write` returns when the samples are durable, and raises StoreUnavailableError when
    they are not; then all writers of that group learn it. While one group is being synced
    the next one gathers, so a slow disk makes groups larger, not writers more. The thread
    needs the event loop only to tell the outcome: a loop with much to do delays no commit.
    """

    def __init__(self, store: Store, window_seconds: float | None = None) -> None:
        self.store = store
        self.window_seconds = (
            store.options.commit_window_seconds if window_seconds is None else window_seconds
        )
        self._lock = threading.Lock()  # what is appended and who waits for it go together
        self._waiting: asyncio.Future[None] | None = None
        self._last: asyncio.Future[None] | None = None
        self._groups: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def write(self, samples: Sequence[Sample], batch: Batch | None = None) -> None:
        """Makes ``samples``, and the mark of the batch that they are, durable."""
        key = None if batch is None else (batch.node, batch.instance, batch.sequence)
        with self._lock:
            if self._closed:  # no thread is left that would ever answer
                raise StoreUnavailableError(f"store {self.store.directory} is being closed")
            self.store.append(samples, key)
            if self._waiting is None:
                # In this order: were there no thread to be had, nobody may wait for one.
                self._begin()
                self._waiting = self._last = asyncio.get_running_loop().create_future()
            waiting = self._waiting
        # Shielded: one writer that gives up must not end the others' wait.
        await asyncio.shield(waiting)

    def _begin(self) -> None:
        """Has the thread take one group more."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="tocsin-commit", daemon=True)
            thread.start()
            self._thread = thread
        self._groups.put(True)

    def _work(self) -> None:
        while self._groups.get():
            time.sleep(self.window_seconds)
            with self._lock:
                waiting, self._waiting = self._waiting, None
                packer = self.store.take()
            error: Exception | None = None
            try:
                self.store.write(packer)
            except Exception as raised:
                error = raised
            if waiting is not None:
                # The loop is closed when the process ends meanwhile: nobody waits any more.
                with contextlib.suppress(RuntimeError):
                    waiting.get_loop().call_soon_threadsafe(_settle, waiting, error)

    async def close(self) -> None:
        """Takes no more, and waits for the last group."""
        with self._lock:
            self._closed = True
            last = self._last
            self._groups.put(False)
        if last is not None:
            await asyncio.wait({last})


def _settle(waiting: asyncio.Future[None], error: Exception | None) -> None:
    if waiting.done():
        return
    if error is None:
        waiting.set_result(None)
    else:
        waiting.set_exception(error)
        waiting.exception()  # seen, even when every writer has given up
