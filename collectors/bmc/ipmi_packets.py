"""IPMI 2.0 over RMCP+: packets and keys, without sockets.

The layout is that of the IPMI 2.0 specification, chapter 13: RMCP header (13.1.3), session header
and trailer (13.6), Open Session and RAKP messages (13.17 to 13.24), key exchange (13.31, 13.32).
Cipher suites 3 (HMAC-SHA1, SHA1-96, AES-CBC-128) and 17 (HMAC-SHA256, SHA256-128, AES-CBC-128).
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from collectors.bmc.ipmi_aes import BLOCK_BYTES, Cbc

RMCP = b"\x06\x00\xff\x07"
PLUS = 0x06  # authentication type "RMCP+"
OPEN_REQUEST, OPEN_RESPONSE = 0x10, 0x11
RAKP1, RAKP2, RAKP3, RAKP4 = 0x12, 0x13, 0x14, 0x15
IPMI = 0x00

BMC_ADDRESS = 0x20
CONSOLE_ADDRESS = 0x81
GET_CAPABILITIES, THIS_CHANNEL, EXTENDED = 0x38, 0x0E, 0x80
NAME_ONLY = 0x10  # look the user up by name alone, not by name and privilege

PRIVILEGES = {"user": 2, "operator": 3, "administrator": 4}


class BadPacket(Exception):
    """A packet that is not for us, not whole, or not by the peer that we talk to."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One cipher suite: its number, algorithm numbers and the lengths they bring."""

    number: int
    authentication: int
    integrity: int
    hash_name: str
    code_bytes: int  # of the integrity code of a packet and of RAKP 4

    def digest(self, key: bytes, text: bytes) -> bytes:
        """HMAC of ``text``."""
        return hmac.digest(key, text, self.hash_name)

    def keyed(self, key: bytes) -> tuple[hashlib._Hash, hashlib._Hash]:
        """The inner and outer hash of an HMAC by ``key`` (RFC 2104), to be copied and finished.

        A session signs thousands of packets by one key: the two blocks of the key are hashed once.
        """
        name = self.hash_name
        block_bytes = hashlib.new(name).block_size
        key = (hashlib.new(name, key).digest() if len(key) > block_bytes else key).ljust(
            block_bytes, b"\0"
        )
        inner, outer = (bytes(byte ^ with_ for byte in key) for with_ in (0x36, 0x5C))
        return hashlib.new(name, inner), hashlib.new(name, outer)

    @property
    def digest_bytes(self) -> int:
        """Length of a whole HMAC."""
        return hashlib.new(self.hash_name).digest_size


SUITES = {3: Suite(3, 1, 1, "sha1", 12), 17: Suite(17, 3, 4, "sha256", 16)}
CONFIDENTIALITY_AES = 1

# Status codes of Open Session and RAKP answers, IPMI 2.0 table 13-15.
STATUS = {
    0x01: "insufficient resources",
    0x02: "invalid session",
    0x03: "invalid payload",
    0x04: "invalid authentication algorithm",
    0x05: "invalid integrity algorithm",
    0x08: "invalid role",
    0x09: "unauthorized role or privilege",
    0x0A: "insufficient resources for this role",
    0x0C: "invalid name length",
    0x0D: "unauthorized name",
    0x0E: "unauthorized GUID",
    0x0F: "invalid integrity check value",
    0x10: "invalid confidentiality algorithm",
    0x11: "no matching cipher suite",
    0x12: "illegal parameter",
}
NO_SUITE = frozenset({0x04, 0x05, 0x10, 0x11})


def plain(kind: int, payload: bytes) -> bytes:
    """A packet outside a session."""
    return RMCP + struct.pack("<BBIIH", PLUS, kind, 0, 0, len(payload)) + payload


def open_plain(packet: bytes) -> tuple[int, bytes]:
    """Payload type and payload of a packet outside a session."""
    if len(packet) < 16 or packet[:4] != RMCP or packet[4] != PLUS:
        raise BadPacket("no RMCP+ packet")
    kind, _, _, size = struct.unpack_from("<BIIH", packet, 5)
    payload = packet[16 : 16 + size]
    if len(payload) != size or kind & 0xC0:
        raise BadPacket("a packet that is not whole")
    return kind & 0x3F, payload


def capabilities_request() -> bytes:
    """Get Channel Authentication Capabilities (22.13), as every BMC since IPMI 1.5 takes it.

    It belongs to no session and asks for the IPMI 2.0 part of the answer, too.
    """
    body = bytes((CONSOLE_ADDRESS, 0, GET_CAPABILITIES, THIS_CHANNEL | EXTENDED, 0x02))
    message = _head(0x06 << 2) + body + checksum(body)
    return RMCP + bytes(9) + bytes([len(message)]) + message


