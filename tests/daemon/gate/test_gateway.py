import asyncio
import base64
import gzip
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from collectors.lines import encode
from collectors.sample import sample
from daemon.gate.admission import AdmissionOptions
from daemon.gate.gateway import BATCH_HEADER, URGENT_HEADER, BatchKey, GatewayOptions
from daemon.store.errors import StoreUnavailableError
from daemon.store.tables import to_rows
from tests.daemon.head_stub import NODE_TOKEN, RELAY_TOKEN, Head


@pytest.fixture
async def head(tmp_path: Path) -> AsyncIterator[Head]:
    bounds = AdmissionOptions(past_days_limit=1e6, future_hours_limit=1e6, series_per_node_limit=5)
    started = await Head(tmp_path / "store", GatewayOptions(admission=bounds)).start()
    yield started
    await started.stop()


async def post(
    head: Head,
    body: bytes | str,
    token: str | None = NODE_TOKEN,
    path: str = "/api/v2/write",
    headers: dict[str, str] | None = None,
    **query: str,
) -> tuple[int, Any, Any]:
    """(status, JSON answer, headers)."""
    sent = dict(headers or {})
    if token is not None:
        sent["Authorization"] = f"Token {token}"
    async with (
        aiohttp.ClientSession() as session,
        session.post(head.url + path, data=body, params=query, headers=sent) as response,
    ):
        text = await response.read()
        return response.status, json.loads(text) if text else None, response.headers


def stored(head: Head, measurement: str = "host") -> list[dict[str, Any]]:
    return to_rows(head.store.read(measurement, -(2**62), 2**62))


NOW = "1780000000000000000"
LINE = f"host,node=n1 load_1m=0.5 {NOW}\n"


async def test_204_means_that_the_store_has_it(head: Head) -> None:
    assert (await post(head, LINE))[0] == 204
    assert stored(head) == [{"time_ns": int(NOW), "node": "n1", "load_1m": 0.5}]


@pytest.mark.parametrize("auto_decompress", [False, True])
async def test_gzip_precision_and_v1_paths(tmp_path: Path, auto_decompress: bool) -> None:
    head = await Head(tmp_path / "s", auto_decompress=auto_decompress).start()
    head.gateway.admission.options = AdmissionOptions(past_days_limit=1e6)
    body = gzip.compress(b"host,node=n1 load_1m=2i 1780000001")
    headers = {"Content-Encoding": "gzip"}
    status, _, _ = await post(head, body, path="/write", headers=headers, precision="s", db="x")
    assert status == 204
    assert stored(head) == [{"time_ns": 1780000001 * 10**9, "node": "n1", "load_1m": 2.0}]
    await head.stop()


async def test_no_token_or_an_unknown_one_is_401_and_stores_nothing(head: Head) -> None:
    for token in (None, "", "wrong-token-9876543210"):
        status, answer, headers = await post(head, LINE, token)
        assert status == 401
        assert answer["code"] == "unauthorized"
        assert headers["WWW-Authenticate"].startswith("Token")
        assert token is None or not token or token not in json.dumps(answer)
    assert stored(head) == []


@pytest.mark.parametrize("scheme", ["Token {}", "Bearer {}", "Token user:{}", "token {}"])
async def test_every_way_to_say_a_token(head: Head, scheme: str) -> None:
    headers = {"Authorization": scheme.format(NODE_TOKEN)}
    assert (await post(head, LINE, None, headers=headers))[0] == 204


async def test_basic_authentication_as_v1_clients_do(head: Head) -> None:
    headers = {"Authorization": "Basic " + base64.b64encode(f"x:{NODE_TOKEN}".encode()).decode()}
    assert (await post(head, LINE, None, "/write", headers))[0] == 204


async def test_a_node_writes_for_itself_only_and_a_relay_for_all(head: Head) -> None:
    foreign = f"host,node=n2 load_1m=1 {NOW}"
    status, answer, _ = await post(head, foreign)
    assert status == 403
    assert answer["message"] == 'this token may write for node n1 only, not tag node="n2"'
    status, answer, _ = await post(head, LINE + foreign)
    assert (status, answer["refused"], answer["accepted"]) == (400, [2], 1)
    assert (await post(head, f"host load_1m=1 {NOW}"))[0] == 403
    assert (await post(head, foreign, RELAY_TOKEN))[0] == 204
    assert [row["node"] for row in stored(head)] == ["n1", "n2"]


async def test_what_only_the_head_writes_is_refused_from_a_node(head: Head) -> None:
    status, answer, _ = await post(head, f"decision,node=n1,action=drain probability=1 {NOW}")
    assert status == 400
    assert "by the head alone" in answer["message"]


