"""Opens a head's ears: its gateway, page and operator's socket, as configured."""

from __future__ import annotations

import gc
import ssl
from pathlib import Path

from aiohttp import web

from daemon.alerts.routes import mute_readers, mute_verbs
from daemon.config import Config
from daemon.drains.record_routes import record_routes
from daemon.gate.gateway import Gateway, TokenSource, routes
from daemon.gate.tokens import TokenFile, TokensError
from daemon.head import Head
from daemon.headview import HeadEyes
from daemon.jobs.routes import job_routes
from daemon.learning.routes import model_readers, model_verbs
from daemon.listen import Address, ListenError, Listeners
from daemon.page.app import PageOptions, operator_app, page_app
from daemon.scrape import scrape_routes
from daemon.versions import version_routes


async def open_ears(
    head: Head, config: Config, tokens: TokenSource, listeners: Listeners
) -> tuple[Address, Address | None]:
    """Opens gateway, page and operator's socket; the addresses of the first two."""
    gateway = Gateway(head.intake.accept, tokens, head.clock, config.gateway, marks=head.store)
    gateway.admission.is_known_node = lambda name: name in head.nodes
    head.gateway = gateway
    eyes = HeadEyes(head)
    scrape = [*scrape_routes(head), *version_routes(head), *job_routes(head), *record_routes(head)]
    app = web.Application()
    app.add_routes(routes(gateway))
    gate = await listeners.open_tcp(
        app, Address.parse(config.head.listen), _tls(config), config.gateway.connections
    )
    page = None
    if config.page.enabled:
        options = page_options(config)
        if problem := options.problem():
            raise ListenError(f"page not opened: {problem}")
        shown = page_app(eyes, options)
        shown.add_routes(scrape)
        shown.add_routes(model_readers(head))
        address, tls = Address.parse(config.page.listen), page_tls(config)
        page = await listeners.open_tcp(shown, address, tls)
    operators = operator_app(eyes, config.head.operators_group)
    operators.add_routes(scrape)
    operators.add_routes(model_readers(head) + model_verbs(head))
    operators.add_routes(mute_readers(head) + mute_verbs(head))
    await listeners.open_unix(operators, config.head.socket, config.head.operators_group)
    return gate, page


def calm_collector() -> None:
    """Has Python look for garbage cycles less often: readings make none, and are very many.

    With the usual thresholds the looking costs a quarter of what decoding does.
    """
    gc.set_threshold(50_000, 20, 50)


def page_options(config: Config) -> PageOptions:
    """The page's options, its logins read from their files. Raises ListenError."""
    address = Address.parse(config.page.listen)
    secret = ""
    if config.page.password_file is not None:
        secret = config.page.password_file.read_text().strip()
    logins = None
    if config.page.logins_file is not None:
        try:
            logins = TokenFile(config.page.logins_file)
        except TokensError as error:
            raise ListenError(f"page not opened: {error}") from error
    return PageOptions(address.host, address.port, config.page.names, secret, logins)


def page_tls(config: Config) -> ssl.SSLContext | None:
    """TLS of the page, where it has a certificate of its own. Raises ListenError."""
    return _context(config.page.certificate_file, config.page.key_file, "page")


def _context(certificate: Path | None, key: Path | None, what: str) -> ssl.SSLContext | None:
    if certificate is None or key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        text = f"{what} not opened: {certificate} and {key} are no certificate and its key"
        raise ListenError(f"{text} in PEM ({error.strerror or error})") from error
    return context


def _tls(config: Config) -> ssl.SSLContext | None:
    head = config.head
    context = _context(head.certificate_file, head.key_file, "gateway")
    if context is None:
        return None
    if head.client_ca_file is not None:
        context.load_verify_locations(head.client_ca_file)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
