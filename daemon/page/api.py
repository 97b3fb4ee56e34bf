"""The JSON API, version 1: read by the page and, over the unix socket, by the command line.

====  ==================================  ==================================================
GET   /api/v1/status                      FleetView
GET   /api/v1/nodes?since=REVISION        {revision, full, nodes: [NodeView], gone: [name]}
GET   /api/v1/nodes/NODE                  NodeDetail
GET   /api/v1/decisions?limit=&node=      {decisions: [DecisionView]}, newest first
GET   /api/v1/series?node=&measurement=&field=&minutes=&points=
                                          {series: [SeriesView]}; field may come many times
GET   /api/v1/explain/SUBJECT             Explanation of a node or of a decision's id
POST  /api/v1/approve/ID, deny/ID         {text}
POST  /api/v1/verdict/ID                  {text}; the body is {"right": true} or false
POST  /api/v1/resume/NODE                 {text}; also prove/NODE, lock/NODE and unlock/NODE
POST  /api/v1/breaker/close               {text}
GET   /api/v1/me                          {user, words}: who is logged in at the page, and may what
====  ==================================  ==================================================

All POST verbs exist on the operator's socket; approve and deny also at the page, for people with
a login of their own, who are recorded as ``page:NAME``. Every error is ``{"error": text}``: 400 for
a question that makes no sense, 404 for what does not exist, 409 when the head refuses, 503 when
it could not answer.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from daemon.page.changes import Changes, Difference
from daemon.page.guard import person
from daemon.page.peer import peer_of
from daemon.page.view import HeadView, Refused, UnknownSubject, plain
from daemon.policy.cases import VIA_PAGE

# Slurm names and hex ids: what can be asked for by name.
_SUBJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_FIELD = re.compile(r"[a-z][a-z0-9_]{0,63}")

# However many people watch, the head is asked for its nodes at most this often.
_NODES_EVERY_SECONDS = 0.8

_ANSWER_WITHIN_SECONDS = 20.0
_COMPRESS_IN_THREAD_BYTES = 128 * 1024
_FIELDS_LIMIT = 16

_LOG = structlog.get_logger("tocsin.page")


def reply(value: object, status: int = 200) -> web.Response:
    """``value`` as a JSON response that no cache keeps."""
    body = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    response = web.Response(
        body=body,
        status=status,
        content_type="application/json",
        zlib_executor_size=_COMPRESS_IN_THREAD_BYTES,
    )
    response.headers["Cache-Control"] = "no-store"
    if len(body) > 2000:
        response.enable_compression()
    return response


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns what handlers raise into the API's errors; a fault of ours is logged, not shown."""
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_SECONDS):
            return await handler(request)
    except UnknownSubject as error:
        return reply({"error": str(error)}, 404)
    except Refused as error:
        return reply({"error": str(error)}, 409)
    except web.HTTPException as error:
        return reply({"error": error.text or error.reason}, error.status)
    except TimeoutError:
        return reply({"error": "the head did not answer in time; it goes on working"}, 503)
    except Exception as error:
        _LOG.exception("page_request_failed", path=request.path)
        return reply({"error": f"{type(error).__name__}; the head's log says more"}, 503)


