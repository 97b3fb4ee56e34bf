"""``/api/v1/mutes``: what is muted, and an operator's word to mute (the socket only)."""

from __future__ import annotations

import math
from typing import Any

from aiohttp import web

from daemon.alerts.mutes import HOURS_MOST, until
from daemon.head import Head
from daemon.operators import to_the_end
from daemon.page.api import body, reply, subject, user
from daemon.page.view import Refused, plain

_TEXT_CHARACTERS = 200


def mute_readers(head: Head) -> list[web.RouteDef]:
    """GET: what is muted now."""

    async def mutes(request: web.Request) -> web.Response:
        del request
        return reply({"mutes": plain(head.alerts.mutes(head.clock.now_ns()))})

    return [web.get("/api/v1/mutes", mutes)]


def mute_verbs(head: Head) -> list[web.RouteDef]:
    """POST: an operator's word, recorded with the name that the kernel gives."""

    async def mute(request: web.Request) -> web.Response:
        target, who = subject(request), user(request)
        said = await body(request)
        hours, text = _hours(said.get("hours")), _text(said.get("text", ""))
        return await _said(lambda: _mute(head, target, hours, text, who))

    async def unmute(request: web.Request) -> web.Response:
        target, who = subject(request), user(request)
        return await _said(lambda: _unmute(head, target, who))

    async def _said(word: Any) -> web.Response:
        return reply({"text": await to_the_end(head.by_hand(word))})

    return [
        web.post("/api/v1/mute/{name}", mute),
        web.post("/api/v1/unmute/{name}", unmute),
    ]


def _mute(head: Head, target: str, hours: float, text: str, who: str) -> str:
    """In the hand's thread: the word is in the audit before it counts."""
    now_ns = head.clock.now_ns()
    end_ns = until(now_ns, hours)
    node = target if target in head.nodes else ""
    words = f"{target} for {hours:g} h" + (f": {text}" if text else "")
    head.ledger.say(now_ns, user=who, verb="mute", node=node, subject=target, text=words)
    try:
        made = head.alerts.mute(target, end_ns, who, text, now_ns)
    except ValueError as error:
        raise Refused(str(error)) from error
    meant = [one.title for one in head.active if made.hides(one, now_ns)]
    more = f"; of what is active now: {'; '.join(meant[:5])}" if meant else ""
    more = more or "; nothing that is active now is meant"
    return f"{target} is {made.words.partition(': ')[0]}{more}"


def _unmute(head: Head, target: str, who: str) -> str:
    now_ns = head.clock.now_ns()
    if not any(one.target == target for one in head.alerts.mutes(now_ns)):
        raise Refused(f"{target} is not muted; tocsin mute lists what is")
    node = target if target in head.nodes else ""
    head.ledger.say(now_ns, user=who, verb="unmute", node=node, subject=target)
    head.alerts.unmute(target)
    head.wake()
    return f"{target} is no longer muted: what goes on is sent now"


def _hours(value: object) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not 0 < float(value) <= HOURS_MOST:  # type: ignore[arg-type]
        raise web.HTTPBadRequest(text=f"hours: a number over 0 and at most {HOURS_MOST:g}")
    return float(value)  # type: ignore[arg-type]


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _TEXT_CHARACTERS or not value.isprintable():
        raise web.HTTPBadRequest(text=f"text: one line of at most {_TEXT_CHARACTERS} characters")
    return value
