"""What BMCs tell the head of themselves, unasked: subscriptions at their EventService.

Off by default, for it writes one thing into each BMC (a subscription, which is taken out again in
the end) and opens a port on the head. Each BMC is given an address of its own with a secret in it;
who does not know the secret, or knocks from elsewhere than that BMC, is told nothing. As with
event streams, the log stays what counts: what comes here is not told again when the log is read.
DMTF DSP0266 12.1, schema EventDestination.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from collectors.bmc.redfish_http import Client, HttpError
from collectors.bmc.redfish_parts import text
from collectors.bmc.redfish_plan import links

BODY_LIMIT_BYTES = 1024 * 1024
BODY_SECONDS = 10.0
AT_ONCE_LIMIT, OF_ONE_LIMIT = 64, 16  # connections in all, and of one BMC
LIFE_SECONDS = 60.0
# What one BMC may send: a burst, and so many messages a second in the long run.
BURST_MESSAGES, MESSAGES_PER_SECOND = 60.0, 2.0
CHECK_SECONDS = 900.0
RETRY_SECONDS = 3_600.0
SECRET_BYTES = 24
OLD_LIMIT = 100


class Push(BaseModel):
    """Where BMCs send their events: ``listen`` on the head, ``url`` as BMCs reach it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    listen: str = Field(default="", pattern=r"^((\[[0-9A-Fa-f:]+\]|[0-9A-Za-z.-]+):\d{1,5})?$")
    url: str = Field(default="", pattern=r"^(https?://[^\s/?#]+)?$")
    certificate_file: str = ""
    key_file: str = ""
    plain: bool = False  # HTTP without TLS: the secrets can be read on the management network

    @property
    def on(self) -> bool:
        """Whether BMCs are to send their events."""
        return bool(self.listen)

    @property
    def base(self) -> str:
        """What stands before the secret in the addresses that BMCs are given."""
        return self.url or f"{'http' if self.plain else 'https'}://{self.listen}"


@dataclass
class _Sender:
    """One BMC that may send: from where, and what is done with it. Times are monotonic seconds."""

    addresses: frozenset[str]
    take: Callable[[bytes], None]
    allowed: float = BURST_MESSAGES
    at: float = 0.0

    def admit(self, now: float) -> bool:
        earned = (now - self.at) * MESSAGES_PER_SECOND
        self.allowed, self.at = min(BURST_MESSAGES, self.allowed + earned), now
        if self.allowed < 1.0:
            return False
        self.allowed -= 1.0
        return True


