"""Talks to one BMC over UDP: opens a session, sends one request at a time, closes the session.

BMCs are small: never is a second request sent before the first is answered or given up. A lost
packet is sent again after ``timeout_seconds``, ``tries`` times in all; then the BMC is said not
to answer. Every way a session can fail ends in :class:`BmcError` with words of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collectors.bmc import ipmi_faults as words
from collectors.bmc.ipmi_aes import NoCipher
from collectors.bmc.ipmi_packets import (
    NO_SUITE,
    OPEN_RESPONSE,
    RAKP2,
    RAKP4,
    STATUS,
    SUITES,
    BadPacket,
    Handshake,
    Session,
    capabilities_request,
    open_plain,
    speaks_2_0,
)
from collectors.bmc.ipmi_wire import NoWay, Wire

# Network function, command, data, LUN.
Request = tuple[int, int, bytes, int]
# Place of the request, completion code, data of the answer.
Take = Callable[[int, int, bytes], None]

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


# The BMC speaks, and not as we do: another program may be understood.
FOREIGN = "foreign"


class BmcError(Exception):
    """The BMC could not be read.

    ``kind`` is ``login``, ``silent``, ``cut``, ``busy``, ``refused`` or ``foreign``.
    """

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
        self._wire: Wire | None = None

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
            raise BmcError(str(error), FOREIGN) from error
        except BaseException:
            await self.drop()
            raise

    async def call(self, netfn: int, command: int, data: bytes = b"", lun: int = 0) -> bytes:
        """One request; the data of its answer. Refused when the BMC answers with an error."""
        answers: list[tuple[int, bytes]] = []
        await self.ask(
            [(netfn, command, data, lun)],
            lambda place, code, content: answers.append((code, content)),
        )
        code, content = answers[0]
        if code:
            raise Refused(code)
        return content

    async def ask(self, requests: Sequence[Request], take: Take) -> None:
        """All ``requests``, each sent when the one before is answered; ``take`` gets the answers.

        A completion code that is not 0 is an answer like another.
        """
        session, wire = self._session, self._wire
        if session is None or wire is None:
            raise BmcError("no session is open", "silent")
        if not requests:
            return
        exchange = _Exchange(session, wire, self._timing, requests, take)
        try:
            whole = await exchange.run()
        finally:
            wire.take = None
            self.answers += exchange.answers
        if whole:
            return
        await self.drop(silent=True)
        if self.answers:
            raise BmcError(f"{words.HALF_DEAD} after {self.answers} answers", "cut")
        raise BmcError(words.NO_ANSWER, "silent")

    async def close(self) -> None:
        """Closes the session at the BMC, which has few; waits briefly for its word."""
        session, wire = self._session, self._wire
        if session is not None and wire is not None:
            last = (APP, CLOSE_SESSION, struct.pack("<I", session.bmc_id), 0)
            exchange = _Exchange(session, wire, Timing(0.3, 1), [last], lambda *answer: None)
            with contextlib.suppress(NoCipher):
                await exchange.run()
        await self.drop(silent=True)

    async def drop(self, silent: bool = False) -> None:
        """Forgets session and socket; unless ``silent`` or none is open the BMC is told."""
        session, self._session = self._session, None
        wire, self._wire = self._wire, None
        if session is not None:
            if not silent and wire is not None:
                _, packet = session.seal(APP, CLOSE_SESSION, struct.pack("<I", session.bmc_id))
                wire.send(packet)
            session.close()
        if wire is not None:
            wire.close()

    # ---- inside ----------------------------------------------------------------------------

    async def _connect(self) -> None:
        try:
            self._wire = await Wire.open(self.address, self.port)
        except NoWay as error:
            raise BmcError(str(error), "silent") from error

    async def _shake_any(self, order: list[int]) -> int:
        """The number of the first suite with which a session could be opened."""
        failure = BmcError(words.NO_CIPHER, FOREIGN)
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

    async def _ask(self, packet: bytes, kind: int, take: Callable[[bytes], int]) -> int:
        """Sends a message of the handshake until its answer comes; the answer's status."""
        wire = self._wire
        assert wire is not None
        loop = asyncio.get_running_loop()
        wait = self._timing.timeout_seconds
        for turn in range(self._timing.tries):
            wire.send(packet)
            if turn and not self.answers:
                # Silence may mean that it does not know RMCP+: every BMC answers this.
                wire.send(capabilities_request())
            end = loop.time() + wait
            wait *= self._timing.growth
            while True:
                answer = await wire.get(end - loop.time())
                if answer is None:
                    break
                if not self.answers and speaks_2_0(answer) is False:
                    raise BmcError(words.ONLY_1_5, FOREIGN)
                try:
                    found, payload = open_plain(answer)
                    if found == kind:
                        self.answers += 1
                        return take(payload)
                except BadPacket:
                    continue
        if self.answers:
            raise BmcError(words.HALF_DEAD + " while the session was opened", "cut")
        raise BmcError(wire.refusal or words.NO_ANSWER, "silent")


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
    raise BmcError(f"the BMC refuses the session: {said}", FOREIGN)


class _Exchange:
    """Requests to one BMC, one after the other, each repeated until it is answered.

    It runs in the calls of the wire, not in a task. Not to be used twice.
    """

    def __init__(
        self,
        session: Session,
        wire: Wire,
        timing: Timing,
        requests: Sequence[Request],
        take: Take,
    ) -> None:
        self.answers = 0
        self._session = session
        self._wire = wire
        self._timing = timing
        self._requests = requests
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[bool] = self._loop.create_future()
        self._place = 0
        self._number = self._command = -1
        self._tries = self._busy = 0
        self._wait_seconds = 0.0

    async def run(self) -> bool:
        """True when all were answered, False when the BMC did not answer one of them."""
        self._wire.take = self._came
        self._begin()
        return await self._done

    def _begin(self) -> None:
        self._tries = self._busy = 0
        self._wait_seconds = self._timing.timeout_seconds
        self._send()

    def _send(self) -> None:
        if self._tries >= self._timing.tries:
            self._end(False)
            return
        self._tries += 1
        netfn, command, data, lun = self._requests[self._place]
        self._command = command
        self._number, packet = self._session.seal(netfn, command, data, lun)
        self._wire.send(packet)
        self._wire.expect(self._wait_seconds)
        self._wait_seconds *= self._timing.growth

    def _came(self, packet: bytes | None) -> None:
        """A packet, or None: the time is over."""
        try:
            if packet is None:
                self._send()
                return
            try:
                number, command, code, content = self._session.open(packet)
            except BadPacket:
                return
            if number != self._number or command != self._command:
                return  # late: asked again meanwhile
            self.answers += 1
            if code in BUSY_CODES and self._busy < 2:
                self._rest()
                return
            self._take(self._place, code, content)
            self._place += 1
            if self._place == len(self._requests):
                self._end(True)
            else:
                self._begin()
        except Exception as error:
            self._wire.take = None
            if not self._done.done():
                self._done.set_exception(error)

    def _rest(self) -> None:
        """A BMC that is busy gets a moment."""
        self._busy += 1
        self._number = -1
        self._wire.take = self._rested
        self._wire.expect(0.1 * self._busy)

    def _rested(self, packet: bytes | None) -> None:
        if packet is None:
            self._wire.take = self._came
            self._came(None)

    def _end(self, whole: bool) -> None:
        self._wire.take = None
        if not self._done.done():
            self._done.set_result(whole)
