"""Talks to one BMC over UDP: opens a session, sends one request at a time, closes the session.

BMCs are small: never is a second request sent before the first is answered or given up. A lost
packet is sent again after ``timeout_seconds``, ``tries`` times in all; then the BMC is said not
to answer. Every way a session can fail ends in :class:`BmcError` with words of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

from collectors import ipmi_faults as words
from collectors.ipmi_aes import NoCipher
from collectors.ipmi_packets import (
    NO_SUITE,
    OPEN_RESPONSE,
    RAKP2,
    RAKP4,
    STATUS,
    SUITES,
    BadPacket,
    Handshake,
    Session,
    open_plain,
)

_Take = Callable[[bytes], int]

APP, STORAGE = 0x06, 0x0A
CLOSE_SESSION = 0x3C
SET_PRIVILEGE = 0x3B

# Completion codes, IPMI 2.0 table 5-2.
COMPLETION = {
    0xC0: "node busy",
    0xC1: "invalid command",
    0xC3: "timeout inside the BMC",
    0xC5: "the reservation was cancelled",
    0xC7: "wrong length of data",
    0xC9: "parameter out of range",
    0xCA: "cannot return that many bytes",
    0xCB: "no such sensor, record or data",
    0xCC: "invalid data field",
    0xCE: "the answer could not be given",
    0xD3: "the destination is not there",
    0xD4: "insufficient privilege",
    0xD5: "not possible in the present state",
    0xFF: "unspecified error",
}
BUSY_CODES = frozenset({0xC0, 0xC3})


class BmcError(Exception):
    """The BMC could not be read. ``kind`` is ``login``, ``silent``, ``cut`` or ``refused``."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class Refused(BmcError):
    """One command was answered with an error; the session goes on. ``code`` says which."""

    def __init__(self, code: int) -> None:
        said = COMPLETION.get(code, f"completion code 0x{code:02x}")
        super().__init__(f"the BMC refuses a command: {said}", "refused")
        self.code = code


