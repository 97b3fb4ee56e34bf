"""Which versions the fleet runs now and since when, out of the events that the store keeps."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from collectors.hostlist import compress
from daemon.head import Head
from daemon.page.api import reply
from daemon.page.view import iso
from daemon.store.database import Database
from models.skew import Group, Reading, groups

# Only these events pay for the index; it answers the whole question without the table.
_INDEX = """
CREATE INDEX IF NOT EXISTS events_of_versions ON events (node, kind, code, device, time_ns, text)
WHERE kind IN ('version', 'inventory');
"""
_CHANGES = """
SELECT node, code, device, text, time_ns, before FROM (
    SELECT node, code, device, text, time_ns, lag(text) OVER (
        PARTITION BY node, kind, code, device ORDER BY time_ns) AS before
    FROM events WHERE kind IN ('version', 'inventory') AND code NOT IN ('count', 'gone')
) WHERE before IS NOT text ORDER BY time_ns
"""
_NEWEST = """
SELECT node, code, device, max(time_ns) AS time_ns FROM events
WHERE kind IN ('version', 'inventory') AND code NOT IN ('count', 'gone')
GROUP BY node, kind, code, device
"""


def version_routes(head: Head) -> list[web.RouteDef]:
    """``GET /api/v1/versions``: {groups: [...]}, as :func:`plain_groups` has them."""
    define(head.store.database)
    one_at_a_time = asyncio.Lock()

    def read() -> list[dict[str, Any]]:
        return plain_groups(groups(readings(head.store.database), set(head.nodes) or None))

    async def answer(request: web.Request) -> web.Response:
        async with one_at_a_time:
            return reply({"groups": await asyncio.to_thread(read)})

    return [web.get("/api/v1/versions", answer)]


def readings(database: Database) -> list[Reading]:
    """Every version as it was told last. Reads the store: seconds where events are many."""
    seen = {
        (row["node"], row["code"], row["device"]): row["time_ns"] for row in database.query(_NEWEST)
    }
    found: dict[tuple[str, str, str], Reading] = {}
    for row in database.query(_CHANGES):
        key = (row["node"], row["code"], row["device"])
        text, before = _told(row["code"], row["text"]), _told(row["code"], row["before"] or "")
        known = found.get(key)
        if known is not None and known.text == text:
            continue  # an inventory's other words changed, its model did not
        found[key] = Reading(
            row["node"], _code(row["code"]), row["device"], text, row["time_ns"], seen[key], before
        )
    return [one for one in found.values() if one.text]


def define(database: Database) -> None:
    """Makes the index. At the head's start: over many events it takes its time."""
    database.define(_INDEX)


def _code(code: str) -> str:
    return "model" if code == "gpu" else code


def _told(code: str, text: str) -> str:
    """The version in an event's text; of a GPU's inventory its model."""
    if code == "gpu":
        return text.partition("model=")[2]
    return "" if code in ("port", "link") else text


def plain_groups(found: list[Group]) -> list[dict[str, Any]]:
    """The groups as JSON values; nodes as host lists."""
    return [
        {
            "what": one.code,
            "model": one.model,
            "usual": one.usual,
            "clear": one.clear,
            "nodes": one.nodes,
            "parts": one.parts,
            "usual_parts": one.usual_parts,
            "others": [
                {
                    "text": other.text,
                    "nodes": compress(other.nodes),
                    "node_count": len(other.nodes),
                    "parts": other.parts,
                    "since": iso(other.since_ns),
                    "before": other.before,
                }
                for other in one.others
            ],
        }
        for one in found
    ]
