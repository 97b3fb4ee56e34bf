"""What stands before the page: allowed host names, an optional login, strict headers.

Node names and job ids are nobody else's business: the page listens on loopback unless a login is
set. The Host header is checked, or a web site could rebind its own name to 127.0.0.1 and read the
page through an operator's browser.

A word (a POST) is taken only from a person with a login of their own: a shared password names
nobody, and on loopback anybody with a shell here could speak. A browser sends a login along with
whatever a foreign site has it send, so a word must also carry a header that such a site cannot
set without being asked first, and must not come from another origin.
"""

from __future__ import annotations

import base64
import hmac
from contextvars import ContextVar
from ipaddress import ip_address

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from daemon.gate.tokens import ANY_NODE, TokenFile
from daemon.page.attempts import Attempts

log = structlog.get_logger("tocsin.page")

# What the page's own script sends with a word.
WORD_HEADER = "X-Tocsin-Word"
# Who asks just now, by a login of their own; empty for everybody else. Only the guard sets it.
person: ContextVar[str] = ContextVar("tocsin_page_person", default="")

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
    _, given = _name_and_password(header)
    return bool(given) and hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def person_of(header: str, logins: TokenFile | None) -> str:
    """Whose login of their own an Authorization header carries (Basic), or empty."""
    name, given = _name_and_password(header)
    if logins is None or not given or name in ("", ANY_NODE):
        return ""
    logins.refresh()
    owner = logins.node_of(given)
    return name if owner == name else ""


def _name_and_password(header: str) -> tuple[str, str]:
    scheme, _, rest = header.partition(" ")
    given = rest.strip()
    if scheme.lower() == "bearer":
        return "", given
    if scheme.lower() != "basic":
        return "", ""
    try:
        name, _, password = base64.b64decode(given, validate=True).decode().partition(":")
    except ValueError:
        return "", ""
    return name, password


def word_refused(request: web.Request, logins: TokenFile | None) -> str:
    """Why a POST is not taken for a word of the person at the page, or empty."""
    if logins is not None and logins.fault:
        # Whose login was taken out is not known then: the last good ones may look, not speak.
        return "the logins file cannot be used just now: speak by tocsin on the head"
    if WORD_HEADER not in request.headers:
        return f"a word needs the header {WORD_HEADER}: reload the page"
    if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        return "a word must come from the page itself"
    origin = request.headers.get("Origin", "")
    if origin and origin.partition("://")[2].lower() != request.headers.get("Host", "").lower():
        return "a word must come from the page itself"
    if not person.get():
        return "only people with a login of their own ([page] logins_file) may speak here"
    return ""


def guarded(
    names: frozenset[str],
    secret: str,
    logins: TokenFile | None = None,
    attempts: Attempts | None = None,
) -> Middleware:
    """A middleware: strict headers on every answer, no foreign Host, the login if one is set and
    not guessed at too often, and no POST but a person's word.
    """
    tries = attempts or Attempts()

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        answer: web.StreamResponse
        if not host_allowed(request.headers.get("Host", ""), names):
            text = "this Host is not served here; add it to [page] names"
            answer = web.json_response({"error": text}, status=421)
        elif wait := _must_wait(request, tries):
            text = f"too many failed logins from here: try again in {wait} s"
            answer = web.json_response({"error": text}, status=429)
            answer.headers["Retry-After"] = str(wait)
        elif not _enters(request, secret, logins, tries):
            answer = web.json_response({"error": "log in"}, status=401)
            answer.headers["WWW-Authenticate"] = 'Basic realm="tocsin", charset="UTF-8"'
        elif request.method not in ("GET", "HEAD") and (why := word_refused(request, logins)):
            answer = web.json_response({"error": why}, status=403)
        else:
            try:
                answer = await handler(request)
            except web.HTTPException as error:
                answer = web.json_response({"error": error.reason}, status=error.status)
        answer.headers.update(HEADERS)
        return answer

    return middleware


def _must_wait(request: web.Request, tries: Attempts) -> int:
    """How many seconds this login is not looked at; none are spent on a request without one."""
    header = request.headers.get("Authorization", "")
    return tries.wait_seconds(request.remote or "", header) if header else 0


def _enters(request: web.Request, secret: str, logins: TokenFile | None, tries: Attempts) -> bool:
    """Whether the login is right, where there is one; notes whose it is."""
    header = request.headers.get("Authorization", "")
    who = person_of(header, logins)
    person.set(who)
    if not secret and logins is None:
        return True
    right = bool(who) or (bool(secret) and login_right(header, secret))
    if right:
        tries.entered(header)
    elif header and tries.failed(request.remote or "", header):
        log.warning("logins_fail", address=request.remote, more="not looked at for a while")
    return right
