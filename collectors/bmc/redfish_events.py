"""What a BMC tells of itself as it happens: the event stream (SSE) of its EventService.

One connection a BMC is kept open beside the polling. An entry that came by the stream is not told
again when the log is read, nor the other way round; the log stays what counts, since a stream that
breaks off loses what happens meanwhile. DMTF DSP0266, "Server-sent events"; the form of the
stream is that of the HTML standard.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from collectors.bmc.fleet import Poll
from collectors.bmc.ipmi_sel_entry import iso_time
from collectors.bmc.points import Readings
from collectors.bmc.redfish_http import Client
from collectors.bmc.redfish_logs import entries
from collectors.bmc.redfish_parts import rows, text
from collectors.events import spaced
from collectors.sample import Problem, Sample

SEEN_LIMIT = 500
DATA_LIMIT_BYTES = 1024 * 1024
LINE_LIMIT_BYTES = 256 * 1024
EVENTS_PER_TURN = 200
# What is read of one BMC's stream: a burst, and so many messages a second in the long run.
BURST_MESSAGES, MESSAGES_PER_SECOND = 60.0, 2.0
# A stream on which nothing comes for so long is opened anew: the other end may be gone.
QUIET_SECONDS = 900.0
PAUSE_SECONDS, PAUSE_MAX_SECONDS = 5.0, 600.0
_NEVER = (400, 404, 405, 406, 501)


class Heard:
    """What came by the stream and what came by the log, so that nothing is told twice."""

    def __init__(self) -> None:
        self._by_stream: dict[object, None] = {}
        self._by_log: dict[object, None] = {}

    def from_stream(self, body: Mapping[str, Any]) -> bool:
        """Takes in a record of the stream; whether the log has not told it before."""
        return _first(body, self._by_stream, self._by_log)

    def from_log(self, body: Mapping[str, Any]) -> bool:
        """Takes in an entry of a log; whether the stream has not told it before."""
        return _first(body, self._by_log, self._by_stream)


def _first(body: Mapping[str, Any], own: dict[object, None], other: dict[object, None]) -> bool:
    names = _names(body)
    own.update(dict.fromkeys(names))
    while len(own) > SEEN_LIMIT:
        del own[next(iter(own))]
    return not any(name in other for name in names)


def _names(body: Mapping[str, Any]) -> list[object]:
    """An entry's address where it has one, and what it says and when."""
    entry = body.get("LogEntry")
    address = text(entry.get("@odata.id")) if isinstance(entry, dict) else ""
    address = address or text(body.get("@odata.id"))
    found: list[object] = [address] if "/Entries/" in address else []
    stamp = iso_time(text(body.get("Created")) or text(body.get("EventTimestamp")))
    if stamp is not None:
        found.append((text(body.get("MessageId")), text(body.get("Message")), stamp // 10**9))
    return found


class EventStream:
    """Listens at one BMC until it is closed. ``tell`` is handed what has come."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        node: str,
        heard: Heard,
        tell: Callable[[Poll], None],
        now_ns: Callable[[], int],
    ) -> None:
        self._http = http
        self._node = node
        self._heard = heard
        self._tell = tell
        self._now_ns = now_ns
        self._task: asyncio.Task[None] | None = None
        self._refused = ""
        self._allowed, self._earned_at = BURST_MESSAGES, 0.0

    @property
    def open(self) -> bool:
        """Whether it listens, or waits to listen again."""
        return self._task is not None and not self._task.done()

    def start(self, client: Client, uri: str) -> None:
        """Begins to listen at ``uri``, where it does not yet and was not refused for good."""
        if uri and uri != self._refused and not self.open:
            self._task = asyncio.get_running_loop().create_task(self._listen(client, uri))

    async def close(self) -> None:
        """Ends it."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            # Whatever ended it: the session is still to be closed.
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    # ---- inside ----------------------------------------------------------------------------

    async def _listen(self, client: Client, uri: str) -> None:
        pause = PAUSE_SECONDS
        while True:
            try:
                status = await self._once(client, uri)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
                status = 0  # what is wrong with this BMC is said by the polling
            if status in _NEVER:
                self._refused = uri
                return
            pause = PAUSE_SECONDS if status == 200 else min(2 * pause, PAUSE_MAX_SECONDS)
            await asyncio.sleep(pause)

    async def _once(self, client: Client, uri: str) -> int:
        """One connection, to its end; its HTTP status."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=client.timeout_seconds, sock_read=QUIET_SECONDS
        )
        async with self._http.get(
            client.base + uri,
            headers={"Accept": "text/event-stream", **client.credentials()},
            ssl=client.tls if client.tls is not None else True,
            allow_redirects=False,
            timeout=timeout,
        ) as answer:
            kind = answer.headers.get("Content-Type", "")
            if answer.status != 200 or "event-stream" not in kind:
                return answer.status if answer.status != 200 else 406
            await self._read(answer.content)
            return 200

    async def _read(self, stream: aiohttp.StreamReader) -> None:
        held, line = bytearray(), bytearray()
        async for chunk in stream.iter_any():
            line += chunk
            while (end := line.find(b"\n")) >= 0:
                one = bytes(line[:end]).rstrip(b"\r")
                del line[: end + 1]
                if one.startswith(b"data:") and len(held) + len(one) <= DATA_LIMIT_BYTES:
                    held += one[5:].removeprefix(b" ") + b"\n"
                elif not one and held:
                    if self._admit():
                        self._event(bytes(held))
                    held.clear()
            if len(line) > LINE_LIMIT_BYTES:
                raise ValueError("a line without end")

    def _admit(self) -> bool:
        """Whether one more message is read now. One that is not comes by the log: it was not
        heard, so it counts as new there."""
        now = asyncio.get_running_loop().time()
        earned = (now - self._earned_at) * MESSAGES_PER_SECOND
        self._allowed, self._earned_at = min(BURST_MESSAGES, self._allowed + earned), now
        if self._allowed < 1.0:
            return False
        self._allowed -= 1.0
        return True

    def _event(self, raw: bytes) -> None:
        poll = told(raw, self._node, self._heard, self._now_ns())
        if poll is not None:
            self._tell(poll)


def told(raw: bytes, node: str, heard: Heard, now_ns: int) -> Poll | None:
    """What one message of the EventService says that was not told yet; None if nothing."""
    found = Readings()
    samples: list[Sample] = []
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        found.problem("an event that is no JSON", raw[:100].decode("utf-8", "replace"))
        body = None
    if isinstance(body, dict) and isinstance(body.get("Events"), list):
        for _, item in list(rows(body, "Events"))[:EVENTS_PER_TURN]:
            if heard.from_stream(item):
                samples += entries({**item, "EntryType": "Event"}, node, now_ns, found)
    problems = [Problem(f"{node}: {one.problem}", one.line) for one in found.problems]
    return Poll(list(spaced(samples)), problems) if samples or problems else None
