"""Stand-ins for Redfish BMCs: thousands of addresses at one port, answered over TLS from memory.

    python -m daemon.bench.redfish_standin --model 127.63.9.1:8443 --port 18443 --cert DIR

What is asked for the first time is asked of the BMC ``--model`` (an emulator of the source tree)
and kept; every later answer is the kept one. Each address has sessions of its own. For the
benchmark, where one emulator a BMC would take the processor that the reader is to have.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import ssl
from pathlib import Path

import aiohttp

SESSIONS = "/redfish/v1/SessionService/Sessions"
AUTHORIZATION = "Basic YWRtaW46c2VjcmV0"
HEAD_LIMIT_BYTES = 16_384


class Answers:
    """What the model answered, by what was asked. Request targets are few."""

    def __init__(self, model: str) -> None:
        self._model = f"https://{model}"
        self._kept: dict[str, bytes] = {}
        self._http: aiohttp.ClientSession | None = None
        self._lock = asyncio.Lock()

    def kept(self, target: str) -> bytes | None:
        return self._kept.get(target)

    async def learn(self, target: str) -> bytes:
        """Asks the model; the whole answer as it goes over the wire."""
        async with self._lock:
            if target not in self._kept:
                if self._http is None:
                    self._http = aiohttp.ClientSession()
                headers = {"Authorization": AUTHORIZATION}
                url = self._model + target
                async with self._http.get(url, headers=headers, ssl=False) as answer:
                    body = await answer.read()
                    self._kept[target] = message(answer.status, body)
        return self._kept[target]


def message(status: int, body: bytes, more: str = "") -> bytes:
    """One HTTP answer on a connection that is kept."""
    head = f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Front(asyncio.Protocol):
    """One connection. Requests are answered in their order."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._held = b""
        self._transport: asyncio.Transport | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        while (end := self._held.find(b"\r\n\r\n")) >= 0:
            head = self._held[:end].decode("latin-1")
            size = 0
            for line in head.split("\r\n")[1:]:
                if line[:15].lower() == "content-length:":
                    size = int(line[15:])
            if len(self._held) < end + 4 + size:
                return
            self._held = self._held[end + 4 + size :]
            method, target, _ = head.split(" ", 2)
            self._answer(method, target)
        if len(self._held) > HEAD_LIMIT_BYTES and self._transport is not None:
            self._transport.abort()

    def _answer(self, method: str, target: str) -> None:
        assert self._transport is not None
        if method == "POST":
            name = os.urandom(8).hex()
            more = f"X-Auth-Token: {name}\r\nLocation: {SESSIONS}/{name}\r\n"
            self._transport.write(message(201, b"{}", more))
        elif method == "DELETE":
            self._transport.write(message(204, b""))
        elif (kept := self._answers.kept(target)) is not None:
            self._transport.write(kept)
        else:
            task = asyncio.get_running_loop().create_task(self._learned(target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _learned(self, target: str) -> None:
        answer = await self._answers.learn(target)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(answer)


async def _main(model: str, port: int, folder: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    answers = Answers(model)
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Front(answers), None, port, family=2, ssl=tls, backlog=4096)
    print("up", flush=True)  # noqa: T201 - who started us waits for this line
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 - nothing tells of a parent's end
        await asyncio.sleep(2.0)


def main() -> None:
    """Serves until it, or the process that started it, is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, default=18_443)
    parser.add_argument("--cert", type=Path, required=True)
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(given.model, given.port, given.cert))


if __name__ == "__main__":
    main()
