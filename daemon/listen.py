"""The head's three ears: the gateway for agents, the page for eyes, the socket for operators.

Each is an aiohttp application on a listener of its own, so that a page in trouble costs no
reading, and what may act is reachable only through the socket's file permissions.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import socket
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

import structlog
from aiohttp import web

from daemon.gate.door import Door, DoorOptions, Guarded

log = structlog.get_logger("tocsin.listen")

# A kept connection costs a file and a few KiB; agents come each few seconds.
KEEPALIVE_SECONDS = 75.0
SHUTDOWN_SECONDS = 3.0
BACKLOG = 4096
# A turn of the event loop takes in so many: when ten thousand agents connect at once, the
# requests of those that are in must not wait for all the others.
ACCEPTED_AT_ONCE = 16


class ListenError(Exception):
    """A listener could not be opened. The text says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Address:
    """``host:port`` as it stands in the configuration."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads ``host:port`` or ``[v6]:port``; ValueError says what is wrong."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or not 0 <= int(port) <= 65535:
            raise ValueError(f"{text!r} is not host:port")
        return cls(host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104 (as configured)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Listeners:
    """Opens and closes applications; ``close`` ends what ``open`` began."""

    def __init__(self) -> None:
        self._runners: list[web.AppRunner] = []
        self._servers: list[asyncio.Server] = []
        self.doors: list[Door] = []
        self._sockets: list[Path] = []

    async def open_tcp(
        self,
        app: web.Application,
        address: Address,
        tls: ssl.SSLContext | None = None,
        bounds: DoorOptions | None = None,
    ) -> Address:
        """Serves ``app`` at ``address``; gives back the address with its real port."""
        runner = await self._runner(app)
        handler = runner.server
        assert handler is not None
        door = Door(bounds or DoorOptions(), str(address))
        try:
            server = await asyncio.get_running_loop().create_server(
                lambda: Guarded(door, handler, tls),
                address.host,
                address.port,
                backlog=ACCEPTED_AT_ONCE,
                reuse_address=True,
            )
        except OSError as error:
            raise ListenError(
                f"cannot listen on {address}: {error.strerror or error}; "
                "is another head running, or the port taken? (ss -ltnp)"
            ) from error
        for one in server.sockets:
            _wait_in_kernel(one.fileno())
        self._servers.append(server)
        self.doors.append(door)
        return Address(address.host, server.sockets[0].getsockname()[1])

    async def open_unix(self, app: web.Application, path: Path, group: str) -> None:
        """Serves ``app`` on a unix socket that its owner and ``group`` may open."""
        path.parent.mkdir(parents=True, exist_ok=True)
        await _clear(path)
        runner = await self._runner(app)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Closed to all until the group is set: nobody slips in between.
            before = os.umask(0o177)
            try:
                listener.bind(str(path))
            finally:
                os.umask(before)
            _hand_to(path, group)
        except OSError as error:
            listener.close()
            raise ListenError(
                f"cannot open the socket {path}: {error.strerror or error}"
            ) from error
        self._sockets.append(path)
        await web.SockSite(runner, listener, backlog=BACKLOG).start()

    async def close(self) -> None:
        """Ends every listener; answers under way get a few seconds."""
        for server in self._servers:
            server.close()
        for door in self.doors:
            door.close()
        self._servers.clear()
        for runner in reversed(self._runners):
            await runner.cleanup()
        self._runners.clear()
        for path in self._sockets:
            _remove(path)
        self._sockets.clear()

    async def _runner(self, app: web.Application) -> web.AppRunner:
        runner = web.AppRunner(
            app,
            access_log=None,
            # Handlers bound a body before they unpack it.
            auto_decompress=False,
            handle_signals=False,
            keepalive_timeout=KEEPALIVE_SECONDS,
            shutdown_timeout=SHUTDOWN_SECONDS,
        )
        await runner.setup()
        self._runners.append(runner)
        return runner


def _wait_in_kernel(handle: int) -> None:
    """asyncio accepts as many at once as it tells the kernel to hold; the kernel holds more."""
    with socket.socket(fileno=os.dup(handle)) as same:
        same.listen(BACKLOG)


async def _clear(path: Path) -> None:
    """Removes a socket that a killed head left; refuses one that still answers."""
    if not _is_socket(path):
        return
    try:
        _, writer = await asyncio.wait_for(asyncio.open_unix_connection(path), 2.0)
    except (ConnectionRefusedError, FileNotFoundError):
        _remove(path)
        return
    except OSError as error:  # a head that is too busy to answer is a head
        raise ListenError(
            f"another head seems to listen at {path}: {error or 'no answer'}"
        ) from error
    writer.close()
    raise ListenError(f"another head already listens at {path}")


def _is_socket(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"{path} exists and is no socket; move it away or set [head] socket")
    return True


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _hand_to(path: Path, group: str) -> None:
    if not group:
        path.chmod(0o600)
        return
    try:
        gid = grp.getgrnam(group).gr_gid
        os.chown(path, -1, gid)
        path.chmod(0o660)
    except (KeyError, PermissionError):
        path.chmod(0o600)
        log.warning("operators_group_unusable", group=group, socket=str(path))