async def test_good_lines_are_kept_and_bad_ones_named(head: Head) -> None:
    body = f"{LINE}host,node=n1 load_1m=oops {NOW}\nhost,node=n1 load_1m=3 1780000000000000001\nx\n"
    status, answer, headers = await post(head, body)
    assert status == 400
    assert answer["message"].startswith("partial write: line 2: invalid number: oops")
    assert answer["message"].endswith("dropped=2")
    assert answer["error"] == answer["message"]
    assert (answer["accepted"], answer["refused"]) == (2, [2, 4])
    assert answer["problems"][1] == {"line": 4, "problem": "missing fields", "text": "x"}
    assert headers["X-Influxdb-Error"]
    assert [row["load_1m"] for row in stored(head)] == [0.5, 3.0]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("gpu,node=n1,gpu=0,job_id=7 power_watts=1", "may not be a tag"),
        ('gpu,node=n1,gpu=0 power_watts="x"', "is a number"),
        ("host,node=../etc load_1m=1", "no node name"),
        (f"host,node=n1,x={'y' * 300} load_1m=1", "longer than"),
        ("host,node=n1,x=a\tb load_1m=1", "unprintable"),
        ("host,node=n1," + ",".join(f"t{i}=1" for i in range(20)) + " f=1", "more than 12 tags"),
    ],
)
async def test_what_would_hurt_a_store_is_refused(head: Head, line: str, why: str) -> None:
    status, answer, _ = await post(head, f"{line} {NOW}", RELAY_TOKEN)
    assert status == 400
    assert why in answer["message"]


async def test_a_source_that_explodes_is_cut_and_the_others_are_not(head: Head) -> None:
    body = "\n".join(f"disk,node=n1,device=d{i} media_errors_total=0 {NOW}" for i in range(9))
    status, answer, _ = await post(head, body)
    assert status == 400
    assert answer["accepted"] == 5
    assert "series budget: n1 has 5 series of disk already" in answer["message"]
    assert head.gateway.admission.refused["disk"] == 4
    # Series that are known, other measurements and other nodes go on.
    assert (await post(head, f"disk,node=n1,device=d2 media_errors_total=1 {NOW}"))[0] == 204
    assert (await post(head, LINE))[0] == 204
    other = f"disk,node=n2,device=d8 media_errors_total=0 {NOW}"
    assert (await post(head, other, RELAY_TOKEN))[0] == 204


async def test_a_time_far_off_is_refused_with_a_hint(head: Head) -> None:
    head.gateway.admission.options = AdmissionOptions()
    for line in ("host,node=n1 load_1m=1 1000000000", "host,node=n1 load_1m=1 4000000000000000000"):
        status, answer, _ = await post(head, line)
        assert status == 400
        assert "is the node's clock set?" in answer["message"]
    assert (await post(head, "host,node=n1 load_1m=1"))[0] == 204


async def test_bodies_are_bounded_before_and_after_unpacking(tmp_path: Path) -> None:
    options = GatewayOptions(body_limit_bytes=20_000, unpacked_limit_bytes=100_000)
    for auto_decompress in (False, True):
        head = Head(tmp_path / str(auto_decompress), options, auto_decompress=auto_decompress)
        await head.start()
        bomb = gzip.compress(b"\n" * 5_000_000)
        assert len(bomb) < 20_000
        gz = {"Content-Encoding": "gzip"}
        for body, headers in ((bomb, gz), (b"x" * 200_000, {})):
            status, answer, _ = await post(head, body, headers=headers)
            assert status == 413
            assert answer["code"] == "request too large"

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(100_000):
                yield b"#" * 1000 + b"\n"

        # No length is said beforehand: the door closes while the body still comes.
        try:
            status, _, _ = await post(head, endless())  # type: ignore[arg-type]
        except aiohttp.ClientError:
            status = 413  # it hung up, so the answer could not be read
        assert status == 413
        assert head.gateway.pending_bytes == 0
        await head.stop()


@pytest.mark.parametrize("body", [b"\x1f\x8b\x08garbage", gzip.compress(b"m f=1", mtime=0)[:-6]])
async def test_a_broken_gzip_is_400(head: Head, body: bytes) -> None:
    status, answer, _ = await post(head, body, headers={"Content-Encoding": "gzip"})
    assert status == 400
    assert answer["message"].startswith("gzip")


async def test_another_encoding_or_precision_is_refused(head: Head) -> None:
    assert (await post(head, LINE, headers={"Content-Encoding": "br"}))[0] == 415
    assert (await post(head, LINE, precision="fortnights"))[0] == 400