def speaks_2_0(packet: bytes) -> bool | None:
    """What the answer to ``capabilities_request`` says of RMCP+; None for another packet.

    A BMC that does not know the question's IPMI 2.0 part refuses it, or answers without it.
    """
    if len(packet) < 22 or packet[:4] != RMCP or packet[4] != 0:
        return None
    if packet[15] >> 2 != 0x07 or packet[19] != GET_CAPABILITIES:
        return None
    if packet[20]:
        return False
    extended = len(packet) > 25 and packet[22] & EXTENDED
    return bool(extended and packet[24] & 0x02)


@dataclass
class Handshake:
    """Opens one session: four messages, of which two are ours.

    ``user`` and ``password`` are bytes as the BMC holds them, ``key`` the BMC's own key (K_G),
    empty where it has none.
    """

    suite: Suite
    user: bytes
    password: bytes
    privilege: int
    key: bytes = b""
    console_id: int = field(default_factory=lambda: int.from_bytes(os.urandom(4), "little") | 1)
    console_random: bytes = field(default_factory=lambda: os.urandom(16))
    bmc_id: int = 0
    bmc_random: bytes = b""
    guid: bytes = b""
    sik: bytes = b""

    @property
    def _role(self) -> int:
        return NAME_ONLY | self.privilege

    @property
    def _who(self) -> bytes:
        return bytes([self._role, len(self.user)]) + self.user

    def open_request(self) -> bytes:
        """The Open Session Request."""
        parts = (
            (0, self.suite.authentication),
            (1, self.suite.integrity),
            (2, CONFIDENTIALITY_AES),
        )
        body = struct.pack("<BBHI", 0, 0, 0, self.console_id)
        for kind, algorithm in parts:
            body += struct.pack("<BHBBBH", kind, 0, 8, algorithm, 0, 0)
        return plain(OPEN_REQUEST, body)

    def take_open(self, payload: bytes) -> int:
        """Reads the answer; its status, 0 when the session may be opened."""
        if len(payload) < 2:
            raise BadPacket("an Open Session answer that is not whole")
        if payload[1]:
            return payload[1]
        if len(payload) < 36:
            raise BadPacket("an Open Session answer that is not whole")
        console_id, self.bmc_id = struct.unpack_from("<II", payload, 4)
        if console_id != self.console_id:
            raise BadPacket("an answer for another session")
        return 0

    def rakp1(self) -> bytes:
        """RAKP message 1."""
        body = struct.pack("<BBHI", 0, 0, 0, self.bmc_id) + self.console_random
        body += bytes([self._role, 0, 0, len(self.user)]) + self.user
        return plain(RAKP1, body)

    def take_rakp2(self, payload: bytes) -> int:
        """Reads RAKP message 2; its status. -1: the BMC does not share our password."""
        if len(payload) < 8:
            raise BadPacket("a RAKP 2 message that is not whole")
        if payload[1]:
            return payload[1]
        need = 40 + self.suite.digest_bytes
        if len(payload) < need:
            raise BadPacket("a RAKP 2 message that is not whole")
        if struct.unpack_from("<I", payload, 4)[0] != self.console_id:
            raise BadPacket("a RAKP 2 message for another session")
        self.bmc_random, self.guid = payload[8:24], payload[24:40]
        ids = struct.pack("<II", self.console_id, self.bmc_id)
        text = ids + self.console_random + self.bmc_random + self.guid + self._who
        if not hmac.compare_digest(self.suite.digest(self.password, text), payload[40:need]):
            return -1
        return 0

    def rakp3(self) -> bytes:
        """RAKP message 3, and with it the session's integrity key."""
        text = self.bmc_random + struct.pack("<I", self.console_id) + self._who
        code = self.suite.digest(self.password, text)
        secret = self.console_random + self.bmc_random + self._who
        self.sik = self.suite.digest(self.key or self.password, secret)
        return plain(RAKP3, struct.pack("<BBHI", 0, 0, 0, self.bmc_id) + code)

    def take_rakp4(self, payload: bytes) -> int:
        """Reads RAKP message 4; its status. -1: the keys differ (K_G is wrong)."""
        if len(payload) < 8:
            raise BadPacket("a RAKP 4 message that is not whole")
        if payload[1]:
            return payload[1]
        text = self.console_random + struct.pack("<I", self.bmc_id) + self.guid
        code = self.suite.digest(self.sik, text)[: self.suite.code_bytes]
        return 0 if hmac.compare_digest(code, payload[8 : 8 + self.suite.code_bytes]) else -1

    def session(self) -> Session:
        """The session that is now open."""
        return Session(self.suite, self.console_id, self.bmc_id, self.sik)


