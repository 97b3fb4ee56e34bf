"""Group commit: many writers, one sync. For the head's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from collectors.sample import Sample
from daemon.schedule import OwnThread
from daemon.store.embedded import Store


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
    the next one gathers, so a slow disk makes groups larger, not writers more.
    """

    def __init__(self, store: Store, window_seconds: float | None = None) -> None:
        self.store = store
        self.window_seconds = (
            store.options.commit_window_seconds if window_seconds is None else window_seconds
        )
        self._thread = OwnThread("tocsin-commit")
        self._waiting: asyncio.Future[None] | None = None
        self._runner: asyncio.Task[None] | None = None

    async def write(self, samples: Sequence[Sample], batch: Batch | None = None) -> None:
        """Makes ``samples``, and the mark of the batch that they are, durable."""
        key = None if batch is None else (batch.node, batch.instance, batch.sequence)
        self.store.append(samples, key)
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
        waiting = self._waiting
        if self._runner is None or self._runner.done():
            self._runner = asyncio.ensure_future(self._run())
        # Shielded: one writer that gives up must not end the others' wait.
        await asyncio.shield(waiting)

    async def _run(self) -> None:
        while self._waiting is not None:
            await asyncio.sleep(self.window_seconds)
            waiting, self._waiting = self._waiting, None
            packer = self.store.take()
            try:
                await self._thread.submit(lambda packer=packer: self.store.write(packer))  # type: ignore[misc]
            except Exception as error:
                waiting.set_exception(error)
                waiting.exception()  # seen, even when every writer has given up
            else:
                waiting.set_result(None)

    async def close(self) -> None:
        """Waits for the last group."""
        if self._runner is not None:
            await asyncio.wait({self._runner})
        self._thread.close()