async def test_a_batch_that_comes_again_is_stored_and_judged_once(head: Head) -> None:
    key = {BATCH_HEADER: "0123abcd:7"}
    assert (await post(head, LINE, headers=key))[0] == 204
    again = LINE.replace("0.5", "9")
    assert (await post(head, again, headers=key))[0] == 204
    assert (await post(head, again, headers={BATCH_HEADER: "0123abcd:6"}))[0] == 204
    assert stored(head)[0]["load_1m"] == 0.5
    assert len(head.accepted) == 1
    assert (await post(head, again, headers={BATCH_HEADER: "0123abcd:8"}))[0] == 204
    # Another sender's batch of the same name is another batch.
    other = again.replace("n1", "n2")
    assert (await post(head, other, RELAY_TOKEN, headers=key))[0] == 204
    assert len(head.accepted) == 3
    assert (await post(head, again, headers={BATCH_HEADER: "nonsense"}))[0] == 400


async def test_a_batch_is_remembered_over_a_restart_of_the_head(tmp_path: Path) -> None:
    key = {BATCH_HEADER: "0123abcd:7"}
    for start in range(3):
        head = await Head(tmp_path / "store").start()
        assert (await post(head, "host,node=n1 load_1m=1", headers=key))[0] == 204
        assert len(head.accepted) == (1 if start == 0 else 0)
        head.store.roll(2**62, everything=True)
        await head.stop()


async def test_the_same_batch_twice_at_once_is_accepted_once(head: Head) -> None:
    release = asyncio.Event()
    calls = []

    async def slow(samples: Any, node: str, at: int, batch: BatchKey | None = None) -> None:
        calls.append(batch)
        await release.wait()

    head.gateway.accept = slow
    key = {BATCH_HEADER: "0123abcd:7"}
    both = [asyncio.create_task(post(head, LINE, headers=key)) for _ in range(2)]
    while head.gateway.counts.repeated_batches < 1:
        await asyncio.sleep(0.005)
    release.set()
    assert [(await answer)[0] for answer in both] == [204, 204]
    assert len(calls) == 1


async def test_a_foreign_batch_is_not_marked_as_done(head: Head) -> None:
    key = {BATCH_HEADER: "0123abcd:7"}
    assert (await post(head, f"host,node=n2 load_1m=1 {NOW}", headers=key))[0] == 403
    assert not head.store.seen(BatchKey("n1", "0123abcd", 7))


async def test_a_store_that_cannot_is_503_with_retry_after(head: Head) -> None:
    async def full(*_: Any) -> None:
        raise StoreUnavailableError("store /x: No space left on device; free space there")

    head.gateway.accept = full
    status, answer, headers = await post(head, LINE)
    assert status == 503
    assert "free space" in answer["message"]
    assert int(headers["Retry-After"]) >= 1


async def test_a_fault_of_the_head_is_500_without_its_secrets(head: Head) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError("password=hunter2")

    head.gateway.accept = broken
    status, answer, _ = await post(head, LINE)
    assert status == 500
    assert "hunter2" not in json.dumps(answer)


async def test_more_than_it_can_hold_is_429_before_memory_grows(tmp_path: Path) -> None:
    options = GatewayOptions(
        pending_samples_limit=3, lines_per_second_limit=0.1, burst_lines_limit=4
    )
    head = await Head(tmp_path / "store", options).start()
    release = asyncio.Event()

    async def slow(*_: Any) -> None:
        await release.wait()

    head.gateway.accept = slow
    lines = "\n".join(f"host,node=n1 load_1m={i}" for i in range(2))
    first = asyncio.create_task(post(head, lines, RELAY_TOKEN))
    while head.gateway._pending_samples < 2:
        await asyncio.sleep(0.005)
    status, answer, headers = await post(head, lines, RELAY_TOKEN)
    assert (status, answer["code"]) == (429, "too many requests")
    assert int(headers["Retry-After"]) >= 1
    release.set()
    assert (await first)[0] == 204
    # One node that sends far more than its share is asked to wait; others are not.
    assert (await post(head, lines))[0] == 204
    assert (await post(head, lines))[0] == 204
    assert (await post(head, lines))[0] == 429
    assert (await post(head, lines, RELAY_TOKEN))[0] == 204
    await head.stop()


async def test_ping_and_health_need_no_token(head: Head) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(head.url + "/ping") as response:
            assert response.status == 204
            assert response.headers["X-Influxdb-Version"]
        async with session.get(head.url + "/health") as response:
            assert response.status == 200
            assert (await response.json())["status"] == "pass"


