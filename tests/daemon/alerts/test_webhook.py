"""The webhook against a real server that fails, hangs, redirects or is not there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from daemon.alerts.active import Alert
from daemon.alerts.outbox import SendOptions
from daemon.alerts.tell import AlertOptions, Alerts
from daemon.alerts.webhook import Webhook, WebhookError, read_url


class Receiver:
    """A server that answers by a script of statuses (then 200) and keeps what it took."""

    def __init__(self, *script: int | str) -> None:
        self.script = list(script)
        self.asked = 0
        self.taken: list[dict[str, Any]] = []
        self.released = asyncio.Event()

    async def handle(self, request: web.Request) -> web.Response:
        self.asked += 1
        step = self.script.pop(0) if self.script else 200
        if step == "hang":
            await self.released.wait()
            return web.Response()
        if step == "redirect":
            return web.Response(status=302, headers={"Location": "/elsewhere"})
        if step == 429:
            return web.Response(status=429, headers={"Retry-After": "7"})
        if step == 200:
            self.taken.append(await request.json())
        return web.Response(status=int(step))

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/{tail:.*}", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook/secret-token"
        finally:
            self.released.set()
            await runner.cleanup()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(webhook: Webhook) -> AsyncIterator[None]:
    task = asyncio.create_task(webhook.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def hook(url: str, waits: list[float], **options: Any) -> Webhook:
    async def wait(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    return Webhook(url, SendOptions(**options), monotonic=time.monotonic, wait=wait)


async def test_messages_arrive_in_order_also_after_failures() -> None:
    receiver = Receiver(500, 503, 200, 500)
    waits: list[float] = []
    async with receiver.serving() as url:
        webhook = hook(url, waits)
        async with running(webhook):
            for number in range(5):
                webhook.offer({"n": number})
            await until(lambda: webhook.sent == 5)
    assert [message["n"] for message in receiver.taken] == [0, 1, 2, 3, 4]
    assert webhook.pending() == []
    assert webhook.dropped == 0


async def test_waits_grow_and_are_bounded() -> None:
    receiver = Receiver(*[500] * 8)
    waits: list[float] = []
    async with receiver.serving() as url:
        webhook = hook(url, waits, longest_wait_seconds=16)
        async with running(webhook):
            webhook.offer({})
            await until(lambda: webhook.sent == 1)
    expected = [1, 2, 4, 8, 16, 16, 16, 16]
    assert all(0.7 * e <= w <= 1.3 * e for w, e in zip(waits, expected, strict=True))


async def test_a_server_that_asks_for_patience_gets_it() -> None:
    receiver = Receiver(429)
    waits: list[float] = []
    async with receiver.serving() as url:
        webhook = hook(url, waits)
        async with running(webhook):
            webhook.offer({})
            await until(lambda: webhook.sent == 1)
    assert waits[0] >= 5


async def test_a_hanging_server_costs_one_deadline_and_is_asked_again() -> None:
    receiver = Receiver("hang")
    waits: list[float] = []
    async with receiver.serving() as url:
        webhook = hook(url, waits, deadline_seconds=0.2)
        async with running(webhook):
            webhook.offer({"n": 1})
            await until(lambda: webhook.sent == 1)
    assert receiver.asked == 2
    assert len(waits) == 1


async def test_a_message_that_is_refused_for_good_does_not_block_the_next() -> None:
    receiver = Receiver(404, "redirect")
    async with receiver.serving() as url:
        webhook = hook(url, [])
        async with running(webhook):
            for number in range(3):
                webhook.offer({"n": number})
            await until(lambda: webhook.sent == 1)
    assert [message["n"] for message in receiver.taken] == [2]
    assert webhook.dropped == 2
    assert receiver.asked == 3


async def test_a_full_queue_drops_the_oldest_and_counts() -> None:
    webhook = hook("http://127.0.0.1:9/", [], queue_limit=3)
    for number in range(10):
        webhook.offer({"n": number})
    assert [message["n"] for message in webhook.pending()] == [7, 8, 9]
    assert webhook.dropped == 7


async def test_a_message_that_nobody_takes_is_given_up_in_the_end() -> None:
    now = 0.0

    async def wait(seconds: float) -> None:
        nonlocal now
        now += seconds
        await asyncio.sleep(0)

    options = SendOptions(give_up_seconds=600, deadline_seconds=1)
    webhook = Webhook("http://127.0.0.1:9/", options, monotonic=lambda: now, wait=wait)
    webhook.offer({})
    async with running(webhook):
        await until(lambda: webhook.dropped == 1)
    assert webhook.pending() == []
    assert now > 600


async def test_the_url_is_in_no_log(capsys: pytest.CaptureFixture[str]) -> None:
    receiver = Receiver(500, 404)
    async with receiver.serving() as url:
        webhook = hook(url, [])
        async with running(webhook):
            webhook.offer({"key": "k"})
            await until(lambda: webhook.dropped == 1)
    unreachable = hook("http://127.0.0.1:9/secret-token", [], give_up_seconds=0)
    async with running(unreachable):
        unreachable.offer({})
        await until(lambda: unreachable.dropped == 1)
    said = capsys.readouterr()
    assert "webhook_gave_up" in said.out + said.err
    assert "secret-token" not in said.out + said.err
    assert "secret-token" not in webhook.trouble + unreachable.trouble


async def test_a_dead_webhook_delays_no_alert(tmp_path: Path) -> None:
    receiver = Receiver(*["hang"] * 100)
    async with receiver.serving() as url:
        webhook = hook(url, [], deadline_seconds=30)
        alerts = Alerts(AlertOptions(), state_file=tmp_path / "alerts.json", ways=[webhook])
        async with running(webhook):
            begin = time.monotonic()
            for number in range(100):
                one = Alert(f"case/{number}", 3, "t", "", "n1", number * 10**9)
                assert len(alerts.update([one], number * 10**9)) >= 1
                await asyncio.sleep(0)
            assert time.monotonic() - begin < 25
            await until(lambda: receiver.asked == 1)
            assert len(webhook.pending()) == 100


async def test_what_was_delivered_is_not_sent_by_the_next_head(tmp_path: Path) -> None:
    receiver = Receiver()
    file = tmp_path / "alerts.json"
    async with receiver.serving() as url:
        webhook = hook(url, [])
        alerts = Alerts(AlertOptions(), state_file=file, ways=[webhook])
        async with running(webhook):
            alerts.update([Alert("case/1", 3, "t", "", "n1", 1)], 1)
            await until(lambda: '"webhook": []' in file.read_text())
    after = hook("http://127.0.0.1:9/", [])
    Alerts(AlertOptions(), state_file=file, ways=[after])
    assert after.pending() == []
    assert len(receiver.taken) == 1


@pytest.mark.parametrize(
    "text",
    ["", "ftp://host/", "http:///t0ken", "not a url", "http://a/ http://b/", "http://[", "h\xe9"],
)
def test_a_file_without_one_url_is_refused_without_quoting_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "url"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(WebhookError) as caught:
        read_url(file)
    assert not text or text not in str(caught.value)


def test_a_url_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("https://hooks.example/abc?d=e\n")
    assert read_url(file) == "https://hooks.example/abc?d=e"
    with pytest.raises(WebhookError, match="No such file"):
        read_url(tmp_path / "nosuch")


async def test_a_chat_service_gets_its_own_form() -> None:
    receiver = Receiver()
    async with receiver.serving() as url:
        webhook = Webhook(url, SendOptions(), monotonic=time.monotonic, form="slack")
        async with running(webhook):
            webhook.offer({"text": "[c1 critical] pid='<unknown>' & more", "key": "k", "jobs": []})
            webhook.offer({"text": "x" * 9000})
            await until(lambda: webhook.sent == 2)
    first, second = receiver.taken
    assert first == {"text": "[c1 critical] pid='&lt;unknown&gt;' &amp; more"}
    assert len(second["text"]) == 3000
