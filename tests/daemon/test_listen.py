"""The head's listeners on real sockets: who may come in, and what a dead head leaves behind."""

from __future__ import annotations

import contextlib
import grp
import os
import socket
import stat
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from daemon.listen import Address, ListenError, Listeners


def app(word: str = "here") -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        del request
        return web.Response(text=word)

    made = web.Application()
    made.router.add_get("/", answer)
    return made


async def ask(path: Path) -> str:
    connector = aiohttp.UnixConnector(str(path))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get("http://tocsin/") as response,
    ):
        return await response.text()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("10.0.0.1:86", "10.0.0.1", 86), ("[::1]:8650", "::1", 8650), (":0", "0.0.0.0", 0)],
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == Address(host, port)


@pytest.mark.parametrize("text", ["", "host", "host:", "host:http", "host:65536", "host:-1"])
def test_what_is_no_address_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        Address.parse(text)


def test_an_ipv6_address_reads_back() -> None:
    assert Address.parse(str(Address("::1", 8650))) == Address("::1", 8650)


async def test_a_socket_that_a_killed_head_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "run" / "tocsin.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    listeners = Listeners()
    await listeners.open_unix(app(), path, "")
    assert await ask(path) == "here"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await listeners.close()
    assert not path.exists()


async def test_a_second_head_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "tocsin.sock"
    first, second = Listeners(), Listeners()
    await first.open_unix(app("first"), path, "")
    with pytest.raises(ListenError, match="another head already listens"):
        await second.open_unix(app("second"), path, "")
    await second.close()
    assert await ask(path) == "first"
    gate = await first.open_tcp(app(), Address("127.0.0.1", 0))
    with pytest.raises(ListenError, match="is another head running, or the port taken"):
        await second.open_tcp(app(), gate)
    await second.close()
    await first.close()


async def test_a_head_too_busy_to_answer_keeps_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "tocsin.sock"
    with contextlib.ExitStack() as stack:
        busy, *waiting = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3))
        busy.bind(str(path))
        busy.listen(0)
        for one in waiting:  # the queue holds one more than listen(2) was told
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(str(path))
        with pytest.raises(ListenError, match="another head"):
            await Listeners().open_unix(app(), path, "")
    assert path.exists()


async def test_a_file_in_the_sockets_place_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tocsin.sock"
    path.write_text("a letter")
    with pytest.raises(ListenError, match="is no socket"):
        await Listeners().open_unix(app(), path, "")
    assert path.read_text() == "a letter"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a socket to any group")
async def test_the_operators_group_may_open_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "tocsin.sock"
    listeners = Listeners()
    await listeners.open_unix(app(), path, "daemon")
    assert path.stat().st_gid == grp.getgrnam("daemon").gr_gid
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    await listeners.close()


async def test_a_group_that_is_not_there_opens_to_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "tocsin.sock"
    listeners = Listeners()
    await listeners.open_unix(app(), path, "no-such-group")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await listeners.close()
