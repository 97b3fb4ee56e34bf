"""Sends alerts to one URL as JSON: in order, under a deadline, again after a failure.

Nothing waits for it. The queue is bounded: when it is full the oldest message is dropped and
counted. The URL is a secret (it often carries a token): it comes from a file and never
appears in a log or an error.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import structlog

_LOG = structlog.get_logger("tocsin.alerts")
_URL_LIMIT_BYTES = 4096

Message = Mapping[str, Any]


class WebhookError(Exception):
    """The webhook cannot be used as configured. Never holds the URL."""


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """How to send. A message that nobody took for ``give_up_seconds`` is dropped."""

    deadline_seconds: float = 10.0
    first_wait_seconds: float = 1.0
    longest_wait_seconds: float = 300.0
    give_up_seconds: float = 86_400.0
    queue_limit: int = 1000


def read_url(file: Path) -> str:
    """The URL in ``file``: one line, http or https. Raises WebhookError without quoting it."""
    try:
        with file.open("rb") as handle:
            raw = handle.read(_URL_LIMIT_BYTES + 1)
        url = raw.decode("ascii").strip()
    except OSError as error:
        raise WebhookError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise WebhookError(f"{file} holds no URL") from None
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        whole = False
    if not whole or len(raw) > _URL_LIMIT_BYTES or any(c.isspace() for c in url):
        raise WebhookError(f"{file} must hold one http:// or https:// URL and nothing else")
    return url


class Webhook:
    """A bounded queue before one URL. ``offer`` from any thread; ``run`` in the event loop.

    ``on_settled`` is called after a message was taken or given up, so that the queue can be
    kept across a restart. ``wait`` and ``monotonic`` are handed in by tests.
    """

    def __init__(
        self,
        url: str,
        options: WebhookOptions | None = None,
        *,
        monotonic: Callable[[], float],
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_settled: Callable[[], None] = lambda: None,
        rng: random.Random | None = None,
    ) -> None:
        self._url = url
        self._options = options or WebhookOptions()
        self._monotonic = monotonic
        self._wait = wait
        self._rng = rng or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._queue: deque[tuple[Message, float]] = deque()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._something = asyncio.Event()
        self.on_settled = on_settled
        self.sent = 0
        self.dropped = 0
        self.failures = 0  # in a row
        self.trouble = ""

    def offer(self, message: Message) -> None:
        """Puts a message into the queue. Never waits."""
        with self._lock:
            if len(self._queue) >= self._options.queue_limit:
                self._queue.popleft()
                self.dropped += 1
            self._queue.append((message, self._monotonic()))
            loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._something.set)

    def restore(self, messages: Iterable[Message]) -> None:
        """Takes back what an earlier run had not delivered."""
        for message in messages:
            self.offer(message)

    def pending(self) -> list[Message]:
        """What is not delivered yet, oldest first."""
        with self._lock:
            return [message for message, _ in self._queue]

    async def run(self) -> None:
        """Delivers until it is cancelled."""
        self._loop = asyncio.get_running_loop()
        timeout = aiohttp.ClientTimeout(total=self._options.deadline_seconds)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                self._something.clear()
                with self._lock:
                    first = self._queue[0] if self._queue else None
                if first is None:
                    await self._something.wait()
                    continue
                await self._deliver(session, *first)

    async def _deliver(
        self, session: aiohttp.ClientSession, message: Message, offered_seconds: float
    ) -> None:
        trouble, again, pause_seconds = await self._post(session, message)
        if not trouble:
            self.sent += 1
            self.failures = 0
            self.trouble = ""
            await self._settle(message)
            return
        self.failures += 1
        if trouble != self.trouble:
            _LOG.warning("webhook_failed", trouble=trouble, queued=len(self._queue))
        self.trouble = trouble
        age_seconds = self._monotonic() - offered_seconds
        if not again or age_seconds > self._options.give_up_seconds:
            self.dropped += 1
            _LOG.error("webhook_gave_up", trouble=trouble, alert=message.get("key"))
            await self._settle(message)
            return
        options = self._options
        backed_off = options.first_wait_seconds * 2.0 ** min(self.failures - 1, 30)
        pause = max(pause_seconds, min(backed_off, options.longest_wait_seconds))
        pause = min(pause, options.longest_wait_seconds) * (0.75 + 0.5 * self._rng.random())
        await self._wait(pause)

    async def _settle(self, message: Message) -> None:
        with self._lock:
            # offer() may have dropped it already to make room.
            if self._queue and self._queue[0][0] is message:
                self._queue.popleft()
        await asyncio.to_thread(self.on_settled)

    async def _post(
        self, session: aiohttp.ClientSession, message: Message
    ) -> tuple[str, bool, float]:
        """(what went wrong or "", whether to try again, how long the other side asks to wait)."""
        try:
            # Redirects are not followed: an alert goes where the operator sent it.
            async with session.post(self._url, json=message, allow_redirects=False) as answer:
                if answer.status < 300:
                    return "", False, 0.0
                again = answer.status in (408, 425, 429) or answer.status >= 500
                return f"HTTP {answer.status}", again, _seconds(answer.headers.get("Retry-After"))
        except TimeoutError:
            return "no answer in time", True, 0.0
        except (aiohttp.ClientError, OSError) as error:
            # The error's own text may quote the URL.
            return type(error).__name__, True, 0.0


def _seconds(header: str | None) -> float:
    """Retry-After in seconds; a date or nonsense counts as nothing."""
    return float(header) if header and header.isascii() and header.isdigit() else 0.0
