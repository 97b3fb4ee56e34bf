"""The two web applications: the page (reads, yes and no) and the operator's socket (all words)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from daemon.gate.tokens import TokenFile
from daemon.page.api import Api, errors_as_json
from daemon.page.guard import guarded, is_loopback
from daemon.page.peer import peers_only
from daemon.page.view import HeadView

STATIC = Path(__file__).with_name("static")

_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

# A verb's body is one flag; nothing here needs more.
_BODY_LIMIT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class PageOptions:
    """Where the page listens. ``secret`` is the shared password, read from a file by the caller;
    ``logins`` are people's own (they may also say yes and no); ``names`` are host names beside
    localhost under which it may be called."""

    host: str = "127.0.0.1"
    port: int = 8650
    names: frozenset[str] = frozenset()
    secret: str = ""
    logins: TokenFile | None = None

    def problem(self) -> str:
        """Why these options are refused, or the empty string."""
        if is_loopback(self.host) or self.secret or self.logins is not None:
            return ""
        return f"the page would listen on {self.host} without a login: set [page] logins_file"


def page_app(head: HeadView, options: PageOptions, api: Api | None = None) -> web.Application:
    """The page, the API's GET routes, and approve and deny for people with a login of their own.

    Static files are read once, at the start.
    """
    app = web.Application(
        middlewares=[guarded(options.names, options.secret, options.logins), errors_as_json],
        client_max_size=_BODY_LIMIT_BYTES,
    )
    shared = api or Api(head)
    app.add_routes(shared.readers())
    app.add_routes(shared.answers())
    for path in sorted(STATIC.iterdir()):
        if path.suffix in _TYPES:
            place = "/" if path.name == "index.html" else f"/{path.name}"
            app.router.add_get(place, _file(path.read_bytes(), _TYPES[path.suffix]))
    return app


def operator_app(head: HeadView, group: str, api: Api | None = None) -> web.Application:
    """The API with its verbs, for the unix socket. ``group`` names the Unix group whose
    members may operate beside root and the head's own user."""
    app = web.Application(
        middlewares=[peers_only(group), errors_as_json], client_max_size=_BODY_LIMIT_BYTES
    )
    shared = api or Api(head)
    app.add_routes(shared.readers())
    app.add_routes(shared.verbs())
    return app


def _file(body: bytes, kind: str) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        response = web.Response(body=body, content_type=kind, charset="utf-8")
        response.headers["Cache-Control"] = "no-cache"
        if len(body) > 2000:
            response.enable_compression()
        return response

    return handler
