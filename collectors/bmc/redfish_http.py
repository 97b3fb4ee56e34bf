"""Talks Redfish to one BMC: logs in, sends one request at a time, logs out.

Every way in which that can fail ends in :class:`HttpError` with words of its own. A BMC that says
"not now" (429, 503) names a time, which is kept. Addresses that a BMC hands out are followed only
within its own service (``/redfish/...``).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import ssl
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from collectors.bmc import ipmi_faults as words
from collectors.bmc.redfish_logs import NO_WORDS, SESSIONS_FULL, WITH_ERROR, error_words
from collectors.bmc.redfish_parts import text
from collectors.bmc.targets import Secrets

ROOT = "/redfish/v1"
SESSIONS = ROOT + "/SessionService/Sessions"
BODY_LIMIT_BYTES = 16 * 1024 * 1024
# Small JSON values take far more memory than text: "[],[],..." some thirty times as much.
VALUES_LIMIT = 1_000_000
RETRY_LIMIT_SECONDS = 3_600.0
KNOWN_LIMIT = 64  # addresses of which it is kept what they said


def session(
    connector: aiohttp.BaseConnector | None = None, timeout: aiohttp.ClientTimeout | None = None
) -> aiohttp.ClientSession:
    """Connections to BMCs: without cookies, and nothing is unpacked but by :func:`unpacked`."""
    return aiohttp.ClientSession(
        connector=connector,
        timeout=timeout or aiohttp.ClientTimeout(),
        cookie_jar=aiohttp.DummyCookieJar(),
        # Answers are small: packing them would cost the BMC more than it saves.
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
    )


class HttpError(Exception):
    """A request failed. ``kind`` is ``login``, ``forbidden`` (logged in, and not allowed this),
    ``silent``, ``cut``, ``busy``, ``missing`` or ``refused``; ``retry_seconds`` is when the BMC
    wants to be asked again, 0 where it does not say.
    """

    def __init__(self, said: str, kind: str, retry_seconds: float = 0.0) -> None:
        super().__init__(said)
        self.kind = kind
        self.retry_seconds = retry_seconds

    @property
    def of_resource(self) -> bool:
        """Whether only this resource cannot be read: the BMC itself answers."""
        if self.kind == "cut":
            return "JSON" in str(self)
        return self.kind in ("missing", "refused", "forbidden")


@dataclass
class Client:
    """One BMC. Not for use by two tasks at once.

    ``base`` is ``https://host:port``; ``tls`` an SSL context, or None for plain HTTP. ``basic``
    sends user and password with each request instead of opening a session.
    """

    http: aiohttp.ClientSession
    base: str
    secrets: Secrets
    tls: ssl.SSLContext | None
    timeout_seconds: float = 10.0
    basic: bool = False
    token: str = ""
    session_uri: str = ""
    answers: int = 0
    values: int = 0  # how many JSON values the last answer had
    etags: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, int] = field(default_factory=dict)  # of what was read fresh_only
    last_hash: int = 0
    walked: dict[str, Any] = field(default_factory=dict)  # answers of a walk that is not done
    walked_values: int = 0
    unread: dict[str, HttpError] = field(default_factory=dict)  # what the walk could not read

    async def login(self) -> None:
        """Opens a session; where the BMC has none left, goes on with user and password."""
        if self.basic or self.token:
            return
        body = {
            "UserName": self.secrets.user.decode("utf-8", "replace"),
            "Password": self.secrets.password.decode("utf-8", "replace"),
        }
        status, headers, answer = await self._send("POST", SESSIONS, body)
        if status in (200, 201) and headers.get("X-Auth-Token"):
            self.token = headers["X-Auth-Token"]
            location = headers.get("Location", "")
            if location.startswith(self.base):
                location = location[len(self.base) :]
            if not location and isinstance(answer, dict):
                location = text(answer.get("@odata.id"))
            self.session_uri = location if location.startswith("/redfish/") else ""
            return
        if status in (400, 401, 403):
            raise HttpError(words.WRONG_LOGIN, "login")
        said = error_words(answer) if isinstance(answer, dict) else ""
        if status in (404, 405, 501) or said.startswith(SESSIONS_FULL):
            self.basic = True
            return
        raise _status_error(status, headers, answer)

    async def logout(self) -> None:
        """Ends the session at the BMC, which has few. Never raises."""
        uri, token = self.session_uri, self.token
        if uri and token:
            with contextlib.suppress(HttpError, TimeoutError):
                await asyncio.wait_for(self._send("DELETE", uri), 2.0)
        self.token = self.session_uri = ""

    async def get(self, uri: str, fresh_only: bool = False) -> Any:
        """The JSON at ``uri``. With ``fresh_only``: None where it has not changed.

        Many BMCs give no ETag: then the same bytes as last time are told from their hash.
        """
        if not uri.startswith("/redfish"):
            raise HttpError("the BMC points outside its own service", "refused")
        extra = {}
        if fresh_only and uri in self.etags:
            extra["If-None-Match"] = self.etags[uri]
        known = self.hashes.get(uri, 0) if fresh_only else 0
        status, headers, body = await self._send("GET", uri, headers=extra, known=known)
        if status == 401 and self.token:
            # The session has ended (some BMCs end it after a minute): one new one.
            self.token = self.session_uri = ""
            await self.login()
            status, headers, body = await self._send("GET", uri, headers=extra, known=known)
        if status == 304:
            return None
        if status != 200:
            raise _status_error(status, headers, body)
        if fresh_only:
            if len(self.hashes) >= KNOWN_LIMIT:
                self.hashes.clear()
                self.etags.clear()
            self.hashes[uri] = self.last_hash
            if headers.get("ETag"):
                self.etags[uri] = headers["ETag"]
        return body

    @property
    def host(self) -> str:
        """The BMC's name or address."""
        return urlsplit(self.base).hostname or ""

    async def create(self, uri: str, body: Mapping[str, object]) -> str:
        """Makes one member of a collection; its address."""
        status, headers, answer = await self._send("POST", uri, body)
        if status not in (200, 201):
            raise _status_error(status, headers, answer)
        place = str(headers.get("Location", ""))
        place = urlsplit(place).path if "://" in place else place
        if not place and isinstance(answer, dict):
            place = text(answer.get("@odata.id"))
        if not place.startswith("/redfish/"):
            raise HttpError("the BMC does not say what it has made", "refused")
        return place

    async def delete(self, uri: str) -> None:
        """Takes one of our own resources away."""
        status, headers, answer = await self._send("DELETE", uri)
        if status not in (200, 202, 204, 404):
            raise _status_error(status, headers, answer)

    def credentials(self) -> dict[str, str]:
        """The header that a request is let in with: of the session, or user and password."""
        if self.token:
            return {"X-Auth-Token": self.token}
        if self.basic:
            pair = base64.b64encode(self.secrets.user + b":" + self.secrets.password)
            return {"Authorization": "Basic " + pair.decode("ascii")}
        return {}

    # ---- inside ----------------------------------------------------------------------------

    async def _send(
        self,
        method: str,
        uri: str,
        body: Mapping[str, object] | None = None,
        headers: dict[str, str] | None = None,
        known: int = 0,
    ) -> tuple[int, Any, Any]:
        """Status, headers and body (JSON, or None) of one request.

        ``known``: the hash of a body that is not worth reading again; it comes as status 304.
        """
        sent = {"Accept": "application/json", "OData-Version": "4.0", **(headers or {})}
        sent |= self.credentials()
        try:
            async with self.http.request(
                method,
                self.base + uri,
                json=body,
                headers=sent,
                ssl=self.tls if self.tls is not None else True,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=self.timeout_seconds),
            ) as answer:
                raw = unpacked(await _bounded(answer), answer.headers.get("Content-Encoding", ""))
                self.answers += 1
                self.last_hash = hash(raw)
                if known == self.last_hash and answer.status == 200:
                    return 304, answer.headers, None
                self.values = _values(raw)
                return answer.status, answer.headers, _parsed(raw, answer.status, uri)
        except TimeoutError as error:
            raise self._silent() from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise HttpError(
                f"the BMC's certificate is not trusted: {_short(error)}", "tls"
            ) from error
        except aiohttp.ClientSSLError as error:
            raise HttpError(f"no TLS with the BMC: {_short(error)}", "tls") from error
        except aiohttp.ClientConnectorDNSError as error:
            raise HttpError(f"the BMC's name {error.host} is not known", "silent") from error
        except aiohttp.ClientConnectorError as error:
            number = error.os_error.errno
            said = (os.strerror(number) if number else str(error.os_error)).lower()
            raise HttpError(f"{words.NO_ANSWER}: {said}", "silent") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise HttpError(f"the BMC breaks the connection off: {_short(error)}", "cut") from error

    def _silent(self) -> HttpError:
        limit = f"within {self.timeout_seconds:g} s"
        if self.answers:
            return HttpError(f"{words.HALF_DEAD}: no answer {limit}", "cut")
        return HttpError(f"{words.NO_ANSWER} {limit}", "silent")


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    """The body, at most BODY_LIMIT_BYTES of it."""
    parts = bytearray()
    async for chunk in answer.content.iter_chunked(65_536):
        parts += chunk
        if len(parts) > BODY_LIMIT_BYTES:
            raise HttpError(f"an answer of over {BODY_LIMIT_BYTES} bytes", "refused")
    return bytes(parts)