class Session:
    """Seals requests and opens answers of one open session."""

    def __init__(self, suite: Suite, console_id: int, bmc_id: int, sik: bytes) -> None:
        self.bmc_id = bmc_id
        self._console_id = console_id
        self._code_bytes = suite.code_bytes
        self._inner, self._outer = suite.keyed(suite.digest(sik, b"\x01" * 20))
        self._cbc = Cbc(suite.digest(sik, b"\x02" * 20)[:BLOCK_BYTES])
        self._sequence = 0
        self._number = 0
        self._randoms = _randoms()

    def _sign(self, signed: bytes) -> bytes:
        """The integrity code of a packet: an HMAC by K1 of which the first bytes are sent."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(signed)
        outer.update(inner.digest())
        return outer.digest()[: self._code_bytes]

    def seal(self, netfn: int, command: int, data: bytes, lun: int = 0) -> tuple[int, bytes]:
        """A request: its number (0 to 63), by which the answer is known, and the packet."""
        self._number = number = (self._number + 1) & 0x3F
        body = bytes((CONSOLE_ADDRESS, number << 2, command)) + data
        return number, self.wrap(_head(netfn << 2 | lun) + body + checksum(body))

    def wrap(self, message: bytes) -> bytes:
        """A message encrypted and signed, as a packet (sections 13.28 and 13.29)."""
        iv = next(self._randoms)
        secret = self._cbc.encrypt(iv, message + _PADS[-(len(message) + 1) % BLOCK_BYTES])
        size = BLOCK_BYTES + len(secret)
        self._sequence = self._sequence % 0xFFFFFFFF + 1
        head = _SESSION_HEAD.pack(PLUS, 0xC0 | IPMI, self.bmc_id, self._sequence, size)
        # 12 bytes of header and whole blocks: 2 bytes fill it up to a multiple of 4 (13.6).
        packet = head + iv + secret + b"\xff\xff\x02\x07"
        return RMCP + packet + self._sign(packet)

    def open(self, packet: bytes) -> tuple[int, int, int, bytes]:
        """Request number, command, completion code and data of an answer."""
        message = self.unwrap(packet)
        if len(message) < 8:
            raise BadPacket("an answer without completion code")
        return message[4] >> 2, message[5], message[6], message[7:-1]

    def unwrap(self, packet: bytes) -> bytes:
        """The message in a packet; BadPacket unless the peer signed it and it is whole."""
        if len(packet) < 16 + self._code_bytes or packet[:4] != RMCP or packet[4] != PLUS:
            raise BadPacket("no RMCP+ packet")
        kind, session, _, size = _ANSWER_HEAD.unpack_from(packet, 5)
        if kind != 0xC0 | IPMI or session != self._console_id:
            raise BadPacket("a packet of another session")
        signed, code = packet[4 : -self._code_bytes], packet[-self._code_bytes :]
        if not hmac.compare_digest(code, self._sign(signed)):
            raise BadPacket("a packet whose integrity code is wrong")
        payload = packet[16 : 16 + size]
        if len(payload) != size or size < 2 * BLOCK_BYTES or size % BLOCK_BYTES:
            raise BadPacket("a packet that is not whole")
        message = self._cbc.decrypt(payload[:BLOCK_BYTES], payload[BLOCK_BYTES:])
        pad = message[-1]
        if pad >= BLOCK_BYTES:
            raise BadPacket("a message whose padding is wrong")
        message = message[: -pad - 1]
        if len(message) < 7 or sum(message[:3]) & 0xFF or sum(message[3:]) & 0xFF:
            raise BadPacket("a message whose checksum is wrong")
        return message

    def close(self) -> None:
        """Lets go of the keys."""
        self._cbc.close()


_SESSION_HEAD = struct.Struct("<BBIIH")
_ANSWER_HEAD = struct.Struct("<BIIH")
_PADS = tuple(bytes(range(1, pad + 1)) + bytes([pad]) for pad in range(BLOCK_BYTES))


def _randoms() -> Iterator[bytes]:
    """Initialization vectors. The kernel is asked for some at once: each question costs."""
    while True:
        held = os.urandom(8 * BLOCK_BYTES)
        for place in range(0, len(held), BLOCK_BYTES):
            yield held[place : place + BLOCK_BYTES]


@functools.lru_cache(maxsize=1_024)
def _head(netfn_lun: int) -> bytes:
    """The first three bytes of a request to the BMC."""
    head = bytes([BMC_ADDRESS, netfn_lun])
    return head + checksum(head)


def checksum(data: bytes) -> bytes:
    """The byte that makes the sum of ``data`` and itself 0 (section 13.8)."""
    return bytes([-sum(data) & 0xFF])
