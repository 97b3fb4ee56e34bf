"""The API as page and command line meet it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from daemon.gate.tokens import TokenFile
from daemon.page.api import Api
from daemon.page.app import PageOptions, operator_app, page_app
from daemon.page.guard import WORD_HEADER, host_allowed, login_right
from daemon.page.peer import Peer, may_operate
from tests.daemon.page.pretend import PretendHead

Client = TestClient[web.Request, web.Application]


@pytest.fixture
def head() -> PretendHead:
    return PretendHead(64)


@pytest.fixture
async def client(head: PretendHead) -> AsyncIterator[Client]:
    clock = iter(range(0, 10_000, 5))
    api = Api(head, monotonic=lambda: float(next(clock)), first_revision=1000)
    async with TestClient(TestServer(page_app(head, PageOptions(), api))) as made:
        yield made


async def answer(client: Client, path: str, status: int = 200) -> dict:  # type: ignore[type-arg]
    response = await client.get(path)
    assert response.status == status, await response.text()
    return await response.json()  # type: ignore[no-any-return]


async def test_status_shows_mode_counts_and_the_heads_time_in_utc(client: Client) -> None:
    fleet = await answer(client, "/api/v1/status")
    assert fleet["mode"] == "act"
    assert fleet["time"] == "2026-08-29T10:40:00.000Z"
    assert sum(fleet["states"].values()) == fleet["nodes"] == 64


async def test_nodes_are_all_there_first_and_only_the_changed_ones_later(
    client: Client, head: PretendHead
) -> None:
    first = await answer(client, "/api/v1/nodes")
    assert first["full"]
    assert len(first["nodes"]) == 64
    head.change("gpu-0002", state="down")
    later = await answer(client, f"/api/v1/nodes?since={first['revision']}")
    assert not later["full"]
    assert [(row["name"], row["state"]) for row in later["nodes"]] == [("gpu-0002", "down")]


async def test_an_age_that_grows_by_seconds_is_no_change(client: Client, head: PretendHead) -> None:
    first = await answer(client, "/api/v1/nodes")
    head.change("gpu-0002", heard_seconds=9.0)
    later = await answer(client, f"/api/v1/nodes?since={first['revision']}")
    assert later["nodes"] == []
    head.change("gpu-0002", heard_seconds=500.0)
    later = await answer(client, f"/api/v1/nodes?since={later['revision']}")
    assert [row["name"] for row in later["nodes"]] == ["gpu-0002"]


async def test_a_viewer_of_an_earlier_head_gets_everything_anew(client: Client) -> None:
    for stale in (-1, 999, 5_000_000):
        assert (await answer(client, f"/api/v1/nodes?since={stale}"))["full"]


async def test_a_node_that_left_the_fleet_is_not_kept(client: Client, head: PretendHead) -> None:
    first = await answer(client, "/api/v1/nodes")
    del head._nodes[3]
    later = await answer(client, f"/api/v1/nodes?since={first['revision']}")
    assert later["full"]
    assert "gpu-0004" not in [row["name"] for row in later["nodes"]]


async def test_a_node_in_full_has_its_gpus_and_the_verdict(client: Client) -> None:
    detail = await answer(client, "/api/v1/nodes/gpu-0018")
    assert len(detail["gpus"]) == 8
    assert "fell off the bus" in detail["verdict"]
    assert detail["timeline"][0]["time"].endswith("Z")


async def test_series_carry_missing_readings_as_null(client: Client) -> None:
    path = "/api/v1/series?node=gpu-0018&field=power_watts&field=temperature_celsius&points=100"
    found = (await answer(client, path))["series"]
    assert [one["field"] for one in found] == ["power_watts", "temperature_celsius"]
    sick = next(line for line in found[0]["lines"] if line["name"] == "gpu3")
    assert sick["values"][-1] is None
    assert sick["values"][0] > 0


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/api/v1/nodes/nosuch", 404, "nosuch"),
        ("/api/v1/explain/ffff", 404, "ffff"),
        ("/api/v1/nodes/%3Cscript%3E", 400, "letters"),
        ("/api/v1/decisions?limit=0", 400, "limit"),
        ("/api/v1/decisions?limit=lots", 400, "limit"),
        ("/api/v1/decisions?limit=nan", 400, "limit"),
        ("/api/v1/series?node=gpu-0001", 400, "field"),
        ("/api/v1/series?node=gpu-0001&field=a;b", 400, "field"),
        ("/api/v1/series?field=power_watts", 400, "node"),
        ("/api/v1/series?node=gpu-0001&field=power_watts&minutes=1e9", 400, "minutes"),
        ("/api/v1/series?node=gpu-0001&field=nosuch_watts", 404, "nosuch_watts"),
        ("/nosuch", 404, "Not Found"),
    ],
)
async def test_a_senseless_question_gets_its_reason(
    client: Client, path: str, status: int, word: str
) -> None:
    assert word in (await answer(client, path, status))["error"]


async def test_a_fault_of_ours_is_no_page_of_ours(client: Client, head: PretendHead) -> None:
    async def broken() -> None:
        raise RuntimeError("secret detail")

    head.fleet = broken  # type: ignore[method-assign,assignment]
    told = await answer(client, "/api/v1/status", 503)
    assert "secret" not in json.dumps(told)
    assert (await answer(client, "/api/v1/nodes"))["full"]


WORD = {WORD_HEADER: "approve"}


async def test_a_page_without_logins_can_not_act(client: Client, head: PretendHead) -> None:
    for path in ("/api/v1/resume/gpu-0018", "/api/v1/approve/77aa"):
        response = await client.post(path, headers=WORD)
        assert response.status == 403
        assert "login of their own" in (await response.json())["error"]
    assert await (await client.get("/api/v1/me")).json() == {"user": "", "words": []}
    assert head.words == []


def login(name: str, password: str) -> dict[str, str]:
    given = base64.b64encode(f"{name}:{password}".encode()).decode()
    return {"Authorization": f"Basic {given}"}


ZOES = "zoes-own-long-secret"


@pytest.fixture
async def personal(head: PretendHead, tmp_path: Path) -> AsyncIterator[Client]:
    file = tmp_path / "logins"
    file.write_text(f"zoe {ZOES}\nadam sha256:{hashlib.sha256(b'adams').hexdigest()}\n")
    file.chmod(0o600)
    options = PageOptions(secret="shared", logins=TokenFile(file))
    async with TestClient(TestServer(page_app(head, options))) as made:
        yield made


async def test_a_person_says_yes_at_the_page_and_is_recorded_by_name(
    personal: Client, head: PretendHead
) -> None:
    zoe = login("zoe", ZOES)
    told = await personal.get("/api/v1/me", headers=zoe)
    assert await told.json() == {"user": "zoe", "words": ["approve", "deny"]}
    response = await personal.post("/api/v1/approve/77aa", headers=zoe | WORD)
    assert response.status == 200
    adam = login("adam", "adams")
    await personal.post("/api/v1/deny/77aa", headers=adam | WORD)
    assert head.words == [("approve", "77aa", "page:zoe"), ("deny", "77aa", "page:adam")]


@pytest.mark.parametrize(
    ("name", "password"), [("zoe", "shared"), ("adam", ZOES), ("", ZOES), ("zoe", "wrong")]
)
async def test_nobody_speaks_in_anothers_name(
    personal: Client, head: PretendHead, name: str, password: str
) -> None:
    headers = login(name, password) | WORD
    response = await personal.post("/api/v1/approve/77aa", headers=headers)
    assert response.status in (401, 403)
    assert head.words == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {**WORD, "Origin": "https://evil.example"},
        {**WORD, "Origin": "null"},
        {**WORD, "Sec-Fetch-Site": "cross-site"},
        {**WORD, "Sec-Fetch-Site": "same-site"},
        {**WORD, "Host": "evil.example"},
    ],
)
async def test_a_word_that_another_site_sends_along_is_none(
    personal: Client, head: PretendHead, headers: dict[str, str]
) -> None:
    zoe = login("zoe", ZOES)
    response = await personal.post("/api/v1/approve/77aa", headers=zoe | headers)
    assert response.status in (403, 421)
    assert head.words == []


async def test_only_yes_and_no_are_said_at_the_page(personal: Client, head: PretendHead) -> None:
    zoe = login("zoe", ZOES)
    for verb in ("resume/gpu-0018", "lock/gpu-0018", "verdict/77aa", "breaker/close"):
        response = await personal.post(f"/api/v1/{verb}", headers=zoe | WORD)
        assert response.status in (404, 405), verb
    assert head.words == []


async def test_a_login_that_is_taken_out_of_the_file_is_gone_at_once(
    head: PretendHead, tmp_path: Path
) -> None:
    file = tmp_path / "logins"
    file.write_text(f"zoe {ZOES}\n")
    file.chmod(0o600)
    app = page_app(head, PageOptions(logins=TokenFile(file)))
    async with TestClient(TestServer(app)) as client:
        zoe = login("zoe", ZOES)
        assert (await client.get("/api/v1/status", headers=zoe)).status == 200
        file.write_text("# nobody\n")
        assert (await client.get("/api/v1/status", headers=zoe)).status == 401


async def test_while_the_logins_file_is_gone_or_damaged_people_may_look_and_not_speak(
    head: PretendHead, tmp_path: Path
) -> None:
    file = tmp_path / "logins"
    file.write_text(f"zoe {ZOES}\n")
    file.chmod(0o600)
    zoe = login("zoe", ZOES)
    app = page_app(head, PageOptions(logins=TokenFile(file)))
    async with TestClient(TestServer(app)) as client:

        async def says() -> int:
            assert (await client.get("/api/v1/status", headers=zoe)).status == 200
            return (await client.post("/api/v1/approve/77aa", headers=zoe | WORD)).status

        file.rename(tmp_path / "aside")  # somebody revokes them all
        assert await says() == 403
        (tmp_path / "aside").rename(file)
        assert await says() == 200
        file.write_text("a line that is no login\n")
        assert await says() == 403
        file.write_text(f"zoe {ZOES}\n")
        assert await says() == 200
    assert len(head.words) == 2


async def test_the_head_may_refuse_a_word_of_the_page(personal: Client) -> None:
    zoe = login("zoe", ZOES)
    response = await personal.post("/api/v1/approve/0000", headers=zoe | WORD)
    assert response.status == 409
    assert "waits for nobody" in (await response.json())["error"]


async def test_every_answer_forbids_foreign_and_inline_script(client: Client) -> None:
    for path in ("/", "/app.js", "/api/v1/status", "/nosuch"):
        response = await client.get(path)
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


async def test_static_files_name_nothing_outside(client: Client) -> None:
    for name in ("", "app.js", "grid.js", "chart.js", "panel.js", "words.js", "page.css"):
        response = await client.get("/" + name)
        text = await response.text()
        assert response.status == 200
        outside = text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in outside
        assert "https://" not in outside
        assert "innerHTML" not in text


async def test_a_foreign_host_header_is_refused(client: Client) -> None:
    response = await client.get("/api/v1/status", headers={"Host": "evil.example:8650"})
    assert response.status == 421


def test_hosts_that_mean_this_machine_are_allowed() -> None:
    none: frozenset[str] = frozenset()
    for header in ("localhost:8650", "127.0.0.1", "[::1]:8650", "LOCALHOST"):
        assert host_allowed(header, none)
    assert not host_allowed("head.example", none)
    assert not host_allowed("", none)
    assert host_allowed("head.example:80", frozenset({"head.example"}))


async def test_a_login_keeps_others_out(head: PretendHead) -> None:
    app = page_app(head, PageOptions(secret="open sesame"))
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/")).status == 401
        right = {"Authorization": "Basic " + base64.b64encode(b"ines:open sesame").decode()}
        assert (await client.get("/", headers=right)).status == 200
        wrong = {"Authorization": "Basic " + base64.b64encode(b"ines:open").decode()}
        assert (await client.get("/api/v1/status", headers=wrong)).status == 401


def test_a_broken_login_header_is_no_login() -> None:
    good = "Basic " + base64.b64encode(b"x:s3").decode()
    assert login_right(good, "s3")
    assert login_right("Bearer s3", "s3")
    for header in (
        "",
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"\xff:s3").decode(),
        "s3",
    ):
        assert not login_right(header, "s3")


def test_a_page_for_everybody_without_a_login_is_refused() -> None:
    assert "login" in PageOptions(host="0.0.0.0").problem()
    assert PageOptions(host="0.0.0.0", secret="s").problem() == ""
    assert PageOptions(host="::1").problem() == ""


async def over_socket(
    head: PretendHead, folder: Path, calls: list[tuple[str, str, str]], group: str = ""
) -> list[tuple[int, dict]]:  # type: ignore[type-arg]
    path = folder / "tocsin.sock"
    runner = web.AppRunner(operator_app(head, group))
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    try:
        connector = aiohttp.UnixConnector(str(path))
        async with aiohttp.ClientSession(connector=connector) as session:
            answers = []
            for method, target, body in calls:
                async with session.request(method, "http://tocsin" + target, data=body) as got:
                    answers.append((got.status, await got.json()))
            return answers
    finally:
        await runner.cleanup()


async def test_the_socket_records_the_user_that_the_kernel_names(
    head: PretendHead, tmp_path: Path
) -> None:
    import pwd

    me = pwd.getpwuid(os.getuid()).pw_name
    login = int(Path("/proc/self/loginuid").read_text())
    if login == 2**32 - 1 and os.getuid() == 0:
        me = "root (login unknown)"
    elif login not in (2**32 - 1, os.getuid()):  # these tests run under sudo
        me = f"{pwd.getpwuid(login).pw_name} (as {me})"
    told = await over_socket(
        head,
        tmp_path,
        [
            ("POST", "/api/v1/approve/77aa", ""),
            ("POST", "/api/v1/resume/gpu-0018", ""),
            ("POST", "/api/v1/lock/gpu-0002", "{}"),
            ("POST", "/api/v1/unlock/gpu-0002", "{}"),
            ("POST", "/api/v1/verdict/77aa", '{"right": false}'),
            ("POST", "/api/v1/breaker/close", "{}"),
            ("GET", "/api/v1/status", ""),
        ],
    )
    assert [status for status, _ in told] == [200] * 7
    assert head.words == [
        ("approve", "77aa", me),
        ("resume", "gpu-0018", me),
        ("lock", "gpu-0002", me),
        ("unlock", "gpu-0002", me),
        ("verdict False", "77aa", me),
        ("close_breaker", "", me),
    ]


async def test_what_the_head_refuses_comes_back_as_conflict(
    head: PretendHead, tmp_path: Path
) -> None:
    told = await over_socket(
        head,
        tmp_path,
        [
            ("POST", "/api/v1/resume/gpu-0009", ""),
            ("POST", "/api/v1/resume/nosuch", ""),
            ("POST", "/api/v1/verdict/77aa", '{"right": "yes"}'),
            ("POST", "/api/v1/verdict/77aa", "no json"),
        ],
    )
    assert [status for status, _ in told] == [409, 404, 400, 400]
    assert "not drained by tocsin" in told[0][1]["error"]
    assert head.words == []


def test_only_root_the_heads_user_and_the_group_may_operate() -> None:
    import grp

    stranger = Peer(1, 64123, 64123, "uid 64123")
    assert may_operate(Peer(1, 0, 0, "root"), "")
    assert not may_operate(stranger, "")
    assert not may_operate(stranger, "nosuchgroup")
    first = grp.getgrgid(0)
    assert may_operate(Peer(1, 64123, 0, "uid 64123"), first.gr_name)
    assert not may_operate(stranger, first.gr_name)


async def test_over_tcp_nobody_operates(head: PretendHead) -> None:
    async with TestClient(TestServer(operator_app(head, ""))) as client:
        response = await client.post("/api/v1/resume/gpu-0018")
        assert response.status == 403
    assert head.words == []


async def test_many_viewers_ask_the_head_for_its_nodes_once(head: PretendHead) -> None:
    asked = 0
    real = head.nodes

    async def counted():  # type: ignore[no-untyped-def]
        nonlocal asked
        asked += 1
        return await real()

    head.nodes = counted  # type: ignore[method-assign]
    api = Api(head, monotonic=lambda: 1.0, first_revision=1)
    async with TestClient(TestServer(page_app(head, PageOptions(), api))) as client:
        await asyncio.gather(*(client.get("/api/v1/nodes") for _ in range(20)))
    assert asked == 1
