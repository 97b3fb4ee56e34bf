"""What a compromised agent may not do to others with its own token, nor to the head's memory."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from daemon.gate.admission import AdmissionOptions
from daemon.gate.gateway import GatewayOptions
from daemon.gate.tokens import parse_tokens
from tests.daemon.gate.test_gateway import post
from tests.daemon.head_stub import NODE_TOKEN, Head

VICTIM_TOKEN = "victim-token-0123456789"
XID = 'event,code=79,kind=xid,node=n2 severity=3,text="Xid 79"\n'


@pytest.fixture
async def head(tmp_path: Path) -> AsyncIterator[Head]:
    bounds = AdmissionOptions(series_per_node_limit=5)
    options = GatewayOptions(admission=bounds, pending_samples_limit=1000)
    tokens = parse_tokens(f"n1 {NODE_TOKEN}\nn2 {VICTIM_TOKEN}\n")
    started = await Head(tmp_path / "store", options, tokens).start()
    yield started
    await started.stop()


async def test_refused_lines_use_up_no_budget_of_the_node_that_they_name(head: Head) -> None:
    lines = "".join(f"event,kind=k{number},node=n2 severity=0\n" for number in range(5))
    assert (await post(head, lines))[0] == 403
    assert (await post(head, XID, VICTIM_TOKEN))[0] == 204


async def test_refused_lines_leave_no_series_behind(head: Head) -> None:
    lines = "".join(f"risk,k=k{number},node=n1 a=0\n" for number in range(5))
    assert (await post(head, lines))[0] == 400
    assert head.gateway.admission.series == 0


@pytest.mark.parametrize(
    "line",
    [
        "fabric,node=n1,subnet=ib manager_up=0\n",
        'event,code=link,kind=inventory,node=n1 severity=0,device="mlx5_0/1",text="switch=1"\n',
    ],
)
async def test_a_node_says_nothing_of_the_fabric(head: Head, line: str) -> None:
    status, answer, _ = await post(head, line)
    assert status == 400
    assert "alone" in answer["message"]


async def test_short_lines_without_number_are_counted_before_they_are_read(head: Head) -> None:
    body = gzip.compress(b"a\n" * 1001)
    status, answer, _ = await post(head, body, headers={"Content-Encoding": "gzip"})
    assert status == 413
    assert "send fewer at once" in answer["message"]


async def test_a_known_series_is_no_way_round_the_bound_of_fields(tmp_path: Path) -> None:
    bounds = AdmissionOptions(fields_limit=8, columns_per_node_limit=6, events_per_node_limit=3)
    head = await Head(tmp_path / "store", GatewayOptions(admission=bounds)).start()
    assert (await post(head, "cpu,node=n1 a=1"))[0] == 204
    many = ",".join(f"f{number}=1" for number in range(9))
    status, answer, _ = await post(head, f"cpu,node=n1 {many}")
    assert status == 400
    assert "more than 8 fields" in answer["message"]
    for number in range(9):
        await post(head, f"cpu,node=n1 g{number}=1")
    assert len(head.store.read("cpu", -(2**62), 2**62).column_names) == 2 + 6
    assert "column budget: n1" in head.gateway.loud()
    await head.stop()


async def test_a_flood_of_events_is_cut_at_the_days_budget_and_said(tmp_path: Path) -> None:
    bounds = AdmissionOptions(events_per_node_limit=30)
    tokens = parse_tokens(f"n1 {NODE_TOKEN}\nn2 {VICTIM_TOKEN}\n")
    head = await Head(tmp_path / "store", GatewayOptions(admission=bounds), tokens).start()
    lines = "".join(f'event,code=79,kind=xid,node=n1 severity=3,text="t{n}"\n' for n in range(100))
    status, answer, _ = await post(head, lines)
    assert (status, answer["accepted"]) == (400, 30)
    assert "event budget: n1 has sent 30 events today" in answer["message"]
    assert len(head.store.events("n1")) == 30
    assert (await post(head, XID, VICTIM_TOKEN))[0] == 204
    assert head.gateway.loud() == "n1: event budget: n1 has sent 30 events today"
    await head.stop()


async def test_a_sender_of_too_many_bytes_is_turned_away_before_its_body_is_read(
    tmp_path: Path,
) -> None:
    options = GatewayOptions(burst_bytes_limit=100_000, bytes_per_second_limit=1.0)
    tokens = parse_tokens(f"n1 {NODE_TOKEN}\nn2 {VICTIM_TOKEN}\n")
    head = await Head(tmp_path / "store", options, tokens).start()
    body = gzip.compress(b"# a comment is bytes as well\n" * 5000)
    assert (await post(head, body, headers={"Content-Encoding": "gzip"}))[0] == 204
    taken = head.gateway.counts.bytes
    status, answer, headers = await post(head, body, headers={"Content-Encoding": "gzip"})
    assert (status, answer["code"]) == (429, "too many requests")
    assert int(headers["Retry-After"]) > 10_000
    assert head.gateway.counts.bytes == taken
    assert (await post(head, XID, VICTIM_TOKEN))[0] == 204
    assert head.gateway.loud() == "n1 sends too much"
    await head.stop()


async def test_what_the_decoder_remembers_is_bounded_in_bytes(head: Head) -> None:
    decoder = head.gateway._decoder
    for number in range(50):
        await post(head, f"m,node=n1,t={number}{'x' * 30_000} f=1")
        await post(head, f"m,node=n1 {'y' * 30_000}{number}=1")
    kept = sum(map(len, decoder._heads)) + sum(len(w) for ws in decoder._layouts for w in ws)
    assert kept < 20_000


async def test_who_has_no_token_keeps_no_connection(head: Head) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", head.port)
    writer.write(b"POST /api/v2/write HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    said = await asyncio.wait_for(reader.read(), 10)  # to its end
    assert said.startswith(b"HTTP/1.1 401")
    writer.close()


async def test_bodies_that_come_letter_by_letter_hold_up_nobody_else(tmp_path: Path) -> None:
    options = GatewayOptions(requests_limit=20, requests_per_node_limit=4)
    tokens = parse_tokens(f"n1 {NODE_TOKEN}\nn2 {VICTIM_TOKEN}\n")
    head = await Head(tmp_path / "store", options, tokens).start()
    held = []
    for _ in range(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", head.port)
        writer.write(
            b"POST /api/v2/write HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n"
            b"Authorization: Token " + NODE_TOKEN.encode() + b"\r\n\r\nh"
        )
        held.append((reader, writer))
    refused = [reader for reader, _ in held[4:]]
    for reader in refused:
        assert b" 429 " in await asyncio.wait_for(reader.readline(), 10)
    assert head.gateway.turnstile.under_way == 4
    assert (await post(head, XID, VICTIM_TOKEN))[0] == 204
    for _, writer in held:
        writer.close()
    await head.stop()


async def test_one_batch_whose_body_comes_over_two_connections_at_once_is_stored_once(
    head: Head,
) -> None:
    """An agent gives up on a slow request and sends again; the first then arrives as well."""
    body = b"host,node=n1 a=1\n"  # without a time: twice would be two rows
    request = (
        f"POST /api/v2/write HTTP/1.1\r\nHost: h\r\nAuthorization: Token {NODE_TOKEN}\r\n"
        f"X-Tocsin-Batch: 0123abcd:1\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    connections = [await asyncio.open_connection("127.0.0.1", head.port) for _ in range(2)]
    for _, writer in connections:
        writer.write(request + body[:3])
        await writer.drain()
    while head.gateway.turnstile.under_way < 2:
        await asyncio.sleep(0.01)
    for reader, writer in connections:
        writer.write(body[3:])
        await writer.drain()
        assert b" 204 " in await reader.readline()
        writer.close()
    assert len(head.accepted) == 1
    assert head.gateway.counts.repeated_batches == 1


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"--x\r\n\r\n"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data; name"),
        ("application/x-www-form-urlencoded; charset=none", b"q=CREATE+DATABASE+a"),
        ("application/x-www-form-urlencoded", b"q=%ff%00&" * 90),
        ("text/plain", b""),
    ],
)
async def test_a_form_that_is_none_is_answered_in_words(head: Head, kind: str, body: bytes) -> None:
    headers = {"Authorization": f"Token {NODE_TOKEN}", "Content-Type": kind}
    async with (
        aiohttp.ClientSession() as session,
        session.post(head.url + "/query", data=body, headers=headers) as response,
    ):
        assert response.status == (200 if b"CREATE" in body else 400)


async def test_a_form_that_comes_letter_by_letter_is_given_up(tmp_path: Path) -> None:
    head = await Head(tmp_path / "store", GatewayOptions(body_deadline_seconds=0.2)).start()
    reader, writer = await asyncio.open_connection("127.0.0.1", head.port)
    said = f"POST /query HTTP/1.1\r\nHost: x\r\nAuthorization: Token {NODE_TOKEN}\r\n"
    writer.write(f"{said}Content-Length: 4000\r\n\r\nq=".encode())
    assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 400")
    writer.close()
    await head.stop()
