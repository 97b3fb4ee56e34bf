"""``/api/v1/model``: what ``tocsin model`` asks, and what it may ask for (the socket only)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from aiohttp import web

from daemon.head import Head
from daemon.learning.shelf import ShelfError
from daemon.operators import to_the_end
from daemon.page.api import reply, subject, user
from daemon.page.view import Refused


def model_readers(head: Head) -> list[web.RouteDef]:
    """GET: status, shelf and scoreboard."""

    async def status(request: web.Request) -> web.Response:
        del request
        return reply(await asyncio.to_thread(head.learning.status))

    return [web.get("/api/v1/model", status)]


def model_verbs(head: Head) -> list[web.RouteDef]:
    """POST: an operator's word, recorded with the name that the kernel gives."""

    async def promote(request: web.Request) -> web.Response:
        name, who = subject(request), user(request)
        return await _said(head.learning_jobs.promote(name, who, f"by {who}'s word"))

    async def rollback(request: web.Request) -> web.Response:
        return await _said(head.learning_jobs.rollback(user(request)))

    async def retrain(request: web.Request) -> web.Response:
        who = user(request)
        return reply({"text": await head.by_hand(head.learning_jobs.ask, who)})

    return [
        web.post("/api/v1/model/promote/{name}", promote),
        web.post("/api/v1/model/rollback", rollback),
        web.post("/api/v1/model/retrain", retrain),
    ]


async def _said(word: Coroutine[Any, Any, str]) -> web.Response:
    try:
        text = await to_the_end(word)
    except ShelfError as error:
        raise Refused(str(error)) from error
    return reply({"text": text})