class Api:
    """The handlers over one ``HeadView``."""

    def __init__(
        self,
        head: HeadView,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        first_revision: int | None = None,
    ) -> None:
        self._head = head
        self._monotonic = monotonic
        self._changes = Changes(
            time.time_ns() // 1_000_000 if first_revision is None else first_revision
        )
        self._looked_seconds: float | None = None
        self._looking = asyncio.Lock()

    def readers(self) -> list[web.RouteDef]:
        """The GET routes."""
        return [
            web.get("/api/v1/status", self.status),
            web.get("/api/v1/nodes", self.nodes),
            web.get("/api/v1/nodes/{name}", self.node),
            web.get("/api/v1/decisions", self.decisions),
            web.get("/api/v1/series", self.series),
            web.get("/api/v1/explain/{name}", self.explain),
        ]

    def verbs(self) -> list[web.RouteDef]:
        """The POST routes: an operator's word."""
        return [
            web.post("/api/v1/approve/{name}", self.approve),
            web.post("/api/v1/deny/{name}", self.deny),
            web.post("/api/v1/verdict/{name}", self.verdict),
            web.post("/api/v1/resume/{name}", self.resume),
            web.post("/api/v1/prove/{name}", self.prove),
            web.post("/api/v1/lock/{name}", self.lock),
            web.post("/api/v1/unlock/{name}", self.unlock),
            web.post("/api/v1/breaker/close", self.close_breaker),
        ]

    def answers(self) -> list[web.RouteDef]:
        """What the page adds to the readers: yes and no, and to whom they are open."""
        return [
            web.get("/api/v1/me", self.me),
            web.post("/api/v1/approve/{name}", self.approve),
            web.post("/api/v1/deny/{name}", self.deny),
        ]

    async def me(self, request: web.Request) -> web.Response:
        """Who is logged in at the page, and which words are open to them."""
        who = person.get()
        return reply({"user": who, "words": ["approve", "deny"] if who else []})

    async def status(self, request: web.Request) -> web.Response:
        """The head and the fleet at a glance."""
        return reply(plain(await self._head.fleet()))

    async def nodes(self, request: web.Request) -> web.Response:
        """All nodes, or those that changed after ``since``."""
        since = int(number(request, "since", -1, -1, 2**53))
        found: Difference
        async with self._looking:
            now = self._monotonic()
            before = self._looked_seconds
            if before is None or now - before >= _NODES_EVERY_SECONDS:
                nodes = await self._head.nodes()
                # In a thread: comparing 10,000 rows must not hold up the gateway.
                await asyncio.to_thread(self._changes.look, nodes)
                self._looked_seconds = now
            found = self._changes.since(since)
        return await asyncio.to_thread(
            reply,
            {
                "revision": found.revision,
                "full": found.full,
                "nodes": found.rows,
                "gone": found.gone,
            },
        )

    async def node(self, request: web.Request) -> web.Response:
        """One node in full."""
        return reply(plain(await self._head.node(subject(request))))

    async def decisions(self, request: web.Request) -> web.Response:
        """The newest decisions."""
        limit = int(number(request, "limit", 100, 1, 1000))
        node = named(request, "node", _SUBJECT, "")
        return reply({"decisions": plain(await self._head.decisions(limit, node))})

    async def series(self, request: web.Request) -> web.Response:
        """Fields of one node over time."""
        node = named(request, "node", _SUBJECT)
        measurement = named(request, "measurement", _FIELD, "gpu")
        fields = request.query.getall("field", [])
        if not fields or len(fields) > _FIELDS_LIMIT or not all(map(_FIELD.fullmatch, fields)):
            raise web.HTTPBadRequest(text=f"give 1 to {_FIELDS_LIMIT} times field=name")
        minutes = number(request, "minutes", 60, 0.5, 60 * 24 * 366)
        points = int(number(request, "points", 300, 10, 5000))
        found = await self._head.series(node, measurement, fields, minutes, points)
        return reply({"series": plain(found)})

    async def explain(self, request: web.Request) -> web.Response:
        """Why a node is, or is not, drained; or one decision rebuilt."""
        return reply(plain(await self._head.explain(subject(request))))

    async def approve(self, request: web.Request) -> web.Response:
        """Yes to a waiting drain."""
        return reply({"text": await self._head.approve(subject(request), user(request))})

    async def deny(self, request: web.Request) -> web.Response:
        """No to a waiting drain."""
        return reply({"text": await self._head.deny(subject(request), user(request))})

    async def resume(self, request: web.Request) -> web.Response:
        """Lifts our own drain."""
        return reply({"text": await self._head.resume(subject(request), user(request))})

    async def prove(self, request: web.Request) -> web.Response:
        """Tests a node that we hold."""
        return reply({"text": await self._head.prove(subject(request), user(request))})

    async def lock(self, request: web.Request) -> web.Response:
        """Keeps tocsin's hands off a node."""
        return reply({"text": await self._head.lock(subject(request), user(request), True)})

    async def unlock(self, request: web.Request) -> web.Response:
        """Lets tocsin judge a locked node again."""
        return reply({"text": await self._head.lock(subject(request), user(request), False)})

    async def close_breaker(self, request: web.Request) -> web.Response:
        """Lets drains through again after the breaker tripped."""
        return reply({"text": await self._head.close_breaker(user(request))})

    async def verdict(self, request: web.Request) -> web.Response:
        """Whether a decision was right."""
        right = await flag(request, "right")
        return reply({"text": await self._head.verdict(subject(request), right, user(request))})


def subject(request: web.Request) -> str:
    """The node or id in the path."""
    name = request.match_info["name"]
    if not _SUBJECT.fullmatch(name):
        raise web.HTTPBadRequest(text="a node's name or a decision's id is letters, digits, . _ -")
    return name


def user(request: web.Request) -> str:
    """The operator: by the kernel's word, or by their own login at the page."""
    peer = peer_of(request)
    if peer is None and person.get():
        return f"{VIA_PAGE}{person.get()}"
    if peer is None:
        raise Refused("the caller is gone, or came over no unix socket")
    return peer.spoken


def named(
    request: web.Request, key: str, pattern: re.Pattern[str], default: str | None = None
) -> str:
    """The query's ``key``, which must match ``pattern``."""
    value = request.query.get(key, "")
    if not value and default is not None:
        return default
    if not pattern.fullmatch(value):
        raise web.HTTPBadRequest(text=f"{key} is missing or is no name")
    return value


def number(request: web.Request, key: str, default: float, low: float, high: float) -> float:
    """The query's ``key`` as a number within [low, high]."""
    text = request.query.get(key, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise web.HTTPBadRequest(text=f"{key} must be a number from {low:g} to {high:g}")
    return value


async def body(request: web.Request) -> dict[str, Any]:
    """The JSON body, which must be an object; nothing is an empty one."""
    raw = await request.read()
    try:
        found = json.loads(raw) if raw else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise web.HTTPBadRequest(text="the body must be a JSON object")
    return found


async def flag(request: web.Request, key: str) -> bool:
    """``key`` of the JSON body, which must be true or false."""
    value = (await body(request)).get(key)
    if not isinstance(value, bool):
        raise web.HTTPBadRequest(text=f'the body must be {{"{key}": true}} or false')
    return value
