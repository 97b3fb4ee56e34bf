"""Gets one body of line protocol to a server, whatever the server answers.

2xx, it is done; 400, the lines that the answer names (or all) are set aside in a quarantine
file and it is done; 413, it is sent in halves; anything else, it is not done, and the pause
before the next attempt has full jitter and is not shorter than Retry-After, so that ten
thousand senders whose server comes back do not call at once.

Source of the pauses: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.sample import clip

log = logging.getLogger("tocsin.delivery")

_BACKOFF_FIRST_SECONDS = 0.5


@dataclass(slots=True)
class Answer:
    """What a server said; status 0 when it did not answer (``body`` then says why)."""

    status: int
    body: bytes = b""
    retry_after_seconds: float = 0.0


@dataclass(slots=True)
class DeliveryCounts:
    """What became of the requests since the start of the process."""

    failures: int = 0
    quarantined_lines: int = 0
    fault: str = ""
    last_good_seconds: float | None = None


@dataclass
class Delivery:
    """Sends bodies by ``post(gzipped body, key)`` to the server that people know as ``where``."""

    post: Callable[[bytes, str], Awaitable[Answer]]
    where: str
    quarantine: Path
    quarantine_limit_bytes: int
    backoff_limit_seconds: float
    rng: random.Random = field(default_factory=random.Random)
    counts: DeliveryCounts = field(default_factory=DeliveryCounts)
    _attempt: int = 0
    _last_status: int = -1

    async def send(self, body: bytes, key: str = "") -> float | None:
        """None when ``body`` is done with, else the seconds to wait before the next attempt."""
        answer = await self._settle(body, key)
        if answer is None:
            if self.counts.fault:
                log.warning("%s answers again", self.where)
            self._attempt = 0
            self._last_status = -1
            self.counts.fault = ""
            self.counts.last_good_seconds = asyncio.get_running_loop().time()
            return None
        self.counts.failures += 1
        self.counts.fault = self._fault(answer)
        if answer.status != self._last_status:
            log.warning("%s", self.counts.fault)  # once for each kind, not for each attempt
        self._last_status = answer.status
        ceiling = min(self.backoff_limit_seconds, _BACKOFF_FIRST_SECONDS * 2.0**self._attempt)
        self._attempt = min(self._attempt + 1, 30)
        asked = min(answer.retry_after_seconds, 10 * self.backoff_limit_seconds)
        return asked + self.rng.uniform(0, max(ceiling, asked))

    async def _settle(self, body: bytes, key: str) -> Answer | None:
        """None when nothing of ``body`` need be sent again, else the answer that says why."""
        answer = await self.post(body, key)
        if 200 <= answer.status < 300:
            return None
        if answer.status == 400:
            await asyncio.to_thread(self._set_aside, answer, body)
            return None
        if answer.status == 413:
            return await self._send_halves(body, answer)
        return answer

    async def _send_halves(self, body: bytes, answer: Answer) -> Answer | None:
        """A body that is too large in two; a single line that is too large is set aside."""
        lines = gzip.decompress(body).splitlines(keepends=True)
        if len(lines) < 2:
            await asyncio.to_thread(self._set_aside, answer, body)
            return None
        middle = len(lines) // 2
        for part in (lines[:middle], lines[middle:]):
            # Without a key: a store keeps equal points once, the key names the whole.
            failed = await self._settle(gzip.compress(b"".join(part), 1), "")
            if failed is not None:
                return failed
        return None

    def _fault(self, answer: Answer) -> str:
        detail = clip(answer.body.decode("utf-8", "replace"), 200)
        if answer.status == 0:
            return f"{self.where} does not answer: {detail}"
        if answer.status in (401, 403):
            return f"{self.where} refuses our token ({answer.status}): {detail}"
        return f"{self.where} answers {answer.status}: {detail}"

    def _set_aside(self, answer: Answer, body: bytes) -> None:
        """Writes the refused lines, as the answer names them or else all, to the quarantine."""
        lines = gzip.decompress(body).splitlines()
        named = _named_lines(answer.body)
        refused = [lines[n - 1] for n in named if 0 < n <= len(lines)] if named else lines
        self.counts.quarantined_lines += len(refused)
        reason = answer.body.decode("utf-8", "replace").replace("\n", " ")[:300]
        log.error("%s refused lines, of %d: %s", self.where, len(refused), reason)
        text = b"".join([b"# " + reason.encode() + b"\n", *(line + b"\n" for line in refused)])
        try:
            self.quarantine.parent.mkdir(parents=True, exist_ok=True)
            with open(self.quarantine, "ab") as file:
                if file.tell() + len(text) <= self.quarantine_limit_bytes:
                    file.write(text)
        except OSError as error:
            log.warning("quarantine %s: %s", self.quarantine, error.strerror)


def _named_lines(answer: bytes) -> list[int]:
    """The numbers of the lines that our gateway's answer names; empty for another server."""
    try:
        parsed: Any = json.loads(answer)
        return sorted({int(number) for number in parsed["refused"]})
    except (ValueError, TypeError, KeyError):
        return []


def retry_after_seconds(text: str) -> float:
    """Retry-After in seconds; a date or nonsense counts as not said."""
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return min(seconds, 86_400.0) if seconds > 0 else 0.0  # NaN is not above 0
