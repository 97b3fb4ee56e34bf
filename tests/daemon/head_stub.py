"""The gateway over a real store, served over real HTTP on loopback, for tests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from collectors.sample import Sample
from daemon.clock import SystemClock
from daemon.gate.gateway import BatchKey, Gateway, GatewayOptions, routes
from daemon.gate.tokens import Tokens, parse_tokens
from daemon.store.commit import GroupCommit
from daemon.store.embedded import Store

NODE_TOKEN = "node-token-0123456789"
RELAY_TOKEN = "relay-token-0123456789"


@dataclass
class Head:
    """What a head is to an agent."""

    directory: Path
    options: GatewayOptions = field(default_factory=GatewayOptions)
    tokens: Tokens = field(
        default_factory=lambda: parse_tokens(f"n1 {NODE_TOKEN}\n* {RELAY_TOKEN}\n")
    )
    tls: ssl.SSLContext | None = None
    auto_decompress: bool = False
    port: int = 0
    loses_answer: Callable[[], bool] = lambda: False
    accepted: list[Sample] = field(default_factory=list)
    arrivals: list[tuple[float, str, int]] = field(default_factory=list)

    async def accept(
        self, samples: Sequence[Sample], node: str, arrival_ns: int, batch: BatchKey | None = None
    ) -> None:
        await self.commit.write(samples, batch)
        self.accepted.extend(samples)
        self.arrivals.append((asyncio.get_running_loop().time(), node, len(samples)))

    async def start(self) -> Head:
        self.store = Store(self.directory)
        self.commit = GroupCommit(self.store)
        self.gateway = Gateway(
            self.accept, self.tokens, SystemClock(), self.options, marks=self.store
        )
        app = web.Application(middlewares=[self._middleware()])
        app.add_routes(routes(self.gateway))
        self.runner = web.AppRunner(app, auto_decompress=self.auto_decompress, shutdown_timeout=0.5)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", self.port, ssl_context=self.tls)
        await site.start()
        self.port = self.runner.addresses[0][1]
        return self

    def _middleware(self) -> Callable[..., Awaitable[web.StreamResponse]]:
        @web.middleware
        async def lose(
            request: web.Request,
            handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
        ) -> web.StreamResponse:
            """The connection breaks when the work is done and before the answer is sent."""
            answer = await handler(request)
            if self.loses_answer() and request.transport is not None:
                request.transport.abort()
            return answer

        return lose

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        await self.runner.cleanup()
        await self.commit.close()
        self.store.close()
