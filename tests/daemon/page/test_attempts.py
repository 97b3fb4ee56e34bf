"""Guessing a login at the page is slow, and locks nobody out who has entered."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from daemon.gate.tokens import TokenFile
from daemon.page.app import PageOptions, page_app
from daemon.page.attempts import EACH_SECONDS, FREE, FREE_OF_ALL, KEPT, Attempts
from daemon.page.guard import guarded
from tests.daemon.page.pretend import PretendHead


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def login(name: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()


def test_after_some_failures_each_further_one_takes_its_time() -> None:
    clock = Clock()
    tries = Attempts(clock)
    told = [tries.failed("192.0.2.7", f"x{i}") for i in range(FREE)]
    assert told == [False] * (FREE - 1) + [True], "told once"
    assert tries.wait_seconds("192.0.2.7", "x") == EACH_SECONDS
    assert tries.wait_seconds("192.0.2.8", "x") == 0, "another address"
    clock.now += EACH_SECONDS + 0.1
    assert tries.wait_seconds("192.0.2.7", "x") == 0
    tries.failed("192.0.2.7", "x")
    assert tries.wait_seconds("192.0.2.7", "x") > 0
    clock.now += FREE * EACH_SECONDS + 1
    for _ in range(FREE - 1):
        tries.failed("192.0.2.7", "x")
    assert tries.wait_seconds("192.0.2.7", "x") == 0, "all is forgiven in time"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2001:db8::1", "2001:db8::ffff:2"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::2%eth1"),
        ("", ""),
    ],
)
def test_one_client_is_one_whatever_it_calls_itself(one: str, other: str) -> None:
    tries = Attempts(Clock())
    for i in range(FREE):
        tries.failed(one, f"x{i}")
    assert tries.wait_seconds(other, "x") > 0


def test_many_addresses_together_are_slow_too_and_take_no_memory() -> None:
    clock = Clock()
    tries = Attempts(clock)
    for i in range(FREE_OF_ALL):
        tries.failed(f"10.0.{i // 256}.{i % 256}", "x")
    assert tries.wait_seconds("192.0.2.99", "x") > 0
    for i in range(KEPT + 100):
        tries.failed(f"10.{i // 65536}.{i // 256 % 256}.{i % 256}", "x")
        tries.entered(f"y{i}")
    assert len(tries._of) <= KEPT
    assert len(tries._known) <= KEPT


def test_a_login_that_was_right_is_looked_at_all_the_same_until_it_is_wrong() -> None:
    tries = Attempts(Clock())
    tries.entered("ann's")
    for i in range(FREE):
        tries.failed("127.0.0.1", f"x{i}")
    assert tries.wait_seconds("127.0.0.1", "ann's") == 0
    tries.failed("127.0.0.1", "ann's")  # taken out of the file
    assert tries.wait_seconds("127.0.0.1", "ann's") > 0


async def test_at_the_page_a_right_guess_too_many_is_not_even_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "logins"
    file.write_text("zoe a-secret-of-her-own\nann another-secret-here\n")
    file.chmod(0o600)
    clock = Clock()

    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application(middlewares=[guarded(frozenset(), "", TokenFile(file), Attempts(clock))])
    app.router.add_get("/", hello)
    async with TestClient(TestServer(app)) as client:

        async def status(header: str = "") -> int:
            headers = {"Authorization": header} if header else {}
            async with client.get("/", headers=headers) as answer:
                if answer.status == 429:
                    assert int(answer.headers["Retry-After"]) >= 1
                    assert "too many failed logins" in (await answer.json())["error"]
                    assert "Content-Security-Policy" in answer.headers
                return answer.status

        zoe, ann = login("zoe", "a-secret-of-her-own"), login("ann", "another-secret-here")
        assert await status(zoe) == 200
        for _ in range(3 * FREE):
            assert await status() == 401, "a browser's first request has no login yet"
        for i in range(FREE):
            assert await status(login("ann", f"guess-number-{i:05}")) == 401
        assert await status(login("ann", "guess-number-99999")) == 429
        assert await status(ann) == 429, "or a guesser would see which one was right"
        assert await status(zoe) == 200, "she has entered before"
        clock.now += EACH_SECONDS + 0.1
        assert await status(ann) == 200


async def test_a_page_without_a_login_counts_nothing() -> None:
    async with TestClient(TestServer(page_app(PretendHead(4), PageOptions()))) as client:
        for _ in range(3 * FREE):
            async with client.get("/", headers={"Authorization": "Basic eDp5"}) as answer:
                assert answer.status == 200