class Listener:
    """The port. ``open`` is called inside the loop of the BMCs; OSError where it cannot be had.

    A connection from elsewhere than a BMC that may send is closed before a byte of it is read,
    and no connection lasts longer than ``LIFE_SECONDS``.
    """

    def __init__(self, options: Push, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self.refused = 0  # connections and requests that were not let in
        self._monotonic = monotonic
        self._senders: dict[str, _Sender] = {}
        self._open: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._runner: web.AppRunner | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Listens, if it does not yet."""
        async with self._opening:
            if self._socket is not None:
                return
            options = self.options
            if not options.plain:
                self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                self._tls.load_cert_chain(options.certificate_file, options.key_file or None)
            host, _, port = options.listen.rpartition(":")
            family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
            listening = socket.create_server(
                (host.strip("[]"), int(port)), family=family, backlog=AT_ONCE_LIMIT
            )
            listening.setblocking(False)
            app = web.Application(client_max_size=BODY_LIMIT_BYTES)
            app.router.add_route("*", "/{name:.*}", self._answer)
            self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=15.0)
            await self._runner.setup()
            asyncio.get_running_loop().add_reader(listening.fileno(), self._accept)
            self._socket = listening

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            connection, place = self._socket.accept()
        except OSError:
            return
        address = _plain(str(place[0]))
        known = any(address in one.addresses for one in self._senders.values())
        full = self._open.total() >= AT_ONCE_LIMIT or self._open[address] >= OF_ONE_LIMIT
        if not known or full:
            self.refused += 1
            connection.close()
            return
        connection.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._serve(connection, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket, address: str) -> None:
        assert self._runner is not None
        assert self._runner.server is not None
        self._open[address] += 1
        transport: asyncio.BaseTransport | None = None
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                self._runner.server,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=BODY_SECONDS if self._tls else None,
            )
            end = self._monotonic() + LIFE_SECONDS
            # aiohttp tells nobody when a connection has ended: it is looked at.
            while not transport.is_closing() and self._monotonic() < end:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        except OSError:
            pass  # no TLS with it, or gone again
        finally:
            self._open[address] -= 1
            if transport is None:
                connection.close()
            elif isinstance(transport, asyncio.Transport):
                transport.abort()

    def admit(self, addresses: frozenset[str], take: Callable[[bytes], None]) -> str:
        """Lets one BMC in; the secret name under which it may send."""
        name = secrets.token_urlsafe(SECRET_BYTES)
        self._senders[name] = _Sender(addresses, take, at=self._monotonic())
        return name

    def dismiss(self, name: str) -> None:
        """What came under this name is no longer let in."""
        self._senders.pop(name, None)

    async def close(self) -> None:
        """Closes the port. May be called twice."""
        listening, self._socket = self._socket, None
        if listening is not None:
            asyncio.get_running_loop().remove_reader(listening.fileno())
            listening.close()
        for task in list(self._tasks):
            task.cancel()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        sender = self._senders.get(request.match_info["name"])
        # The same answer for a wrong name, a wrong place and a wrong method: nothing to learn.
        if sender is None or request.method != "POST" or _peer(request) not in sender.addresses:
            self.refused += 1
            return web.Response(status=404)
        if not sender.admit(self._monotonic()):
            return web.Response(status=429, headers={"Retry-After": "30"})
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.read()
        except TimeoutError:
            return web.Response(status=408)
        sender.take(body)
        return web.Response(status=204)


def _peer(request: web.Request) -> str:
    place = request.transport.get_extra_info("peername") if request.transport else None
    return _plain(str(place[0])) if place else ""


def _plain(address: str) -> str:
    """One spelling of an address: ``::ffff:10.0.0.1`` is ``10.0.0.1``."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


class Subscription:
    """Ours at one BMC. ``owner`` marks our own ones, which alone are ever taken out."""

    def __init__(self, listener: Listener, owner: str, take: Callable[[bytes], None]) -> None:
        self.fault = ""  # why there is none; empty when there is
        self._listener = listener
        self._owner = owner
        self._take = take
        self._name = ""
        self._uri = ""
        self._next = 0.0

    async def keep(self, client: Client, collection: str) -> None:
        """Sees to it that the BMC has our subscription; asks about it only now and then.

        What fails here is kept in ``fault`` and tried again much later; the polling goes on.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + RETRY_SECONDS
        try:
            await self._listener.open()
        except (OSError, ValueError) as error:
            where = self._listener.options.listen
            self.fault = f"push: {where} cannot be listened on: {error}"
            return
        try:
            if self._uri and await self._is_there(client):
                self._next = now + CHECK_SECONDS
                return
            await self._clean(client, collection)
            await self._subscribe(client, collection)
            self.fault, self._next = "", now + CHECK_SECONDS
        except HttpError as error:
            if error.kind in ("silent", "cut"):
                self._next = now + CHECK_SECONDS
                raise
            self.fault = f"push: no subscription: {error}"

    async def end(self, client: Client) -> None:
        """Takes our subscription out. Never raises."""
        uri, self._uri = self._uri, ""
        self._next = 0.0
        self._listener.dismiss(self._name)
        if uri:
            with contextlib.suppress(HttpError, TimeoutError):
                await asyncio.wait_for(client.delete(uri), 2.0)

    # ---- inside ----------------------------------------------------------------------------

    async def _is_there(self, client: Client) -> bool:
        try:
            return isinstance(await client.get(self._uri), dict)
        except HttpError as error:
            if error.kind != "missing":
                raise
            self._uri = ""
            return False

    async def _clean(self, client: Client, collection: str) -> None:
        """Takes out what an earlier run of ours left behind, and nothing of anybody else."""
        for uri in links(await client.get(collection))[:OLD_LIMIT]:
            with contextlib.suppress(HttpError):
                body = await client.get(uri)
                if not isinstance(body, dict):
                    continue
                to = text(body.get("Destination"))
                ours = to.startswith(self._listener.options.base + "/")
                if ours and text(body.get("Context")) == self._owner:
                    await client.delete(uri)

    async def _subscribe(self, client: Client, collection: str) -> None:
        self._listener.dismiss(self._name)
        addresses = await _addresses(client)
        self._name = self._listener.admit(addresses, self._take)
        whole: dict[str, object] = {
            "Destination": f"{self._listener.options.base}/{self._name}",
            "Protocol": "Redfish",
            "Context": self._owner,
        }
        # New services want the format, old ones types of events, some neither.
        ways: tuple[dict[str, object], ...] = (
            {"EventFormatType": "Event", "DeliveryRetryPolicy": "RetryForever"},
            {"EventFormatType": "Event"},
            {"EventTypes": ["Alert", "StatusChange"]},
            {"EventTypes": ["Alert"]},
        )
        for place, more in enumerate(ways):
            try:
                self._uri = await client.create(collection, {**whole, **more})
                return
            except HttpError as error:
                if error.kind != "refused" or place + 1 == len(ways):
                    self._listener.dismiss(self._name)
                    raise


async def _addresses(client: Client) -> frozenset[str]:
    """The addresses of a BMC, from which alone it may send."""
    host = client.host
    with contextlib.suppress(ValueError):
        return frozenset({_plain(str(ipaddress.ip_address(host)))})
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None)
    except OSError as error:
        raise HttpError(f"the BMC's name {host} is not known", "silent") from error
    return frozenset(_plain(str(place[0])) for *_, place in found)
