"""Connections without a token: bounded in number and in how long they may say nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from daemon.gate.door import Door, DoorOptions, address_of
from daemon.listen import Address, Listeners
from daemon.loop import loop_factory

LOOPS = pytest.mark.parametrize(
    "factory", [asyncio.new_event_loop, loop_factory()], ids=["asyncio", "head"]
)


@asynccontextmanager
async def serving(
    options: DoorOptions, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Door, int]]:
    """(door, port) of an application that answers ``POST /`` with what it was sent."""

    async def echo(request: web.Request) -> web.Response:
        certificate = request.transport and request.transport.get_extra_info("peercert")
        said = await request.text()
        return web.Response(text=said if not certificate else f"{said} with a certificate")

    app = web.Application()
    app.router.add_post("/", echo)
    listeners = Listeners()
    address = await listeners.open_tcp(app, Address("0.0.0.0", 0), tls, options)
    yield listeners.doors[0], address.port
    await listeners.close()


async def ends(reader: asyncio.StreamReader) -> bool:
    """Whether the other side closes within some seconds."""
    try:
        return await asyncio.wait_for(reader.read(), 10) == b""
    except ConnectionError:
        return True


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def ask(port: int, tls: ssl.SSLContext | None = None, own: str = "127.0.0.1") -> str:
    scheme = "https" if tls else "http"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=(own, 0))) as session,
        session.post(f"{scheme}://127.0.0.1:{port}/", data="here", ssl=tls or True) as response,
    ):
        return await response.text()


async def test_one_address_cannot_take_the_place_of_others() -> None:
    options = DoorOptions(connections_per_address_limit=3)
    async with serving(options) as (door, port):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await until(lambda: door.open == 3)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await ends(reader)
        writer.close()
        assert door.refused == 1
        # Another address of loopback is another sender.
        assert await ask(port, own="127.0.0.2") == "here"
        held.pop()[1].close()
        await until(lambda: door.open == 2)
        assert await ask(port) == "here"
        for _, one in held:
            one.close()
        await until(lambda: door.open == 0)
        assert not door._of_address


async def test_all_addresses_together_are_bounded() -> None:
    async with serving(DoorOptions(connections_limit=2)) as (door, port):
        held = [
            await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.1.{n}", 0))
            for n in (1, 2)
        ]
        await until(lambda: door.open == 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await ends(reader)
        for _, one in (*held, (reader, writer)):
            one.close()


async def test_many_refusals_are_one_line_in_the_journal(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(DoorOptions(connections_limit=1)) as (door, port):
        _, held = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: door.open == 1)
        for _ in range(50):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await ends(reader)
            writer.close()
        held.close()
        assert door.refused == 50
    assert len([one for one in caplog.records if "connection refused" in one.message]) == 1


@pytest.mark.parametrize("says", [b"", b"POST / HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_who_does_not_finish_its_headers_is_closed(says: bytes) -> None:
    async with serving(DoorOptions(headers_deadline_seconds=0.3)) as (door, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(says)

        async def drip() -> None:
            while says:
                writer.write(b"a")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        assert await ends(reader)
        dripping.cancel()
        writer.close()
        assert door.late == 1
        await until(lambda: door.open == 0)


async def test_headers_that_come_in_pieces_are_whole_headers() -> None:
    async with serving(DoorOptions(headers_deadline_seconds=0.4)) as (door, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r", b"\n\r", b"\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)
        # The body has a deadline of its own, with the handler.
        await asyncio.sleep(0.6)
        writer.write(b"here")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert door.late == 0
        writer.close()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    command += " -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [*command.split(), "-keyout", str(folder / "key"), "-out", str(folder / "cert")],
        check=True,
        capture_output=True,
    )
    return folder


async def test_tls_counts_from_the_first_byte_and_serves(keys: Path) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(keys / "cert", keys / "key")
    server.load_verify_locations(keys / "cert")
    server.verify_mode = ssl.CERT_OPTIONAL
    client = ssl.create_default_context(cafile=keys / "cert")
    own = ssl.create_default_context(cafile=keys / "cert")
    own.load_cert_chain(keys / "cert", keys / "key")
    options = DoorOptions(headers_deadline_seconds=0.5, connections_per_address_limit=4)
    async with serving(options, server) as (door, port):
        assert await ask(port, client) == "here"
        assert await ask(port, own) == "here with a certificate"
        for _ in range(20):
            assert await ask(port, client) == "here"
        await until(lambda: door.open == 0)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        await until(lambda: door.open == 4)
        with pytest.raises(aiohttp.ClientError):
            await ask(port, client)
        assert all([await ends(reader) for reader, _ in silent])
        await until(lambda: door.open == 0)
        # Plain HTTP and garbage at the door of TLS leave nothing behind.
        for said in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01garbage"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            with_answer = await asyncio.wait_for(reader.read(), 10)
            assert b"HTTP/1.1 200" not in with_answer
            writer.close()
        await until(lambda: door.open == 0)
        assert await ask(port, client) == "here"
        for _, writer in silent:
            writer.close()


async def spoken_before_accepted(port: int, tls: ssl.SSLContext) -> bytes:
    """The beginning of the answer to somebody whose first words of TLS are in the kernel before
    the loop can have accepted the connection."""
    loop = asyncio.get_running_loop()
    heard, said = ssl.MemoryBIO(), ssl.MemoryBIO()
    secure = tls.wrap_bio(heard, said, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", port)) as one:
        with contextlib.suppress(ssl.SSLWantReadError):
            secure.do_handshake()
        one.sendall(said.read())  # nothing was awaited since the call began
        one.setblocking(False)

        async def until_done(step: Callable[[], object]) -> object:
            while True:
                with contextlib.suppress(ssl.SSLWantReadError):
                    return step()
                await loop.sock_sendall(one, said.read())
                more = await loop.sock_recv(one, 65_536)
                assert more, "closed in the middle"
                heard.write(more)

        async with asyncio.timeout(10):
            await until_done(secure.do_handshake)
            secure.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nhere")
            await loop.sock_sendall(one, said.read())
            answer = await until_done(lambda: secure.read(100))
    assert isinstance(answer, bytes)
    return answer


@LOOPS
def test_who_speaks_tls_before_it_is_accepted_is_heard(
    keys: Path, factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_early(keys))


async def _early(keys: Path) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(keys / "cert", keys / "key")
    client = ssl.create_default_context(cafile=keys / "cert")
    async with serving(DoorOptions(), server) as (door, port):
        answers = await asyncio.gather(*(spoken_before_accepted(port, client) for _ in range(8)))
        assert all(answer.startswith(b"HTTP/1.1 200 OK") for answer in answers)
        # Gone before the head has looked: with some words said, and with none.
        for said in (b"", b"\x16\x03\x01"):
            with socket.create_connection(("127.0.0.1", port)) as one:
                one.sendall(said)
        assert (await spoken_before_accepted(port, client)).startswith(b"HTTP/1.1 200 OK")
        await until(lambda: door.open == 0 and not door.shaking)


@pytest.mark.parametrize(
    "scene",
    [
        test_one_address_cannot_take_the_place_of_others,
        test_all_addresses_together_are_bounded,
        test_headers_that_come_in_pieces_are_whole_headers,
    ],
)
def test_the_bounds_hold_on_the_heads_own_loop(
    scene: Callable[[], Coroutine[None, None, None]],
) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(scene())


def test_tls_serves_on_the_heads_own_loop(keys: Path) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(test_tls_counts_from_the_first_byte_and_serves(keys))


def test_addresses_count_as_one_sender_each() -> None:
    assert address_of(("10.0.0.1", 5)) == "10.0.0.1"
    assert address_of(("2001:db8:1:2:3::4", 5, 0, 0)) == "2001:db8:1:2::/64"
    assert address_of(("::ffff:10.0.0.1", 5, 0, 0)) == "10.0.0.1"
    assert address_of(("fe80::1%eth0", 5, 0, 0)) == "fe80::/64"
    assert address_of("") == ""


def test_the_bound_leaves_files_for_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.gate.door.resource.getrlimit", lambda _: (1024, 4096))
    assert Door(DoorOptions()).limit == 512
    monkeypatch.setattr("daemon.gate.door.resource.getrlimit", lambda _: (65536, 65536))
    assert Door(DoorOptions()).limit == 40_000
    assert Door(DoorOptions(connections_limit=9)).limit == 9
