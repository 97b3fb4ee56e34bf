"""A head that stands by: it opens nothing but the operator's socket, and waits for the lease.

Store and ledger lie on storage that both heads reach, and belong to the one that acts. So all
that a standby can say is that it stands by, and who acts.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable

import structlog
from aiohttp import web

from daemon import __version__
from daemon.config import Config
from daemon.listen import Listeners
from daemon.page.api import errors_as_json, reply
from daemon.page.peer import peers_only
from daemon.page.view import STANDS_BY, Refused
from daemon.slurm.lease import Lease

log = structlog.get_logger("tocsin.standby")

# sysexits(3) EX_TEMPFAIL: the service manager starts the head again, and it stands by.
LOST_EXIT_CODE = 75


def make_lease(config: Config) -> Lease | None:
    """The lease of a head that shares its cluster with another; None for one that is alone."""
    options = config.head.lease
    if options.directory is None:
        return None
    return Lease(options.directory, f"{socket.gethostname()}:{os.getpid()}", options.seconds)


def end_at_once(lease: Lease) -> None:
    """What a head does that has lost its lease: it ends, as if it were killed.

    A clean end would write: a checkpoint, the ledger, the store. They are the other head's now.
    """
    log.critical("lease_lost", why=lease.held(), exit_code=LOST_EXIT_CODE)
    os._exit(LOST_EXIT_CODE)


def standby_app(lease: Lease, config: Config) -> web.Application:
    """The operator's socket of a standby: its status, and a refusal for every other word."""
    app = web.Application(middlewares=[peers_only(config.head.operators_group), errors_as_json])

    async def status(request: web.Request) -> web.Response:
        del request
        words = await asyncio.to_thread(lease.words)
        return reply(
            {
                "role": STANDS_BY,
                "role_text": words,
                "cluster": config.slurm.cluster,
                "version": __version__,
                "mode": config.mode.value,
            }
        )

    async def refuse(request: web.Request) -> web.Response:
        del request
        words = await asyncio.to_thread(lease.words)
        raise Refused(f"this head stands by: {words}; ask the head that acts")

    app.router.add_get("/api/v1/status", status)
    app.router.add_route("*", "/{anything:.*}", refuse)
    return app


async def stand_by(
    lease: Lease, config: Config, stop: threading.Event, ready: Callable[[str], None]
) -> bool:
    """Waits for the lease; False when ``stop`` was set before. ``ready`` is told of it once."""
    if await asyncio.to_thread(lease.try_take):
        return True
    words = await asyncio.to_thread(lease.words)
    log.info("head_stands_by", why=words)
    listeners = Listeners()
    await listeners.open_unix(
        standby_app(lease, config), config.head.socket, config.head.operators_group
    )
    ready(f"stands by: {words}")
    try:
        return await asyncio.to_thread(lease.wait, stop)
    finally:
        await listeners.close()
