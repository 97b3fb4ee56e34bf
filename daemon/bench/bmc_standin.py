"""Stand-ins for BMCs: they answer IPMI 2.0 over RMCP+ as a BMC does, thousands in one process.

    python -m daemon.bench.bmc_standin --count 10000 --net 127.64 --port 16623

BMC number N (from 0) is at NET.(N // 250).(N % 250 + 1). They have the sensors of an 8-GPU server
and a log; what they say can be judged with ipmitool (``-p PORT -C 3`` or ``-C 17``). Made for the
benchmark and for tests, where one simulator process per BMC would be too many.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import os
import socket
import struct
import time
from dataclasses import dataclass, field

from collectors.bmc.ipmi_packets import (
    OPEN_REQUEST,
    OPEN_RESPONSE,
    RAKP1,
    RAKP2,
    RAKP3,
    RAKP4,
    RMCP,
    SUITES,
    BadPacket,
    Session,
    Suite,
    checksum,
    open_plain,
    plain,
)

USER, PASSWORD = b"admin", b"secret"
SESSIONS_LIMIT = 8
LAST = 0xFFFF


def sensor_records() -> list[tuple[bytes, int]]:
    """Sensor data records of an 8-GPU server, each with the raw reading that it has."""
    celsius, volts, watts, rpm = 1, 4, 6, 18
    rows = [
        ("Inlet Temp", 0x01, celsius, 1, 0, 24, 0x37),
        ("CPU1 Temp", 0x01, celsius, 1, 0, 58, 3),
    ]
    rows += [(f"GPU{n} Temp", 0x01, celsius, 1, 0, 50 + n, 0x0B) for n in range(1, 9)]
    rows += [(f"FAN{n}", 0x04, rpm, 100, 0, 90 + n, 0x1D) for n in range(1, 11)]
    rows += [("P12V", 0x02, volts, 60, -3, 201, 7), ("VBAT", 0x02, volts, 17, -3, 178, 0x28)]
    rows += [(f"PSU{n} Power In", 0x0B, watts, 16, 0, 70, 0x0A) for n in range(1, 7)]
    rows += [("Total Power", 0x0B, watts, 50, 0, 134, 0x13)]
    made = []
    for number, (name, kind, unit, m, exponent, raw, entity) in enumerate(rows, 1):
        made.append((_record(number, name, kind, 0x01, unit, m, exponent, entity), raw))
    for place in range(1, 7):
        number = len(made) + 1
        made.append((_record(number, f"PSU{place} Status", 0x08, 0x6F, 0, 1, 0, 0x0A), 0x01))
    return made


def _record(
    number: int, name: str, kind: int, event: int, unit: int, m: int, exponent: int, entity: int
) -> bytes:
    """One full sensor record (IPMI 2.0, section 43.1)."""
    analog = event == 0x01
    body = bytes([0x20, 0, number, entity, 0x60 + number % 31, 0x67, 0x68, kind, event])
    body += bytes(6) + bytes([0x00 if analog else 0xC0, unit, 0, 0, m & 0xFF, (m >> 8 & 3) << 6])
    body += bytes([0, 0, 0, (exponent & 15) << 4]) + bytes(17)
    body += bytes([0xC0 | len(name)]) + name.encode()
    return number.to_bytes(2, "little") + bytes([0x51, 0x01, len(body)]) + body


RECORDS = sensor_records()
SETTLED = int(time.time()).to_bytes(4, "little")


@dataclass
class Bmc:
    """One stand-in. ``log`` holds SEL records of 16 bytes; readings may be changed."""

    readings: list[int] = field(default_factory=lambda: [raw for _, raw in RECORDS])
    log: list[bytes] = field(default_factory=list)
    erased: bytes = b"\0\0\0\0"
    suites: tuple[int, ...] = (3, 17)
    sessions: dict[int, _Open] = field(default_factory=dict)
    calls: int = 0

    def add_log(self, sensor_type: int, number: int, event: int, data: bytes) -> None:
        """Adds one SEL entry of now."""
        head = struct.pack("<HBI", len(self.log) + 1, 0x02, int(time.time()))
        self.log.append(head + bytes([0x20, 0, 4, sensor_type, number, event]) + data)

    # ---- packets ---------------------------------------------------------------------------

    def answer(self, packet: bytes) -> bytes | None:
        """The answer to one packet, None where a BMC would say nothing."""
        if len(packet) > 5 and packet[:4] == RMCP and packet[4] == 0:
            return self._capabilities(packet)
        try:
            if len(packet) > 9 and packet[5] & 0x80:
                opened = self.sessions.get(struct.unpack_from("<I", packet, 6)[0])
                return self._request(opened, packet) if opened and opened.session else None
            kind, payload = open_plain(packet)
        except (BadPacket, struct.error):
            return None
        if kind == OPEN_REQUEST and len(payload) >= 32:
            return self._open(payload)
        if kind == RAKP1 and len(payload) >= 28:
            return self._rakp1(payload)
        if kind == RAKP3 and len(payload) >= 8:
            return self._rakp3(payload)
        return None

    def _open(self, payload: bytes) -> bytes:
        console = struct.unpack_from("<I", payload, 4)[0]
        wanted = payload[12], payload[20]
        suite = next(
            (SUITES[n] for n in self.suites
             if (SUITES[n].authentication, SUITES[n].integrity) == wanted),
            None,
        )  # fmt: skip
        head = bytes([payload[0]])
        if suite is None:
            return plain(OPEN_RESPONSE, head + b"\x11\0\0" + payload[4:8])
        if len(self.sessions) >= SESSIONS_LIMIT:
            for number in [n for n, one in self.sessions.items() if one.session is None]:
                del self.sessions[number]
        if len(self.sessions) >= SESSIONS_LIMIT:
            return plain(OPEN_RESPONSE, head + b"\x01\0\0" + payload[4:8])
        number = int.from_bytes(os.urandom(4), "little") | 1
        self.sessions[number] = _Open(suite, console)
        body = head + b"\0\x04\0" + struct.pack("<II", console, number) + payload[8:32]
        return plain(OPEN_RESPONSE, body)

    def _rakp1(self, payload: bytes) -> bytes | None:
        number = struct.unpack_from("<I", payload, 4)[0]
        one = self.sessions.get(number)
        if one is None:
            return None
        user = payload[28 : 28 + payload[27]]
        head = bytes([payload[0]])
        ids = struct.pack("<I", one.console)
        if user != USER:
            return plain(RAKP2, head + b"\x0d\0\0" + ids)
        one.console_random, one.who = payload[8:24], bytes([payload[24], len(user)]) + user
        text = ids + struct.pack("<I", number) + one.console_random + one.random + one.guid
        code = one.suite.digest(PASSWORD, text + one.who)
        return plain(RAKP2, head + b"\0\0\0" + ids + one.random + one.guid + code)

    def _rakp3(self, payload: bytes) -> bytes | None:
        number = struct.unpack_from("<I", payload, 4)[0]
        one = self.sessions.get(number)
        if one is None or not one.who:
            return None
        head, ids = bytes([payload[0]]), struct.pack("<I", one.console)
        code = one.suite.digest(PASSWORD, one.random + ids + one.who)
        if payload[1] or payload[8:] != code:
            del self.sessions[number]
            return plain(RAKP4, head + b"\x0f\0\0" + ids)
        sik = one.suite.digest(PASSWORD, one.console_random + one.random + one.who)
        one.session = Session(one.suite, number, one.console, sik)
        check = one.console_random + struct.pack("<I", number) + one.guid
        code = one.suite.digest(sik, check)[: one.suite.code_bytes]
        return plain(RAKP4, head + b"\0\0\0" + ids + code)

    def _request(self, one: _Open, packet: bytes) -> bytes:
        assert one.session is not None
        message = one.session.unwrap(packet)
        self.calls += 1
        netfn, command, data = message[1] >> 2, message[5], message[6:-1]
        code, content = self.command(netfn, command, data)
        head = bytes([message[3], (netfn | 1) << 2])
        body = bytes([0x20, message[4], command, code]) + content
        answer = one.session.wrap(head + checksum(head) + body + checksum(body))
        if (netfn, command) == (0x06, 0x3C):
            self.sessions = {n: other for n, other in self.sessions.items() if other is not one}
            one.session.close()
        return answer

    @staticmethod
    def _capabilities(packet: bytes) -> bytes | None:
        """Get Channel Authentication Capabilities, which comes in the format of IPMI 1.5."""
        message = packet[14:]
        if len(message) < 7 or message[5] != 0x38:
            return None
        head = bytes([message[3], 0x07 << 2])
        body = bytes([0x20, message[4], 0x38, 0, 1, 0x80, 0x04, 0x02, 0, 0, 0, 0])
        answer = head + checksum(head) + body + checksum(body)
        return RMCP + bytes(9) + bytes([len(answer)]) + answer

    # ---- commands --------------------------------------------------------------------------

    def command(self, netfn: int, command: int, data: bytes) -> tuple[int, bytes]:
        """Completion code and data of the answer to one command."""
        if netfn == 0x04 and command == 0x2D and data:
            return self._reading(data[0])
        if netfn == 0x0A:
            return self._storage(command, data)
        if (netfn, command) == (0x06, 0x01):
            return 0, bytes.fromhex("2001 0123 02bf 570100 0b0a 00000000")
        if (netfn, command) == (0x06, 0x3B) and data:
            return 0, data[:1]
        if (netfn, command) == (0x06, 0x3C):
            return 0, b""
        if (netfn, command) == (0x00, 0x01):
            return 0, b"\x01\x00\x40"
        if (netfn, command) == (0x2C, 0x02):
            now = int(time.time())
            return 0, b"\xdc" + struct.pack("<HHHHIIB", 6700, 6600, 6800, 6700, now, 1000, 0x40)
        return 0xC1, b""

    def _reading(self, number: int) -> tuple[int, bytes]:
        if not 1 <= number <= len(RECORDS):
            return 0xCB, b""
        raw = self.readings[number - 1]
        if RECORDS[number - 1][0][13] == 0x01:
            return 0, bytes([raw, 0xC0, 0xC0])
        return 0, bytes([0, 0xC0, raw, 0x80])

    def _storage(self, command: int, data: bytes) -> tuple[int, bytes]:
        if command == 0x20:
            return 0, b"\x51" + struct.pack("<HH", len(RECORDS), 0) + SETTLED + bytes(4) + b"\x02"
        if command in (0x22, 0x42):
            return 0, b"\x01\x00"
        if command == 0x23 and len(data) >= 6:
            place = max(0, int.from_bytes(data[2:4], "little") - 1)
            if place >= len(RECORDS):
                return 0xCB, b""
            following = LAST if place + 1 == len(RECORDS) else place + 2
            count = len(RECORDS[place][0]) if data[5] == 0xFF else data[5]
            part = RECORDS[place][0][data[4] : data[4] + count]
            return 0, following.to_bytes(2, "little") + part
        if command == 0x40:
            added = self.log[-1][3:7] if self.log else bytes(4)
            return 0, b"\x51" + struct.pack(
                "<HH", len(self.log), 65_535
            ) + added + self.erased + b"\x02"
        if command == 0x43 and len(data) >= 6:
            if not self.log:
                return 0xCB, b""
            number = int.from_bytes(data[2:4], "little")
            place = len(self.log) - 1 if number == LAST else max(0, number - 1)
            if place >= len(self.log):
                return 0xCB, b""
            following = LAST if place + 1 == len(self.log) else place + 2
            return 0, following.to_bytes(2, "little") + self.log[place]
        return 0xC1, b""


@dataclass
class _Open:
    """A session that is being opened, or open."""

    suite: Suite
    console: int
    random: bytes = field(default_factory=lambda: os.urandom(16))
    guid: bytes = bytes(range(16))
    console_random: bytes = b""
    who: bytes = b""
    session: Session | None = None


class _Front(asyncio.DatagramProtocol):
    def __init__(self, bmc: Bmc) -> None:
        self._bmc = bmc
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def datagram_received(self, data: bytes, addr: object) -> None:
        with contextlib.suppress(BadPacket):
            answer = self._bmc.answer(data)
            if answer is not None and self._transport is not None:
                self._transport.sendto(answer, addr)  # type: ignore[arg-type]


def addresses(count: int, net: str) -> list[str]:
    """The loopback address of each stand-in."""
    return [f"{net}.{number // 250}.{number % 250 + 1}" for number in range(count)]


async def serve(hosts: list[str], port: int, bmcs: list[Bmc]) -> list[asyncio.DatagramTransport]:
    """Lets each of ``bmcs`` answer at its host."""
    loop = asyncio.get_running_loop()
    made = []
    for host, bmc in zip(hosts, bmcs, strict=True):
        transport, _ = await loop.create_datagram_endpoint(
            functools.partial(_Front, bmc), local_addr=(host, port)
        )
        made.append(transport)
    return made


IP_PKTINFO = 8  # ip(7): which address of ours a packet was sent to, and is answered from
_PACKET_INFO = struct.Struct("=I4s4s")
BUFFER_BYTES = 16 * 1024 * 1024


def serve_all(count: int, net: str, port: int) -> None:
    """Answers for all stand-ins by one socket, so that the reader gets most of the processor.

    Ends when the process that started it has ended.
    """
    parent = os.getppid()
    bmcs = {socket.inet_aton(host): Bmc() for host in addresses(count, net)}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        one.settimeout(2.0)
        one.bind(("", port))
        print("up", flush=True)  # noqa: T201 - who started us waits for this line
        while True:
            try:
                data, told, _, caller = one.recvmsg(1024, 64)
            except TimeoutError:
                if os.getppid() != parent:
                    return
                continue
            _, _, own = _PACKET_INFO.unpack(told[0][2])
            bmc = bmcs.get(own)
            answer = None
            with contextlib.suppress(BadPacket):
                answer = bmc.answer(data) if bmc is not None else None
            if answer is not None:
                source = _PACKET_INFO.pack(0, own, bytes(4))
                one.sendmsg([answer], [(socket.IPPROTO_IP, IP_PKTINFO, source)], 0, caller)


def main() -> None:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--net", default="127.64", help="first two octets of the addresses")
    parser.add_argument("--port", type=int, default=16_623)
    given = parser.parse_args()
    # Real BMCs have processors of their own: on shared cores the stand-ins do not push the reader
    # aside at each packet (SCHED_BATCH, sched(7)).
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(KeyboardInterrupt):
        serve_all(given.count, given.net, given.port)


if __name__ == "__main__":
    main()
