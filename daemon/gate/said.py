"""What a request says of itself beside its body: how fine its times are, and who it is by TLS."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from collectors.lines import PRECISIONS_NS
from daemon.gate.answers import RefusedError
from daemon.gate.tokens import NODE_NAME


def precision_in(query: Mapping[str, str]) -> str:
    """The unit of the times, by its name. Raises 400."""
    precision = query.get("precision") or "ns"
    if precision not in PRECISIONS_NS:
        text = f"precision {precision[:20]!r}: must be one of ns, us, ms, s"
        raise RefusedError(400, "invalid", text)
    return precision


def certificate_name(request: web.Request) -> str:
    """The common name of a client certificate that TLS has verified, if it names a node."""
    transport = request.transport
    peer = transport.get_extra_info("peercert") if transport is not None else None
    for part in (peer or {}).get("subject", ()):
        for key, value in part:
            if key == "commonName" and NODE_NAME.fullmatch(value):
                return str(value)
    return ""