def unpacked(raw: bytes, encoding: str) -> bytes:
    """The body without gzip, at most BODY_LIMIT_BYTES of it; HttpError for another encoding.

    We ask for none; some BMCs hold resources packed and send them so. One stream and no more is
    unpacked here: a library that follows stream after stream can be kept busy by an evil one.
    """
    if encoding.lower() in ("", "identity"):
        return raw
    if encoding.lower() not in ("gzip", "x-gzip"):
        raise HttpError(
            f"an answer packed as {encoding[:40]!r}, which we did not ask for", "refused"
        )
    try:
        stream = zlib.decompressobj(wbits=31)
        plain = stream.decompress(raw, BODY_LIMIT_BYTES + 1)
    except zlib.error as error:
        raise HttpError("a packed answer that cannot be unpacked", "cut") from error
    if len(plain) > BODY_LIMIT_BYTES:
        raise HttpError(f"an answer of over {BODY_LIMIT_BYTES} bytes", "refused")
    if stream.unused_data or not stream.eof:
        raise HttpError("a packed answer that is cut off, or several in one", "cut")
    return plain


def _values(raw: bytes) -> int:
    """How many values JSON of these bytes can have; HttpError for more than anybody needs."""
    count = sum(raw.count(mark) for mark in (b",", b"[", b"{"))
    if count > VALUES_LIMIT:
        raise HttpError(f"an answer of over {VALUES_LIMIT} values", "refused")
    return count


