"""Sends the batches of the agent's spool to the head, one after the other, in order."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from daemon.agent.delivery import Answer, Delivery, DeliveryCounts, retry_after_seconds
from daemon.agent.lane import Lane
from daemon.agent.options import UplinkOptions
from daemon.agent.spool import Entry
from daemon.schedule import OwnThread

BATCH_HEADER = "X-Tocsin-Batch"
URGENT_HEADER = "X-Tocsin-Urgent"
WRITE_PATH = "/api/v2/write"
_ANSWER_LIMIT_BYTES = 1024 * 1024
_SECRET_LIMIT_BYTES = 4096
_TOKEN_DEADLINE_SECONDS = 3.0


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
    if not any(url.startswith("https:") for url in options.urls):
        return True
    context = ssl.create_default_context(cafile=options.ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.certificate_file is not None:
        context.load_cert_chain(options.certificate_file, options.key_file)
    return context


@dataclass
class Uplink:
    """Drains one lane. Two of them share a session: one for urgent batches, one for the rest."""

    lane: Lane
    session: aiohttp.ClientSession
    options: UplinkOptions
    quarantine: Path
    now_ns: Callable[[], int]
    backoff_limit_seconds: float
    pause_seconds: float = 0.0
    urgent: bool = False
    rng: random.Random = field(default_factory=random.Random)
    tls: ssl.SSLContext | bool = True

    def __post_init__(self) -> None:
        self._wake = asyncio.Event()
        self._token = ""
        self._place = 0  # among the URLs: the last one that answered
        self._reader = OwnThread("tocsin-token")
        self.lane.on_back = self._wake.set
        self.delivery = Delivery(
            self._post,
            f"head {' or '.join(self.options.urls)}",
            self.quarantine,
            self.options.quarantine_limit_bytes,
            self.backoff_limit_seconds,
            self.rng,
        )

    @property
    def counts(self) -> DeliveryCounts:
        """What became of the requests."""
        return self.delivery.counts

    def wake(self) -> None:
        """Says that a batch waits. Does not shorten a pause that the head asked for."""
        self._wake.set()

    async def run(self) -> None:
        """Sends for ever; cancel it to stop. A batch being sent then stays in the spool."""
        while True:
            self._wake.clear()
            entry = await self.lane.oldest(self.now_ns())
            if entry is None:
                await self._wake.wait()
                continue
            delay_seconds = await self._deliver(entry)
            await asyncio.sleep(self.pause_seconds if delay_seconds is None else delay_seconds)

    async def drain(self) -> bool:
        """Sends what waits until the spool is empty or a batch fails; True when empty."""
        while (entry := await self.lane.oldest(self.now_ns())) is not None:
            if await self._deliver(entry) is not None:
                return False
        return True

    async def _deliver(self, entry: Entry) -> float | None:
        delay_seconds = await self.delivery.send(entry.body, entry.key)
        if delay_seconds is None:
            await self.lane.done(entry)
        return delay_seconds

    async def _read_token(self) -> str:
        """Read each time: a token that was renewed needs no restart. A disk that hangs does
        not matter: the last token is used."""
        if self._reader.busy:
            return self._token
        future = self._reader.submit(lambda: read_token(self.options.token_file))
        done, _ = await asyncio.wait({future}, timeout=_TOKEN_DEADLINE_SECONDS)
        if done:
            self._token = future.result()
        else:
            future.add_done_callback(lambda late: late.cancelled() or late.exception())
        return self._token

    async def _post(self, body: bytes, key: str) -> Answer:
        """Sends to where the head was last; where nobody answers, the next try goes elsewhere."""
        urls = self.options.urls
        answer = await self._post_to(urls[self._place % len(urls)], body, key)
        if answer.status in (0, 503):
            self._place = (self._place + 1) % len(urls)
        return answer

    async def _post_to(self, url: str, body: bytes, key: str) -> Answer:
        headers = {"Content-Encoding": "gzip", "Content-Type": "text/plain; charset=utf-8"}
        try:
            token = await self._read_token()
        except TokenError as error:
            return Answer(401, str(error).encode())
        if token:
            headers["Authorization"] = f"Token {token}"
        if key:
            headers[BATCH_HEADER] = key
        if self.urgent:
            headers[URGENT_HEADER] = "1"  # the head has room of its own for these
        try:
            async with self.session.post(
                url + WRITE_PATH,
                params={"org": "tocsin", "bucket": "tocsin", "precision": "ns"},
                data=body,
                headers=headers,
                ssl=self.tls,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=self.options.request_deadline_seconds),
            ) as response:
                answer = await response.content.read(_ANSWER_LIMIT_BYTES)
                asked = retry_after_seconds(response.headers.get("Retry-After", ""))
                return Answer(response.status, answer, asked)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Answer(0, (str(error) or type(error).__name__).encode())
