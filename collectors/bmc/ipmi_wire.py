"""The way of packets to one BMC and back: a UDP socket on the event loop.

Written for thousands of BMCs in one thread. A packet that comes is handed over at once, in the
call that read it: no future, no timer and no switch of tasks per packet, which together cost
more than the packet's keys and contents (see docs/figures-fabric-bmc.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from collectors.bmc import ipmi_faults as words

PACKET_LIMIT_BYTES = 1024


class NoWay(Exception):
    """The BMC's name is not known, or no packet can be sent there."""


class Wire:
    """One socket. ``take`` is called with each packet, or with None when none came in time.

    What comes while nobody waits (``take`` is None) is let fall: answers have numbers, and a late
    one is of no use.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
        self.take: Callable[[bytes | None], None] | None = None
        self.refusal = ""
        self._loop = loop
        self._socket = connection
        self._end = 0.0
        self._timer: asyncio.TimerHandle | None = None
        loop.add_reader(connection.fileno(), self._readable)

    @classmethod
    async def open(cls, address: str, port: int) -> Wire:
        """A wire to ``address``; NoWay with words where there is none."""
        loop = asyncio.get_running_loop()
        try:
            try:
                # An address is turned at once; only for a name a thread waits for its server.
                found = socket.getaddrinfo(
                    address, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
                )
            except socket.gaierror:
                found = await loop.getaddrinfo(address, port, type=socket.SOCK_DGRAM)
        except (socket.gaierror, UnicodeError) as error:
            raise NoWay(f"the BMC's name {address} is not known") from error
        family, kind, protocol, _, place = found[0]
        connection = None
        try:
            connection = socket.socket(family, kind, protocol)
            connection.setblocking(False)
            connection.connect(place)
        except OSError as error:
            if connection is not None:
                connection.close()
            said = error.strerror or str(error)
            raise NoWay(f"the BMC cannot be reached: {said}") from error
        return cls(loop, connection)

    def send(self, packet: bytes) -> None:
        """Sends one packet. One that cannot be sent is lost, as packets are: it is sent again."""
        try:
            self._socket.send(packet)
        except BlockingIOError:
            pass
        except OSError as error:
            self._refused(error)

    def expect(self, wait_seconds: float) -> None:
        """``take`` is called with None when this time has passed, unless it is set anew.

        The timer is left as it is and looks, when it rings, whether the time has come.
        """
        self._end = self._loop.time() + wait_seconds
        timer = self._timer
        if timer is None:
            self._timer = self._loop.call_at(self._end, self._rings)
        elif timer.when() > self._end:
            timer.cancel()
            self._timer = self._loop.call_at(self._end, self._rings)

    async def get(self, wait_seconds: float) -> bytes | None:
        """The next packet, or None when none comes in time."""
        if wait_seconds <= 0:
            return None
        future: asyncio.Future[bytes | None] = self._loop.create_future()

        def taken(packet: bytes | None) -> None:
            if not future.done():
                future.set_result(packet)

        self.take = taken
        self.expect(wait_seconds)
        try:
            return await future
        finally:
            self.take = None

    def close(self) -> None:
        """Closes the socket. May be called twice."""
        self.take = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket.fileno() >= 0:
            with contextlib.suppress(RuntimeError):  # the loop may be closed already
                self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    # ---- inside ----------------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            packet = self._socket.recv(PACKET_LIMIT_BYTES + 1)
        except BlockingIOError:
            return
        except OSError as error:
            self._refused(error)
            return
        if self.take is not None and len(packet) <= PACKET_LIMIT_BYTES:
            self.take(packet)

    def _refused(self, error: OSError) -> None:
        # A refused port is known at once; the request is sent again all the same, for the BMC
        # may be starting.
        self.refusal = f"{words.NO_ANSWER}: {(error.strerror or str(error)).lower()}"

    def _rings(self) -> None:
        self._timer = None
        if self.take is None:
            return
        if self._loop.time() < self._end:
            self._timer = self._loop.call_at(self._end, self._rings)
        else:
            self.take(None)
