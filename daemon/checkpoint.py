"""What the watch knows is written down, without keeping it from its readings.

The watch's thread gives out its state in short turns, and readings come between them; words and
files are made of it in a thread of their own. So the parts are of different moments, which is right
because whoever comes back is shown again all that came since *before* the first turn
(daemon/recovery.py), and each part knows what it was shown already. The features, whose rows and
events belong together, are copied in one turn.

A checkpoint rests in proportion to what it cost: see REST.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

import structlog

from daemon.store.embedded import Store
from models.features.checkpoint import Picture, Room, Writer, as_json
from models.watch import Watch

log = structlog.get_logger("tocsin.checkpoint")

WATCH_FILE = "watch.json"
FEATURES_FILE = "features.npz"

# The next begins no sooner than so many times the CPU seconds of the last after that began: with
# 50, all of them together never take more than 2 % of a core, however large the fleet is.
REST = 50.0

Result = TypeVar("Result")


class InTurn(Protocol):
    """Runs a function in the watch's thread, after every reading that came before."""

    async def __call__(self, function: Callable[[], Result]) -> Result:
        """What ``function`` returns."""


class Checkpoint:
    """Writes down what ``watch`` knows, and up to which of the store's events it has been shown."""

    def __init__(
        self,
        directory: Path,
        watch: Watch,
        store: Store,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        """``cpu``: CPU seconds that the thread which asks has taken so far."""
        self._directory = directory
        self._watch = watch
        self._events = store.event_table
        self._newest_id = self._events.newest_id()
        self._monotonic = monotonic
        self._cpu = cpu
        self._writer = Writer()
        self._thread = ThreadPoolExecutor(1, "tocsin-checkpoint")
        self._one_at_once = asyncio.Lock()
        self._working: asyncio.Future[Any] | None = None
        self.cpu_seconds = 0.0  # what the last one cost, in both threads
        self._rests_until_seconds = float("-inf")

    async def save(self, in_turn: InTurn, now_ns: Callable[[], int]) -> None:
        """Writes one; waits for one that is still being written. Raises OSError.

        Whoever gives up waiting stops no write that has begun: the next waits for it.
        """
        async with self._one_at_once:
            if self._working is not None and not self._working.done():
                await asyncio.wait({self._working})
            began_seconds, self.cpu_seconds = self._monotonic(), 0.0
            try:
                await self._save(in_turn, now_ns())
            finally:
                self._rests_until_seconds = began_seconds + REST * self.cpu_seconds

    async def _save(self, in_turn: InTurn, time_ns: int) -> None:
        words = Words()
        shown_id = await in_turn(self._shown_id)
        turns = self._watch.dump_turns()
        take = self._measured(lambda: next(turns, None))
        while (turn := await in_turn(take)) is not None:
            await self._aside(partial(words.add, *turn))
        engine = self._watch.features
        room = await self._aside(partial(Room, await in_turn(engine.size_bytes)))
        features = await in_turn(self._measured(partial(engine.take, room)))
        parts = self._writer, features, words
        await self._aside(partial(write, self._directory, *parts, time_ns, shown_id))

    def when_rested(self, save: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """``save``, but where the last one was not long enough ago for what it cost."""

        async def save_or_rest() -> None:
            if self._monotonic() >= self._rests_until_seconds:
                await save()

        return save_or_rest

    async def last(self, save: Callable[[], Awaitable[None]]) -> None:
        """The last one, rested or not, and the end of the thread. Raises nothing."""
        try:
            await save()
        except Exception as error:
            log.error("last_checkpoint_not_written", why=f"{type(error).__name__}: {error}")
        self._thread.shutdown(wait=False)

    def _shown_id(self) -> int:
        """In the watch's thread. What came since the last time may not all have been shown yet."""
        shown_id, self._newest_id = self._newest_id, self._events.newest_id()
        return shown_id

    async def _aside(self, function: Callable[[], Result]) -> Result:
        """Runs ``function`` in the thread that writes."""
        loop = asyncio.get_running_loop()
        working = loop.run_in_executor(self._thread, self._measured(function))
        self._working = working
        return await asyncio.shield(working)

    def _measured(self, function: Callable[[], Result]) -> Callable[[], Result]:
        def run() -> Result:
            before_seconds = self._cpu()
            try:
                return function()
            finally:
                self.cpu_seconds += self._cpu() - before_seconds

        return run


class Words:
    """The turns of a watch as JSON, each made as it comes: as objects, all were much larger."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, ...], list[bytes]] = {}

    def add(self, place: tuple[str, ...], piece: object) -> None:
        """Takes one turn."""
        self._pieces.setdefault(place, []).append(as_json(piece))

    def text(self) -> bytes:
        """What ``put_together`` would give, as JSON."""
        whole: dict[str, Any] = {}
        for place, pieces in self._pieces.items():
            inner = whole
            for name in place[:-1]:
                inner = inner.setdefault(name, {})
            inner[place[-1]] = pieces[0] if len(pieces) == 1 else _joined(pieces)
        return _text(whole)


def _joined(pieces: list[bytes]) -> bytes:
    """Objects as one object, lists as one list."""
    filled = b",".join(one[1:-1] for one in pieces if len(one) > 2)
    return pieces[0][:1] + filled + pieces[0][-1:]


def _text(tree: dict[str, Any]) -> bytes:
    parts = (
        as_json(name) + b":" + (_text(one) if isinstance(one, dict) else one)
        for name, one in tree.items()
    )
    return b"{" + b",".join(parts) + b"}"


def save(directory: Path, watch: Watch, now_ns: int, shown_id: int | None = None) -> None:
    """Writes the checkpoint of a watch that nobody tells anything meanwhile."""
    words = Words()
    for turn in watch.dump_turns():
        words.add(*turn)
    engine = watch.features
    features = engine.take(Room(engine.size_bytes()))
    write(directory, Writer(), features, words, now_ns, shown_id)


def write(
    directory: Path,
    writer: Writer,
    features: Picture,
    words: Words,
    time_ns: int,
    shown_id: int | None,
) -> None:
    """Writes what was taken: each file whole or not at all, the features first.

    A crash between the two leaves older words about newer features; the stretch that is
    read again is then longer, and nothing else.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / FEATURES_FILE, lambda file: writer.write(features, file))
    head = as_json({"format": 1, "time_ns": time_ns, "shown_id": shown_id})
    text = head[:-1] + b',"watch":' + words.text() + b"}"
    _write(directory / WATCH_FILE, lambda file: file.write(text))


def _write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    fresh = path.with_name(path.name + ".new")
    try:
        with fresh.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)  # on a full disk, half a file would keep it full
        raise
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
