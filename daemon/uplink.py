"""Sends the batches of a spool to the head, one after the other, until it has them.

What the head answers decides: 2xx, the batch is done; 400, the lines that it names are
set aside in a quarantine file and the rest counts as done; 413, the batch is sent in
halves; 401, 403, 404, 429, 5xx and no answer at all, the batch waits and is sent again
after a pause with full jitter (and not before Retry-After), so that ten thousand agents
whose head comes back do not call at once.

Source of the pauses: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from daemon.agent_options import UplinkOptions
from daemon.spool import Entry, Spool

log = logging.getLogger("tocsin.uplink")

BATCH_HEADER = "X-Tocsin-Batch"
WRITE_PATH = "/api/v2/write"
_ANSWER_LIMIT_BYTES = 1024 * 1024
_BACKOFF_FIRST_SECONDS = 0.5
_SECRET_LIMIT_BYTES = 4096


class TokenError(Exception):
    """The token file cannot be used. The text says what to do; it never holds the token."""


def read_token(file: Path | None) -> str:
    """The token in ``file`` (first line), or the empty string when no file is named."""
    if file is None:
        return ""
    try:
        with open(file, "rb") as handle:
            raw = handle.read(_SECRET_LIMIT_BYTES)
        token = raw.decode("ascii").split("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "not ASCII text"
        raise TokenError(f"token file {file}: {what}") from error
    if not token or not token.isprintable() or " " in token:
        raise TokenError(f"token file {file}: holds no token on its first line")
    return token


def client_tls(options: UplinkOptions) -> ssl.SSLContext | bool:
    """How the head's certificate is checked: the system's authorities, or those of a file."""
    if not options.head_url.startswith("https:"):
        return True
    context = ssl.create_default_context(cafile=options.ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.certificate_file is not None:
        context.load_cert_chain(options.certificate_file, options.key_file)
    return context


@dataclass(slots=True)
class UplinkCounts:
    """What became of the requests since the start of the process."""

    requests: int = 0
    failures: int = 0
    quarantined_lines: int = 0
    fault: str = ""
    last_good_seconds: float | None = None


@dataclass(slots=True)
class _Answer:
    status: int
    body: bytes = b""
    retry_after_seconds: float = 0.0


@dataclass
class Uplink:
    """Drains one spool. Two of them share a session: one for urgent batches, one for the rest."""

    spool: Spool
    session: aiohttp.ClientSession
    options: UplinkOptions
    quarantine: Path
    now_ns: Callable[[], int]
    backoff_limit_seconds: float
    pause_seconds: float = 0.0
    rng: random.Random = field(default_factory=random.Random)
    counts: UplinkCounts = field(default_factory=UplinkCounts)
    tls: ssl.SSLContext | bool = True
    on_done: Callable[[Entry], None] = lambda entry: None

    def __post_init__(self) -> None:
        self._wake = asyncio.Event()
        self._attempt = 0

    def wake(self) -> None:
        """Says that a batch waits. Does not shorten a pause that the head asked for."""
        self._wake.set()

    async def run(self) -> None:
        """Sends for ever; cancel it to stop. A batch being sent then stays in the spool."""
        while True:
            self._wake.clear()
            entry = await asyncio.to_thread(self.spool.oldest, self.now_ns())
            if entry is None:
                await self._wake.wait()
                continue
            delay_seconds = await self.send(entry)
            if delay_seconds > 0:
                await asyncio.sleep(delay_seconds)

    async def drain(self) -> bool:
        """Sends what waits until the spool is empty or a batch fails; True when empty."""
        while (entry := await asyncio.to_thread(self.spool.oldest, self.now_ns())) is not None:
            if not await self._deliver(entry):
                return False
        return True

    async def send(self, entry: Entry) -> float:
        """Sends one batch; the seconds to wait before the next attempt or batch."""
        if await self._deliver(entry):
            return self.pause_seconds
        ceiling = min(self.backoff_limit_seconds, _BACKOFF_FIRST_SECONDS * 2.0**self._attempt)
        self._attempt = min(self._attempt + 1, 30)
        asked = min(self._asked_seconds, 10 * self.backoff_limit_seconds)
        return asked + self.rng.uniform(0, max(ceiling, asked))

    _asked_seconds = 0.0

    async def _deliver(self, entry: Entry) -> bool:
        answer = await self._post(entry.body, entry.key)
        settled = await self._settle(answer, entry.body)
        if not settled:
            self.counts.failures += 1
            self._asked_seconds = answer.retry_after_seconds
            return False
        self._attempt = 0
        self._asked_seconds = 0.0
        self.counts.fault = ""
        self.counts.last_good_seconds = asyncio.get_running_loop().time()
        await asyncio.to_thread(self.spool.done, entry)
        self.on_done(entry)
        return True

    async def _settle(self, answer: _Answer, body: bytes) -> bool:
        """Whether nothing of ``body`` need be sent again."""
        if 200 <= answer.status < 300:
            return True
        if answer.status == 400:
            await asyncio.to_thread(self._set_aside, answer, body)
            return True
        if answer.status == 413:
            return await self._send_halves(body, answer)
        self.counts.fault = self._fault(answer)
        log.warning("%s", self.counts.fault)
        return False

    def _fault(self, answer: _Answer) -> str:
        where = self.options.head_url
        detail = answer.body.decode("utf-8", "replace").strip()[:200]
        if answer.status == 0:
            return f"head {where} does not answer: {detail}"
        if answer.status in (401, 403):
            return f"head {where} refuses our token ({answer.status}): {detail}"
        return f"head {where} answers {answer.status}: {detail}"

    async def _send_halves(self, body: bytes, answer: _Answer) -> bool:
        """A body that is too large in two; a single line that is too large is set aside."""
        lines = gzip.decompress(body).splitlines(keepends=True)
        if len(lines) < 2:
            await asyncio.to_thread(self._set_aside, answer, body)
            return True
        middle = len(lines) // 2
        for part in (lines[:middle], lines[middle:]):
            half = gzip.compress(b"".join(part), 1)
            # Without a key: the store keeps equal points once, the key names the whole.
            if not await self._settle(await self._post(half, ""), half):
                return False
        return True

    async def _post(self, body: bytes, key: str) -> _Answer:
        self.counts.requests += 1
        headers = {"Content-Encoding": "gzip", "Content-Type": "text/plain; charset=utf-8"}
        try:
            # Read each time: a token that was renewed needs no restart.
            token = await asyncio.to_thread(read_token, self.options.token_file)
        except TokenError as error:
            return _Answer(401, str(error).encode())
        if token:
            headers["Authorization"] = f"Token {token}"
        if key:
            headers[BATCH_HEADER] = key
        try:
            async with self.session.post(
                self.options.head_url + WRITE_PATH,
                params={"org": "tocsin", "bucket": "tocsin", "precision": "ns"},
                data=body,
                headers=headers,
                ssl=self.tls,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=self.options.request_deadline_seconds),
            ) as response:
                answer = await response.content.read(_ANSWER_LIMIT_BYTES)
                return _Answer(
                    response.status, answer, _seconds(response.headers.get("Retry-After", ""))
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return _Answer(0, (str(error) or type(error).__name__).encode())

    def _set_aside(self, answer: _Answer, body: bytes) -> None:
        """Writes the refused lines, as the head names them or else all, to the quarantine."""
        lines = gzip.decompress(body).splitlines()
        named = _named_lines(answer.body)
        refused = [lines[n - 1] for n in named if 0 < n <= len(lines)] if named else lines
        self.counts.quarantined_lines += len(refused)
        reason = answer.body.decode("utf-8", "replace").replace("\n", " ")[:300]
        log.error("head refused %d lines: %s", len(refused), reason)
        text = b"".join([b"# " + reason.encode() + b"\n", *(line + b"\n" for line in refused)])
        try:
            if self.quarantine.exists():
                room = self.options.quarantine_limit_bytes - self.quarantine.stat().st_size
            else:
                room = self.options.quarantine_limit_bytes
            if len(text) <= room:
                with open(self.quarantine, "ab") as file:
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


def _seconds(text: str) -> float:
    """Retry-After in seconds; a date or nonsense counts as not said."""
    try:
        return max(0.0, min(86_400.0, float(text)))
    except ValueError:
        return 0.0
