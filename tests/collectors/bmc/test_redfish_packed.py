"""Answers of BMCs that are packed: read where they are honest, bounded where they are not."""

from __future__ import annotations

import gzip

import aiohttp
import pytest
from aiohttp import web

from collectors.bmc.redfish_http import BODY_LIMIT_BYTES, Client, HttpError, session
from collectors.bmc.targets import Secrets
from tests.collectors.bmc.test_bmc_hostile import with_bmc


def client_of(base: str) -> Client:
    return Client(session(), base, Secrets(b"admin", b"secret"), None, basic=True)


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (gzip.compress(b" " * (BODY_LIMIT_BYTES + 1)), "over 16777216 bytes"),
        (gzip.compress(b"") * 400_000, "several in one"),
        (gzip.compress(b'{"Name": "BMC"}')[:-9], "cut off"),
        (b"\x1f\x8b nothing of the kind", "cannot be unpacked"),
    ],
    ids=["bomb", "four hundred thousand streams", "cut", "noise"],
)
def test_a_packed_answer_unpacks_to_no_more_than_its_share(packed: bytes, words: str) -> None:
    async def handler(request: web.Request) -> web.Response:
        asked.append(request.headers["Accept-Encoding"])
        return web.Response(body=packed, headers={"Content-Encoding": "gzip"})

    async def use(http: aiohttp.ClientSession, base: str) -> None:
        del http
        client = client_of(base)
        async with client.http:
            with pytest.raises(HttpError, match=words):
                await client.get("/redfish/v1")

    asked: list[str] = []
    with_bmc(handler, use)
    assert asked == ["identity"]


def test_a_bmc_that_packs_what_nobody_asked_it_to_pack_is_read() -> None:
    async def handler(request: web.Request) -> web.Response:
        kind = request.path.rsplit("/", 1)[-1]
        body = gzip.compress(b'{"Name": "BMC"}')
        return web.Response(body=body, headers={"Content-Encoding": kind})

    async def use(http: aiohttp.ClientSession, base: str) -> None:
        del http
        client = client_of(base)
        async with client.http:
            assert await client.get("/redfish/gzip") == {"Name": "BMC"}
            with pytest.raises(HttpError, match="packed as 'br', which we did not ask for"):
                await client.get("/redfish/br")

    with_bmc(handler, use)
