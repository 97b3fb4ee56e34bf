"""``/api/v1/record``: what tocsin's own drains came to, for page, status and command line."""

from __future__ import annotations

import asyncio

from aiohttp import web

from daemon.drains.record import WINDOW_DAYS, Record, figures, read
from daemon.head import Head
from daemon.page.api import reply


def record_now(head: Head) -> Record:
    """Reads the ledger's tables: not in the event loop."""
    gpus = {name: node.gpus_configured for name, node in head.nodes.items()}
    now_ns = head.clock.now_ns()
    return read(head.store.database, gpus, now_ns, head.config.policy.cost)


def record_routes(head: Head) -> list[web.RouteDef]:
    """GET: for the page's listener and the operator's socket."""

    async def show(request: web.Request) -> web.Response:
        del request
        found = await asyncio.to_thread(record_now, head)
        told = {"days": WINDOW_DAYS, "unjudged": found.unjudged, "mode": head.config.mode.value}
        return reply({**figures(found), **told})

    return [web.get("/api/v1/record", show)]
