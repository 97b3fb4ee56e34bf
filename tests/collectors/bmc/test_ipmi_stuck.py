"""BMCs that fall silent at one question, or refuse one: all else of them is read."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from collectors.bmc import ipmi
from collectors.bmc.fleet import Poll
from collectors.bmc.ipmi_batches import Batches
from collectors.bmc.targets import targets
from collectors.command import Runner
from collectors.sample import Context
from daemon.bench.bmc_standin import RECORDS, Bmc, serve

NOW_NS = 1_800_000_000 * 10**9
STORAGE, SENSOR, CHASSIS, GROUP = 0x0A, 0x04, 0x00, 0x2C


class Odd(Bmc):
    """A stand-in that says nothing to, or refuses, the questions that ``odd`` picks."""

    silent = True
    what: tuple[int, int, bytes] = (0, 0, b"")  # network function, command, a part of its data
    code = 0xCB

    def _is_odd(self, netfn: int, command: int, data: bytes) -> bool:
        return (netfn, command) == self.what[:2] and self.what[2] in data[:4]

    def _request(self, one, packet: bytes):  # type: ignore[no-untyped-def]
        message = one.session.unwrap(packet)
        if self.silent and self._is_odd(message[1] >> 2, message[5], message[6:-1]):
            return None
        return super()._request(one, packet)

    def command(self, netfn: int, command: int, data: bytes) -> tuple[int, bytes]:
        if not self.silent and self._is_odd(netfn, command, data):
            return self.code, b""
        return super().command(netfn, command, data)


def visits(bmc: Bmc, folder: Path, count: int) -> list[Poll]:
    """What so many visits in a row bring."""

    async def run() -> list[Poll]:
        host = f"127.{110 + os.getpid() % 9}.{os.getpid() % 250 + 1}.5"
        transports = await serve([host], 0, [bmc])
        port = transports[0].get_extra_info("sockname")[1]
        secret = folder / "secret"
        secret.write_text("secret")
        secret.chmod(0o600)
        options = ipmi.Options(
            nodes="n1",
            address=f"{host}:{port}",
            user="admin",
            password_file=str(secret),
            timeout_seconds=0.1,
            tries=1,
        )
        batches = Batches(options.freeipmi, options.privilege, folder, Runner())
        context = Context("head", folder, now_ns=lambda: NOW_NS)
        visitor = ipmi._Visitor(targets(options)[0], options, context, batches, None)
        polls = []
        try:
            async with asyncio.timeout(60):
                for _ in range(count):
                    poll = Poll()
                    await visitor.visit(poll)
                    polls.append(poll)
            await visitor.leave()
        finally:
            transports[0].close()
        return polls

    return asyncio.run(run())


def names(poll: Poll) -> set[str]:
    return {one.tag("sensor") for one in poll.samples if one.measurement == "bmc"}


ALL = len(RECORDS)


@pytest.mark.parametrize(
    ("what", "lost"),
    [
        ((SENSOR, 0x2D, b"\x07"), 1),  # one sensor
        ((GROUP, 0x02, b"\xdc"), 1),  # power by DCMI
        ((CHASSIS, 0x01, b""), 6),
    ],
)
def test_one_question_at_which_a_bmc_falls_silent_hides_no_other(
    what: tuple[int, int, bytes], lost: int, tmp_path: Path
) -> None:
    whole = names(visits(Odd(), tmp_path, 1)[0])
    bmc = Odd()
    bmc.what = what
    polls = visits(bmc, tmp_path, 4)
    assert "fell silent" in polls[0].fault
    assert polls[-1].fault == ""
    assert len(whole - names(polls[-1])) == lost


def test_a_sensor_that_is_asked_no_more_is_told(tmp_path: Path) -> None:
    bmc = Odd()
    bmc.what = (SENSOR, 0x2D, b"\x07")
    polls = visits(bmc, tmp_path, 3)
    told = [one.problem for poll in polls for one in poll.problems]
    assert len([one for one in told if "is asked no more" in one]) == 1


@pytest.mark.parametrize("silent", [True, False])
def test_a_record_that_cannot_be_read_costs_the_sensors_behind_it_only(
    silent: bool, tmp_path: Path
) -> None:
    bmc = Odd()
    bmc.silent, bmc.what = silent, (STORAGE, 0x23, b"\x01\x00\x14\x00")
    polls = visits(bmc, tmp_path, 5)
    assert polls[-1].fault == ""
    assert "Inlet Temp" in names(polls[-1])
    assert "DCMI Power" in names(polls[-1])
    # It goes on saying so.
    assert ["up to record 20" in one.problem for one in polls[-1].problems] == [True]


def test_a_list_that_was_cut_is_read_anew_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipmi.ipmi_read, "RETRY_ROUNDS", 3)
    bmc = Odd()
    bmc.silent, bmc.what = False, (STORAGE, 0x23, b"\x01\x00\x14\x00")
    before = visits(bmc, tmp_path, 3)
    assert before[-1].problems

    class Mended(Odd):
        """Its list is whole once it was asked for its power twice."""

        def command(self, netfn: int, command: int, data: bytes) -> tuple[int, bytes]:
            if (netfn, command) == (CHASSIS, 0x01):
                self.rounds = getattr(self, "rounds", 0) + 1
                if self.rounds > 1:
                    self.what = (0, 0, b"")
            return super().command(netfn, command, data)

    mended = Mended()
    mended.silent, mended.what = bmc.silent, bmc.what
    polls = visits(mended, tmp_path, 9)
    assert polls[-1].problems == []
    assert len(names(polls[-1])) > len(names(before[-1]))


def test_an_entry_of_the_log_that_nobody_gets_hides_neither_sensors_nor_later_entries(
    tmp_path: Path,
) -> None:
    bmc = Odd()
    for number in range(1, 7):
        bmc.add_log(0x0C, number, 0x6F, b"\x01\xff\xff")
    bmc.what = (STORAGE, 0x43, b"\x00\x00\x04\x00")
    polls = visits(bmc, tmp_path, 5)
    assert polls[-1].fault == ""
    assert "Inlet Temp" in names(polls[-1])
    told = [one.text("text") for poll in polls for one in poll.samples if one.tag("kind") == "sel"]
    assert [one.split(":")[0] for one in told] == [f"SEL 0x{n}" for n in (1, 2, 3, 5, 6)]
    problems = [one.problem for poll in polls for one in poll.problems]
    assert len([one for one in problems if "0x4 of the SEL is left out" in one]) == 1


def test_what_a_bmc_could_not_do_is_tried_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipmi.ipmi_read, "RETRY_ROUNDS", 2)

    class Updated(Odd):
        """Its firmware measures power from the second time on that it is asked."""

        asked = 0

        def command(self, netfn: int, command: int, data: bytes) -> tuple[int, bytes]:
            if (netfn, command) == (GROUP, 0x02):
                self.asked += 1
                if self.asked == 1:
                    return 0xC1, b""
            return super().command(netfn, command, data)

    polls = visits(Updated(), tmp_path, 4)
    assert ["DCMI Power" in names(poll) for poll in polls] == [False, False, True, True]