def _parsed(raw: bytes, status: int, uri: str) -> Any:
    if not raw.strip():
        return None
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        if status != 200:
            return None
        raise HttpError(
            f"{uri.split('?')[0]}: JSON that ends too early or is none", "cut"
        ) from error


def _status_error(status: int, headers: Any, body: Any) -> HttpError:
    said = error_words(body) if isinstance(body, dict) and "error" in body else ""
    retry = _retry_seconds(headers.get("Retry-After", ""))
    if status == 401:
        return HttpError(words.WRONG_LOGIN, "login")
    if status == 403:
        return HttpError(words.NO_PRIVILEGE, "forbidden")
    if status in (404, 410):
        return HttpError("the BMC has no such resource", "missing")
    if status in (429, 503):
        when = f", asks to wait {retry:g} s" if retry else ""
        return HttpError(f"the BMC is busy (HTTP {status}){when}", "busy", retry)
    said = said.removeprefix(WITH_ERROR).removeprefix(NO_WORDS)
    detail = f": {said}" if said else ""
    return HttpError(f"the BMC answers with HTTP {status}{detail}", "refused", retry)


def _retry_seconds(value: str) -> float:
    """Retry-After in seconds (a date is not taken: BMC clocks are no clocks)."""
    value = value.strip()
    return min(float(value), RETRY_LIMIT_SECONDS) if value.isdecimal() and len(value) < 9 else 0.0


def _short(error: BaseException) -> str:
    """The last and most telling part of an error's words."""
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    said = getattr(cause, "verify_message", "") or str(cause)
    return " ".join(said.split())[:160] or type(cause).__name__
