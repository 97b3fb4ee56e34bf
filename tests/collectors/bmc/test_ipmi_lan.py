"""One session over a bad network: packets that are lost, late, doubled or of somebody else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from collectors.bmc.ipmi_lan import BmcError, Lan, Login, Timing
from daemon.bench.bmc_standin import Bmc, serve

READING = (0x04, 0x2D, b"\x01", 0)
Answer = Callable[[bytes], bytes | None]


class Bad(Bmc):
    """A stand-in whose answers go through ``spoil``, in its order."""

    spoil: Callable[[bytes, bytes | None], bytes | None]

    def answer(self, packet: bytes) -> bytes | None:
        return self.spoil(packet, super().answer(packet))


@pytest.fixture
def host() -> str:
    return f"127.{80 + os.getpid() % 9}.{os.getpid() % 250 + 1}.2"


def talk(bmc: Bmc, host: str, use: Callable[[Lan], Awaitable[None]], tries: int = 3) -> None:
    async def run() -> None:
        transports = await serve([host], 0, [bmc])
        port = transports[0].get_extra_info("sockname")[1]
        lan = Lan(host, port, Login(b"admin", b"secret"), Timing(0.1, tries, 1.2))
        try:
            await lan.open()
            await use(lan)
        finally:
            await lan.close()
            transports[0].close()

    asyncio.run(run())


async def read_ten(lan: Lan) -> None:
    taken: list[tuple[int, int, bytes]] = []
    requests = [(0x04, 0x2D, bytes([number]), 0) for number in range(1, 11)]
    await lan.ask(requests, lambda place, code, data: taken.append((place, code, data[:1])))
    raw = Bmc().readings
    assert taken == [(place, 0, bytes([raw[place]])) for place in range(10)]


def test_lost_requests_and_answers_are_asked_for_again(host: str) -> None:
    bmc, count = Bad(), 0

    def spoil(packet: bytes, answer: bytes | None) -> bytes | None:
        nonlocal count
        count += 1
        return None if count % 3 == 0 else answer

    bmc.spoil = spoil
    talk(bmc, host, read_ten)
    assert count > 13


def test_answers_of_earlier_questions_are_taken_for_no_other(host: str) -> None:
    bmc = Bad()
    held: list[bytes] = []

    def spoil(packet: bytes, answer: bytes | None) -> bytes | None:
        if len(packet) > 9 and packet[5] & 0x80 and answer is not None:
            held.append(answer)
            # Every second answer is that of the question before: late, and once more.
            return held[-2] if len(held) % 2 == 0 else answer
        return answer

    bmc.spoil = spoil
    talk(bmc, host, read_ten)


def test_packets_of_strangers_are_let_fall(host: str) -> None:
    bmc, count = Bad(), 0

    def spoil(packet: bytes, answer: bytes | None) -> bytes | None:
        nonlocal count
        count += 1
        if answer is None or count % 2 or not packet[5] & 0x80:
            return answer
        wrong = bytearray(answer)
        wrong[-1] ^= 1
        return bytes(wrong)

    bmc.spoil = spoil
    talk(bmc, host, read_ten)


def test_a_busy_bmc_gets_a_moment_and_then_answers(host: str) -> None:
    bmc, asked = Bmc(), 0
    usual = bmc.command

    def command(netfn: int, number: int, data: bytes) -> tuple[int, bytes]:
        nonlocal asked
        asked += 1
        return (0xC0, b"") if asked in (1, 2) else usual(netfn, number, data)

    bmc.command = command  # type: ignore[method-assign, assignment]

    async def use(lan: Lan) -> None:
        assert await lan.call(*READING[:3]) == bytes([bmc.readings[0], 0xC0, 0xC0])

    talk(bmc, host, use)
    assert asked >= 3


def test_a_bmc_that_falls_silent_in_the_midst_keeps_what_was_read(host: str) -> None:
    bmc = Bad()
    taken: list[int] = []
    bmc.spoil = lambda packet, answer: None if len(taken) >= 4 else answer

    async def use(lan: Lan) -> None:
        requests = [(0x04, 0x2D, bytes([number]), 0) for number in range(1, 11)]
        with pytest.raises(BmcError, match="fell silent after 7 answers") as caught:
            await lan.ask(requests, lambda place, code, data: taken.append(place))
        assert caught.value.kind == "cut"
        assert not lan.is_open

    talk(bmc, host, use, tries=2)
    assert taken == [0, 1, 2, 3]


def test_a_fault_in_the_taker_ends_the_questions_and_is_raised(host: str) -> None:
    bmc = Bmc()

    def take(place: int, code: int, data: bytes) -> None:
        raise ZeroDivisionError(place)

    async def use(lan: Lan) -> None:
        with pytest.raises(ZeroDivisionError):
            await lan.ask([READING, READING], take)
        assert await lan.call(*READING[:3]), "the session goes on"

    talk(bmc, host, use)
    assert bmc.calls == 3
