"""A mail server that keeps what it takes: SMTP over asyncio, with the faults of real ones."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path


class Post:
    """``script`` has a step for each connection: a status for the letter (250, 451, 550), or
    ``hang`` and ``drip`` (a byte of the greeting a second). ``login`` is asked for when set.
    """

    def __init__(self, *script: int | str, login: str = "", tls: Path | None = None) -> None:
        self.script = list(script)
        self.login = login
        self.taken: list[EmailMessage] = []
        self.said: list[str] = []  # commands, as they came
        self.connections = 0
        self.released = asyncio.Event()
        self._tls = None
        if tls is not None:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._tls.load_cert_chain(tls)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Serves on loopback; gives the port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            self.released.set()
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await self._talk(reader, writer)
        writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        step = self.script.pop(0) if self.script else 250
        if step == "hang":
            await self.released.wait()
            return
        if step == "drip":
            writer.write(b"220 ")
            while not self.released.is_set():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
            return
        writer.write(b"220 post.example\r\n")
        while line := await reader.readline():
            command = line.decode().strip()
            self.said.append(command)
            word = command[:4].upper()
            if word == "EHLO":
                offers = ["post.example"]
                offers += (
                    ["STARTTLS"]
                    if self._tls and writer.get_extra_info("sslcontext") is None
                    else []
                )
                offers += ["AUTH PLAIN"] if self.login else []
                for number, offer in enumerate(offers, 1):
                    dash = " " if number == len(offers) else "-"
                    writer.write(f"250{dash}{offer}\r\n".encode())
            elif word == "STAR":
                writer.write(b"220 go on\r\n")
                await writer.drain()
                assert self._tls is not None
                await writer.start_tls(self._tls)
            elif word == "AUTH":
                given = base64.b64decode(command.split()[2]).decode().replace("\0", ":").strip(":")
                writer.write(b"235 good\r\n" if given == self.login else b"535 no\r\n")
            elif word == "DATA":
                writer.write(b"354 go on\r\n")
                letter = await reader.readuntil(b"\r\n.\r\n")
                if step == 250:
                    parsed = message_from_bytes(letter[:-3], policy=policy.default)
                    assert isinstance(parsed, EmailMessage)
                    self.taken.append(parsed)
                writer.write(f"{step} that is what comes of it\r\n".encode())
            elif word == "QUIT":
                writer.write(b"221 bye\r\n")
                return
            else:
                writer.write(b"250 good\r\n")
