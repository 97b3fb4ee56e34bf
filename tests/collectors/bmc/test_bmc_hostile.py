"""BMCs that were taken over, or whose firmware is mad: they cost themselves and nobody else."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from collectors.bmc import ipmi_log, ipmi_read, redfish, redfish_plan
from collectors.bmc.fleet import Poll
from collectors.bmc.ipmi_lan import BmcError, Lan, Login, Timing
from collectors.bmc.points import Readings
from collectors.bmc.redfish_entries import LogCursor
from collectors.bmc.redfish_events import EventStream, Heard
from collectors.bmc.redfish_http import Client, HttpError, _retry_seconds
from collectors.bmc.redfish_logs import RECORDS_LIMIT, entries, entry_id
from collectors.bmc.redfish_plan import discover, links
from collectors.bmc.targets import Secrets, targets
from collectors.sample import Context, Sample
from daemon.bench.bmc_standin import RECORDS, Bmc, serve

NOW_NS = 1_800_000_000 * 10**9
STAMP = "2027-01-15T08:00:00Z"  # NOW_NS
STORAGE, GET_RECORD, GET_ENTRY = 0x0A, 0x23, 0x43


# ---- IPMI ----------------------------------------------------------------------------------------


class Loop(Bmc):
    """A stand-in whose last record, of the sensors and of the log, leads back to record 2."""

    def command(self, netfn: int, command: int, data: bytes) -> tuple[int, bytes]:
        code, content = super().command(netfn, command, data)
        if netfn == STORAGE and command in (GET_RECORD, GET_ENTRY) and content[:2] == b"\xff\xff":
            content = b"\x02\x00" + content[2:]
        return code, content


def with_loop(use: Callable[[Lan, Loop], Awaitable[None]]) -> None:
    async def run() -> None:
        bmc = Loop()
        host = f"127.{100 + os.getpid() % 9}.{os.getpid() % 250 + 1}.3"
        transports = await serve([host], 0, [bmc])
        port = transports[0].get_extra_info("sockname")[1]
        lan = Lan(host, port, Login(b"admin", b"secret"), Timing(0.5, 3, 1.2))
        try:
            await lan.open()
            async with asyncio.timeout(20):
                await use(lan, bmc)
        finally:
            await lan.close()
            transports[0].close()

    asyncio.run(run())


def test_a_list_of_sensors_that_leads_back_gives_each_sensor_once() -> None:
    async def use(lan: Lan, bmc: Loop) -> None:
        known = ipmi_read.Knowledge()
        await ipmi_read.learn(lan, known)
        names = [one.name for one in known.sensors]
        assert len(names) == len(set(names)) == len(RECORDS)
        assert known.visited == set()

    with_loop(use)


def test_a_log_that_leads_back_tells_each_entry_once() -> None:
    async def use(lan: Lan, bmc: Loop) -> None:
        for number in range(5):
            bmc.add_log(0x0C, number, 0x6F, b"\x01\xff\xff")
        cursor = ipmi_log.Cursor(started=True)

        async def read() -> int:
            # Fewer than the log holds at a time: the way round it goes over several rounds.
            return len(await ipmi_log.read_new(lan, cursor, "n1", dict, NOW_NS, 3, 50))

        assert [await read() for _ in range(4)] == [3, 2, 0, 0]

    with_loop(use)


def test_entries_before_a_bmc_falls_silent_are_told_and_the_others_come_later() -> None:
    async def use(lan: Lan, bmc: Loop) -> None:
        for number in range(5):
            bmc.add_log(0x0C, number, 0x6F, b"\x01\xff\xff")
        cursor, told = ipmi_log.Cursor(started=True), list[Sample]()
        answer, left = bmc.command, 4

        def falls_silent(netfn: int, command: int, data: bytes) -> tuple[int, bytes]:
            nonlocal left
            left -= 1
            if left < 0:
                raise BmcError("the BMC answered and then fell silent", "cut")
            return answer(netfn, command, data)

        class Cut:
            """The way to the BMC, until it is silent."""

            async def call(self, netfn: int, command: int, data: bytes = b"") -> bytes:
                falls_silent(netfn, command, data)
                return await lan.call(netfn, command, data)

        with pytest.raises(BmcError):
            await ipmi_log.read_new(
                Cut(), cursor, "n1", dict, NOW_NS, 9, 50, told  # type: ignore[arg-type]
            )  # fmt: skip
        assert len(told) == 3
        assert len(await ipmi_log.read_new(lan, cursor, "n1", dict, NOW_NS, 9, 50)) == 2

    with_loop(use)


# ---- Redfish: answers ----------------------------------------------------------------------------

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def with_bmc(
    handler: Handler, use: Callable[[aiohttp.ClientSession, str], Awaitable[None]]
) -> None:
    """A web server that answers everything with ``handler``."""

    async def run() -> None:
        app = web.Application()
        app.router.add_route("*", "/{any:.*}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        base = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            async with aiohttp.ClientSession() as http, asyncio.timeout(20):
                await use(http, base)
        finally:
            await runner.cleanup()

    asyncio.run(run())


def client_of(http: aiohttp.ClientSession, base: str) -> Client:
    return Client(http, base, Secrets(b"u", b"p"), None, basic=True)


def test_an_answer_of_a_million_tiny_values_is_not_unpacked() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=b"[" + b"[]," * 1_000_000 + b"[]]")

    async def use(http: aiohttp.ClientSession, base: str) -> None:
        with pytest.raises(HttpError, match="values"):
            await client_of(http, base).get("/redfish/v1")

    with_bmc(handler, use)


def test_what_is_kept_of_a_walk_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redfish_plan, "WALK_VALUES_LIMIT", 20_000)
    asked = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        body: dict[str, object] = {"Chassis": {"@odata.id": "/redfish/v1/Chassis"}}
        if request.path != "/redfish/v1":
            listed = [{"@odata.id": f"/redfish/v1/Chassis/{asked}-{n}"} for n in range(300)]
            body = {"Members": listed, "Filler": [0] * 5_000}
        return web.json_response(body)

    async def use(http: aiohttp.ClientSession, base: str) -> None:
        client = client_of(http, base)
        with pytest.raises(HttpError, match="what the BMC offers"):
            await discover(client)
        assert client.walked == {}
        assert asked < 10

    with_bmc(handler, use)


def test_endless_addresses_are_no_addresses() -> None:
    long, short = "/redfish/v1/" + "x" * 5_000, "/redfish/v1/Chassis/1"
    assert links({"Members": [{"@odata.id": long}, {"@odata.id": short}]}) == [short]
    assert redfish_plan.link({"Entries": {"@odata.id": long}}, "Entries") == ""


def test_digits_that_are_no_numbers_are_no_numbers() -> None:
    assert entry_id({"Id": "²"}) is None
    assert _retry_seconds("²") == 0.0


# ---- Redfish: logs -------------------------------------------------------------------------------


def test_an_entry_of_the_far_future_hides_none_that_follows() -> None:
    cursor = LogCursor(started=True)
    cursor.take({"Id": "900", "Created": "2099-01-01T00:00:00Z"}, NOW_NS)
    # The log was cleared, its numbers begin again.
    assert cursor.is_new({"Id": "1", "Created": STAMP})


def test_names_of_entries_do_not_fill_the_disk() -> None:
    cursor = LogCursor(started=True)
    body = {"Id": "x" * 1_000_000, "Created": STAMP}
    cursor.take(body, NOW_NS)
    assert not cursor.is_new(body)
    assert len(json.dumps(cursor.dump())) < 1_000


def test_an_event_of_very_many_records_is_cut_and_said() -> None:
    found = Readings()
    inner = {"Message": "m", "Events": [{"Message": "inner"}] * 1_000}
    told = list(entries({"Events": [inner] * 5_000}, "n1", NOW_NS, found))
    assert len(told) == RECORDS_LIMIT
    assert "records" in found.problems[0].problem


def test_cursors_of_logs_with_ever_new_names_are_let_go(tmp_path: Path) -> None:
    held = {f"/redfish/v1/L{n}": [0, 0, [], 0] for n in range(500)}
    options = redfish.Options(nodes="n1", scheme="http")
    target = targets(options)[0]
    visitor = redfish._Visitor(
        target,
        options,
        Context("head", tmp_path),
        redfish._Shared(options),
        held,
        lambda poll: None,
    )
    visitor._keep_cursors(["/redfish/v1/L0"])
    kept = visitor.dump()
    assert len(kept) < 50
    assert "/redfish/v1/L0" in kept


# ---- Redfish: streams and sessions ---------------------------------------------------------------


def test_a_stream_without_end_takes_no_more_than_its_share() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for number in range(3_000):
            body = {"Events": [{"Message": f"no {number}", "EventTimestamp": STAMP}]}
            await answer.write(b"data: " + json.dumps(body).encode() + b"\n\n")
        await asyncio.sleep(5)
        return answer

    async def use(http: aiohttp.ClientSession, base: str) -> None:
        told: list[Poll] = []
        stream = EventStream(http, "n1", Heard(), told.append, lambda: NOW_NS)
        begin = time.monotonic()
        stream.start(client_of(http, base), "/redfish/v1/SSE")
        await asyncio.sleep(1.5)
        await stream.close()
        assert told
        assert len(told) <= 61 + 2 * (time.monotonic() - begin)

    with_bmc(handler, use)


def test_a_session_is_closed_also_where_a_resource_is_refused(tmp_path: Path) -> None:
    closed: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        if request.method == "DELETE":
            closed.append(request.path)
            return web.Response(status=204)
        if request.method == "POST":
            place = "/redfish/v1/SessionService/Sessions/7"
            headers = {"X-Auth-Token": "t", "Location": place}
            return web.json_response({}, status=201, headers=headers)
        if request.path == "/redfish/v1":
            return web.json_response({"Chassis": {"@odata.id": "/redfish/v1/Chassis"}})
        return web.json_response({}, status=403)

    async def use(http: aiohttp.ClientSession, base: str) -> None:
        address = base.removeprefix("http://")
        options = redfish.Options(nodes="n1", scheme="http", address=address)
        shared = redfish._Shared(options)
        context = Context("head", tmp_path)
        target = targets(options)[0]
        visitor = redfish._Visitor(target, options, context, shared, {}, lambda poll: None)
        poll = Poll()
        await visitor.visit(poll)
        await shared.close()
        assert poll.kind == "login"
        # It is tried again much later: until then the BMC, which has few, would hold it open.
        assert closed == ["/redfish/v1/SessionService/Sessions/7"]

    with_bmc(handler, use)
