"""Who may hold a connection open: counted from the moment it is accepted, before any token.

A connection costs a file, and files are few: whoever has no token could take them all, or hold
each by saying one letter a minute. So there may be so many in all, so many of one address (of
one /64 where it is IPv6), and what a connection first has to say (TLS, then a request's
headers) must be said within a deadline. What is refused is closed at once and counted; the
journal gets a line a minute of it at most.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, cast, runtime_checkable

from pydantic import Field

from daemon.settings import Section

log = logging.getLogger("tocsin.door")

# Files that the head needs beside its connections: the store, Slurm's commands, its sources.
RESERVED_FILES = 512
_LOG_SECONDS = 60.0
_END_OF_HEADERS = b"\r\n\r\n"


class DoorOptions(Section):
    """The bounds of connections to one listener. An agent holds two at the most."""

    connections_limit: int = Field(default=40_000, ge=1)
    connections_per_address_limit: int = Field(default=256, ge=1)
    headers_deadline_seconds: float = Field(default=15.0, gt=0)


@dataclass
class Door:
    """Counts the connections of one listener."""

    options: DoorOptions = field(default_factory=DoorOptions)
    name: str = ""
    open: int = 0
    refused: int = 0
    late: int = 0

    def __post_init__(self) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Half of what the system allows at the least: better few than none.
        self.limit = min(self.options.connections_limit, max(files - RESERVED_FILES, files // 2, 1))
        self.shaking: set[asyncio.Task[None]] = set()
        self._of_address: Counter[str] = Counter()
        self._logged_seconds = float("-inf")

    def enter(self, address: str) -> bool:
        """Whether one more connection of ``address`` may come in; then it is counted."""
        if self.open >= self.limit:
            return self._refuse(f"{self.open} connections are open already")
        if self._of_address[address] >= self.options.connections_per_address_limit:
            return self._refuse(f"{address} has {self._of_address[address]} open already")
        self.open += 1
        self._of_address[address] += 1
        return True

    def leave(self, address: str) -> None:
        """A connection that had entered is gone."""
        self.open -= 1
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]

    def close(self) -> None:
        """Ends handshakes under way; what is open beyond that its own server ends."""
        for task in self.shaking:
            task.cancel()

    def _refuse(self, why: str) -> bool:
        self.refused += 1
        now_seconds = asyncio.get_running_loop().time()
        if now_seconds - self._logged_seconds >= _LOG_SECONDS:
            self._logged_seconds = now_seconds
            log.warning("%s: connection refused: %s (%d so far)", self.name, why, self.refused)
        return False


def address_of(peer: object) -> str:
    """What counts as one address: an IPv4 address, or the /64 of an IPv6 one."""
    host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(parsed, ipaddress.IPv4Address):
        return host
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


@runtime_checkable
class _Buffered(Protocol):
    """asyncio.BufferedProtocol as far as it is asked here; uvloop's own TLS is none by name."""

    def get_buffer(self, size: int, /) -> memoryview: ...

    def buffer_updated(self, count: int, /) -> None: ...


class Guarded(asyncio.Protocol):
    """Stands before the protocol of one connection; passes on all that it may hear."""

    def __init__(
        self,
        door: Door,
        make: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._door = door
        self._make = make
        self._tls = tls
        self._address = ""
        self._entered = False
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._tail = b""
        self._early = b""
        self._sealed = tls is not None  # what comes now is for TLS to read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Counts the connection, or closes it."""
        self._transport = cast(asyncio.Transport, transport)
        self._address = address_of(transport.get_extra_info("peername"))
        if not self._door.enter(self._address):
            self._transport.abort()
            return
        self._entered = True
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(
            self._door.options.headers_deadline_seconds, self._too_late
        )
        if self._tls is None:
            self._begin(self._transport)
        else:
            self._transport.pause_reading()  # uvloop begins to read all the same
            task = loop.create_task(self._shake_hands(self._transport, self._tls))
            self._door.shaking.add(task)
            task.add_done_callback(self._door.shaking.discard)

    async def _shake_hands(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """TLS only now, so that a connection counts while its handshake lasts."""
        if transport.is_closing():  # gone already, and :meth:`connection_lost` is told
            return
        loop = asyncio.get_running_loop()
        securing = loop.create_task(
            loop.start_tls(
                transport,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=self._door.options.headers_deadline_seconds,
            )
        )
        try:
            await asyncio.sleep(0)  # TLS stands behind the transport, which reads nothing now
            loop.call_soon(self._replay, transport)
            secured = await securing
        except (OSError, asyncio.CancelledError):
            securing.cancel()
            secured = None  # not our certificate's friend, or gone again
        # One that was gone before TLS began has no error: nobody would count it as gone.
        if secured is None or secured.is_closing():
            transport.abort()
            self._gone()
        elif self._entered:
            self._transport = secured
            self._begin(secured)

    def _replay(self, transport: asyncio.Transport) -> None:
        """Tells TLS what came before it was there to read: its first words, under uvloop."""
        early, self._early, self._sealed = self._early, b"", False
        behind = transport.get_protocol()
        while early and isinstance(behind, _Buffered):
            buffer = behind.get_buffer(len(early))
            count = min(len(early), len(buffer))
            buffer[:count] = early[:count]
            behind.buffer_updated(count)
            early = early[count:]

    def _begin(self, transport: asyncio.Transport) -> None:
        self._inner = cast(asyncio.Protocol, self._make())
        self._inner.connection_made(transport)
        if self._early:
            self._inner.data_received(self._early)
            self._early = b""

    def _too_late(self) -> None:
        self._door.late += 1
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Passes bytes on; stops the clock when the first request's headers are complete."""
        if self._deadline is not None and not self._sealed:
            if _END_OF_HEADERS in self._tail + data:
                self._deadline.cancel()
                self._deadline = None
            self._tail = (self._tail + data)[-3:]
        if self._inner is not None:
            self._inner.data_received(data)
        elif self._entered:
            self._early += data  # came before the handshake, or with its end

    def eof_received(self) -> bool | None:
        """Passes the end on."""
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        """Passes on that the other side is slow."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Passes on that it goes on."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Counts the connection as gone."""
        self._gone()
        if self._inner is not None:
            self._inner.connection_lost(exc)
            self._inner = None

    def _gone(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._entered:
            self._entered = False
            self._door.leave(self._address)