@dataclass(frozen=True, slots=True)
class Login:
    """How to log in. Bytes as the BMC holds them; never printed."""

    user: bytes
    password: bytes
    key: bytes = b""
    privilege: int = 2

    def __repr__(self) -> str:
        return "Login(...)"


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one answer is waited for, how often a request is sent, and how it grows."""

    timeout_seconds: float = 1.0
    tries: int = 4
    growth: float = 1.5


class Lan:
    """One BMC's session. Not for use by two tasks at once."""

    def __init__(self, address: str, port: int, login: Login, timing: Timing | None = None) -> None:
        self.address = address
        self.port = port
        self.suite = 0  # the suite that worked, tried first next time
        self.answers = 0  # how many answers this session has had
        self._login = login
        self._timing = timing or Timing()
        self._session: Session | None = None
        self._transport: asyncio.DatagramTransport | None = None
        self._inbox: _Inbox | None = None

    @property
    def is_open(self) -> bool:
        """Whether a session is open, as far as we know."""
        return self._session is not None

    async def open(self, suites: tuple[int, ...] = (17, 3)) -> None:
        """Opens a session with the first cipher suite that the BMC offers."""
        await self.drop()
        self.answers = 0
        await self._connect()
        order = sorted(suites, key=lambda number: number != self.suite)
        try:
            self.suite = await self._shake_any(order)
            if self._login.privilege > 2:
                await self.call(APP, SET_PRIVILEGE, bytes([self._login.privilege]))
        except NoCipher as error:
            await self.drop()
            raise BmcError(str(error), "refused") from error
        except BaseException:
            await self.drop()
            raise

    async def call(self, netfn: int, command: int, data: bytes = b"", lun: int = 0) -> bytes:
        """One request; the data of its answer. Refused when the BMC answers with an error."""
        session, inbox = self._session, self._inbox
        if session is None or inbox is None:
            raise BmcError("no session is open", "silent")
        wait = self._timing.timeout_seconds
        busy = 0
        for _ in range(self._timing.tries):
            number, packet = session.seal(netfn, command, data, lun)
            inbox.send(packet)
            answer = await self._answer(session, inbox, number, command, wait)
            wait *= self._timing.growth
            if answer is None:
                continue
            self.answers += 1
            code, content = answer
            if code in BUSY_CODES and busy < 2:
                busy += 1
                await asyncio.sleep(0.1 * busy)
                continue
            if code:
                raise Refused(code)
            return content
        await self.drop(silent=True)
        if self.answers:
            raise BmcError(f"{words.HALF_DEAD} after {self.answers} answers", "cut")
        raise BmcError(words.NO_ANSWER, "silent")

    async def close(self) -> None:
        """Closes the session at the BMC, which has few; waits briefly for its word."""
        session, inbox = self._session, self._inbox
        if session is not None and inbox is not None:
            number, packet = session.seal(APP, CLOSE_SESSION, struct.pack("<I", session.bmc_id))
            with contextlib.suppress(OSError, BadPacket):
                inbox.send(packet)
                await self._answer(session, inbox, number, CLOSE_SESSION, 0.3)
        await self.drop(silent=True)

    async def drop(self, silent: bool = False) -> None:
        """Forgets session and socket; unless ``silent`` or none is open the BMC is told."""
        session, self._session = self._session, None
        transport, self._transport = self._transport, None
        inbox, self._inbox = self._inbox, None
        if session is not None:
            if not silent and inbox is not None:
                _, packet = session.seal(APP, CLOSE_SESSION, struct.pack("<I", session.bmc_id))
                with contextlib.suppress(OSError):
                    inbox.send(packet)
            session.close()
        if transport is not None:
            transport.close()

    # ---- inside ----------------------------------------------------------------------------

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._transport, self._inbox = await loop.create_datagram_endpoint(
                _Inbox, remote_addr=(self.address, self.port)
            )
        except (socket.gaierror, UnicodeError) as error:
            raise BmcError(f"the BMC's name {self.address} is not known", "silent") from error
        except OSError as error:
            said = error.strerror or str(error)
            raise BmcError(f"the BMC cannot be reached: {said}", "silent") from error

    async def _shake_any(self, order: list[int]) -> int:
        """The number of the first suite with which a session could be opened."""
        failure = BmcError(words.NO_CIPHER, "login")
        for number in order:
            try:
                if await self._shake(number):
                    return number
            except BmcError as error:
                # Some firmware takes a suite and then falls silent: the next one may do.
                if error.kind != "cut":
                    raise
                failure = error
        raise failure

    async def _shake(self, number: int) -> bool:
        """Opens the session with one suite; False when the BMC does not offer it."""
        login = self._login
        shake = Handshake(SUITES[number], login.user, login.password, login.privilege, login.key)
        status = await self._ask(shake.open_request(), OPEN_RESPONSE, shake.take_open)
        if status in NO_SUITE:
            return False
        _check(status)
        _check(await self._ask(shake.rakp1(), RAKP2, shake.take_rakp2))
        status = await self._ask(shake.rakp3(), RAKP4, shake.take_rakp4)
        if status == -1:
            raise BmcError("the BMC has another BMC key (K_G) than we", "login")
        _check(status)
        self._session = shake.session()
        return True

    async def _ask(self, packet: bytes, kind: int, take: _Take) -> int:
        """Sends a message of the handshake until its answer comes; the answer's status."""
        inbox = self._inbox
        assert inbox is not None
        loop = asyncio.get_running_loop()
        wait = self._timing.timeout_seconds
        for _ in range(self._timing.tries):
            inbox.send(packet)
            end = loop.time() + wait
            wait *= self._timing.growth
            while True:
                answer = await inbox.get(end - loop.time())
                if answer is None:
                    break
                try:
                    found, payload = open_plain(answer)
                    if found == kind:
                        self.answers += 1
                        return take(payload)
                except BadPacket:
                    continue
        if self.answers:
            raise BmcError(words.HALF_DEAD + " while the session was opened", "cut")
        raise BmcError(inbox.refusal or words.NO_ANSWER, "silent")

    async def _answer(
        self, session: Session, inbox: _Inbox, number: int, command: int, wait: float
    ) -> tuple[int, bytes] | None:
        """Completion code and data of the answer to request ``number``; None after ``wait``."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        while True:
            packet = await inbox.get(end - loop.time())
            if packet is None:
                return None
            try:
                found, said, code, content = session.open(packet)
            except BadPacket:
                continue
            if found == number and said == command:
                return code, content


def _check(status: int) -> None:
    """Raises what a status of the handshake means."""
    if status == 0:
        return
    if status in (-1, 0x0F):
        raise BmcError(words.WRONG_PASSWORD, "login")
    if status in (0x0D, 0x0C):
        raise BmcError(words.WRONG_USER, "login")
    if status in (0x08, 0x09):
        raise BmcError(words.NO_PRIVILEGE, "login")
    if status in (0x01, 0x0A):
        raise BmcError(words.BUSY, "busy")
    said = STATUS.get(status, f"status 0x{status:02x}")
    raise BmcError(f"the BMC refuses the session: {said}", "login")


class _Inbox(asyncio.DatagramProtocol):
    """The packets that came, one waiter at most."""

    LIMIT = 64

    def __init__(self) -> None:
        self.refusal = ""
        self._transport: asyncio.DatagramTransport | None = None
        self._packets: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def datagram_received(self, data: bytes, addr: object) -> None:
        if len(self._packets) < self.LIMIT and len(data) <= 1024:
            self._packets.append(data)
        self._wake()

    def error_received(self, exc: Exception) -> None:
        # A refused port is known at once; the request is tried again all the same, for the
        # BMC may be starting.
        said = getattr(exc, "strerror", None) or str(exc)
        self.refusal = f"{words.NO_ANSWER}: {said.lower()}"

    def connection_lost(self, exc: Exception | None) -> None:
        self._wake()

    def send(self, packet: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(packet)

    async def get(self, wait: float) -> bytes | None:
        """The next packet, or None when none comes within ``wait`` seconds."""
        if self._packets:
            return self._packets.pop(0)
        if wait <= 0:
            return None
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(wait, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None
        return self._packets.pop(0) if self._packets else None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