async def test_influxdb_client_in_its_default_batching_mode(head: Head) -> None:
    influxdb_client = pytest.importorskip("influxdb_client")

    def write() -> None:
        with (
            influxdb_client.InfluxDBClient(head.url, RELAY_TOKEN, org="tocsin") as client,
            client.write_api() as api,
        ):
            assert client.ping()
            for number in range(300):
                point = influxdb_client.Point("host").tag("node", f"n{number % 3}")
                point = point.field("load_1m", float(number)).field("text_free", True)
                api.write("tocsin", record=point.time(1_780_000_000_000_000_000 + number))

    await asyncio.to_thread(write)
    assert len(stored(head)) == 300


async def test_many_writers_share_a_sync(head: Head) -> None:
    bodies = [
        encode([sample("host", 1_780_000_000_000_000_000 + n, {"load_1m": 1.0}, node=f"n{n % 7}")])
        for n in range(200)
    ]
    async with aiohttp.ClientSession(headers={"Authorization": f"Token {RELAY_TOKEN}"}) as session:

        async def one(body: bytes) -> int:
            async with session.post(head.url + "/api/v2/write", data=body) as response:
                return response.status

        assert set(await asyncio.gather(*map(one, bodies))) == {204}
    assert len(stored(head)) == 200
    assert head.store.counts.commits < 100


async def test_a_body_whose_length_is_not_said_counts_as_it_grows(tmp_path: Path) -> None:
    options = GatewayOptions(pending_bytes_limit=50_000)
    head = await Head(tmp_path / "store", options).start()

    async def slowly() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"#" * 1000 + b"\n"

    try:
        status, _, _ = await post(head, slowly())  # type: ignore[arg-type]
    except aiohttp.ClientError:
        status = 429  # it hung up, so the answer could not be read
    assert status == 429
    bomb = gzip.compress(b"#" + b"x" * 90_000)
    assert (await post(head, bomb, headers={"Content-Encoding": "gzip"}))[0] == 429
    assert head.gateway.pending_bytes == 0
    assert (await post(head, "host,node=n1 load_1m=1"))[0] == 204
    await head.stop()


@pytest.mark.parametrize("odd", ["\n", "\r", "\r\nSet-Cookie: x=1", "\0", "\x1b[31m", "\u00fc"])
async def test_what_a_refused_line_holds_cannot_break_the_answer(head: Head, odd: str) -> None:
    status, answer, headers = await post(head, f'host,node=n1 f="a{odd}b",g=oops {NOW}')
    assert status == 400
    assert answer["refused"]
    assert headers["X-Influxdb-Error"].isprintable()
    assert "Set-Cookie" not in headers


async def test_any_body_is_answered_in_words_and_never_with_500(head: Head) -> None:
    rng = random.Random(17)
    pieces = [b"host,node=n1 ", b"load_1m=1", b" ", b"\n", b'"', b"\\", b",", b"=", b"\xff", b"\0"]
    pieces += [
        b"1780000000000000000",
        b"event,node=n1,kind=x ",
        b'text="a',
        b"9" * 30,
        b"\xed\xa0\x80",
    ]
    statuses = set()
    for number in range(200):
        body = b"".join(rng.choices(pieces, k=rng.randrange(1, 25)))
        if number % 5 == 0:
            body = gzip.compress(body)[: rng.randrange(5, 200)]
        status, answer, _ = await post(
            head, body, RELAY_TOKEN, headers={"Content-Encoding": "gzip"}
        )
        assert status in (204, 400), (body, answer)
        assert status == 204 or answer["message"]
        statuses.add(status)
    assert statuses == {204, 400}
    head.store.roll(2**62, everything=True)
    assert not list((head.store.directory / "damaged").iterdir())


async def test_severe_events_pass_where_others_are_turned_away(tmp_path: Path) -> None:
    head = await Head(tmp_path / "store", GatewayOptions(requests_limit=1)).start()
    release, whole = asyncio.Event(), head.gateway.accept

    async def slow(*arguments: Any) -> None:
        await release.wait()
        await whole(*arguments)

    head.gateway.accept = slow
    line = "host,node=n1 load_1m=1"
    first = asyncio.create_task(post(head, line))
    while not head.gateway.turnstile.under_way:
        await asyncio.sleep(0.005)
    status, answer, headers = await post(head, line)
    assert (status, answer["message"]) == (429, "too many writes under way")
    assert int(headers["Retry-After"]) >= 1
    urgent = asyncio.create_task(post(head, line, headers={URGENT_HEADER: "1"}))
    while head.gateway.turnstile.under_way < 2:
        await asyncio.sleep(0.005)
    release.set()
    assert [(await one)[0] for one in (first, urgent)] == [204, 204]
    assert head.gateway.turnstile.under_way == 0
    await head.stop()
