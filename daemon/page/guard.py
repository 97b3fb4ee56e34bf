"""What stands before the page: allowed host names, an optional login, strict headers.

The page shows and never acts, yet node names and job ids are nobody else's business. It
listens on loopback unless a login is set. The Host header is checked, or a web site could
rebind its own name to 127.0.0.1 and read the page through an operator's browser.
"""

from __future__ import annotations

import base64
import hmac
from ipaddress import ip_address

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether ``host`` (an address or a name) can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_allowed(header: str, names: frozenset[str]) -> bool:
    """Whether a Host header names this machine: loopback, or one of ``names``."""
    host = header.strip().lower()
    host = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    return is_loopback(host) or host in names


def login_right(header: str, secret: str) -> bool:
    """Whether an Authorization header (Basic with any user, or Bearer) carries ``secret``."""
    scheme, _, rest = header.partition(" ")
    given = rest.strip()
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except ValueError:
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def guarded(names: frozenset[str], secret: str) -> Middleware:
    """A middleware: strict headers on every answer, no foreign Host, the login if one is set."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        answer: web.StreamResponse
        if not host_allowed(request.headers.get("Host", ""), names):
            text = "this Host is not served here; add it to [page] names"
            answer = web.json_response({"error": text}, status=421)
        elif secret and not login_right(request.headers.get("Authorization", ""), secret):
            answer = web.json_response({"error": "log in"}, status=401)
            answer.headers["WWW-Authenticate"] = 'Basic realm="tocsin", charset="UTF-8"'
        else:
            try:
                answer = await handler(request)
            except web.HTTPException as error:
                answer = web.json_response({"error": error.reason}, status=error.status)
        answer.headers.update(HEADERS)
        return answer

    return middleware
