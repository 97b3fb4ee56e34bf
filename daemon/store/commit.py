"""Group commit: many writers, one sync. For the head's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from collectors.sample import Sample
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError

log = logging.getLogger("tocsin.store")


class Batch(Protocol):
    """What names a batch."""

    @property
    def node(self) -> str: ...
    @property
    def instance(self) -> str: ...
    @property
    def sequence(self) -> int: ...


# Told of one write, in the event loop: None when it is durable, or why it is not.
Told = Callable[[Exception | None], None]


class GroupCommit:
    """Gathers what comes within a short window and commits it at once, in its own thread.

    :meth:`submit` has its writer told when the samples are durable, or that they are not, as all
    writers of that group are. While one group is being synced the next one gathers, so a slow
    disk makes groups larger, not writers more. The thread needs the event loop only to tell the
    outcome, of a group at once: a loop with much to do delays no commit.
    """

    def __init__(self, store: Store, window_seconds: float | None = None) -> None:
        self.store = store
        self.window_seconds = (
            store.options.commit_window_seconds if window_seconds is None else window_seconds
        )
        self._lock = threading.Lock()  # what is appended and who waits for it go together
        self._waiting: list[Told] = []
        self._last: asyncio.Future[None] | None = None  # done when the newest group is
        self._groups: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, samples: Sequence[Sample], batch: Batch | None, told: Told) -> None:
        """Makes ``samples``, and the mark of the batch that they are, durable; then calls ``told``.

        Raises StoreUnavailableError when the store is being closed, and for a sample that cannot
        be packed; then nobody is told.
        """
        key = None if batch is None else (batch.node, batch.instance, batch.sequence)
        with self._lock:
            if self._closed:  # no thread is left that would ever answer
                raise StoreUnavailableError(f"store {self.store.directory} is being closed")
            self.store.append(samples, key)
            if not self._waiting:
                # In this order: were there no thread to be had, nobody may wait for one.
                self._begin()
                self._last = asyncio.get_running_loop().create_future()
                self._waiting.append(partial(_settle, self._last))
            self._waiting.append(told)

    async def write(self, samples: Sequence[Sample], batch: Batch | None = None) -> None:
        """The same for who waits: returns when they are durable, or raises why they are not."""
        outcome = asyncio.get_running_loop().create_future()
        self.submit(samples, batch, partial(_settle, outcome))
        await outcome

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
                waiting, self._waiting = self._waiting, []
                last = self._last
                packer = self.store.take()
            error: Exception | None = None
            try:
                self.store.write(packer)
            except Exception as raised:
                error = raised
            if waiting and last is not None:
                # The loop is closed when the process ends meanwhile: nobody waits any more.
                with contextlib.suppress(RuntimeError):
                    last.get_loop().call_soon_threadsafe(_tell, waiting, error)

    async def close(self) -> None:
        """Takes no more, and waits for the last group."""
        with self._lock:
            self._closed = True
            last = self._last
            self._groups.put(False)
        if last is not None:
            await asyncio.wait({last})


def _tell(waiting: Sequence[Told], error: Exception | None) -> None:
    for told in waiting:
        try:
            told(error)
        except Exception:  # one writer's fault must not cost the others their answer
            log.exception("a writer could not be told")


def _settle(waiting: asyncio.Future[None], error: Exception | None) -> None:
    if waiting.done():
        return
    if error is None:
        waiting.set_result(None)
    else:
        waiting.set_exception(error)
        waiting.exception()  # seen, even when every writer has given up
