"""Which versions the fleet runs now and since when, out of the events that the store keeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from collectors.slurm.hostlist import compress
from daemon.head import Head
from daemon.page.api import number, reply
from daemon.page.view import iso
from daemon.store.database import Database
from models.skew import Group, Reading, groups

# Only these events pay for the index; it answers the whole question without the table.
_INDEX = """
CREATE INDEX IF NOT EXISTS events_of_versions ON events (node, kind, code, device, text, time_ns)
WHERE kind IN ('version', 'inventory');
"""
_SPANS = """
SELECT node, code, device, text, min(time_ns) AS first_ns, max(time_ns) AS last_ns FROM events
WHERE kind IN ('version', 'inventory') AND (kind = 'version' OR code = 'gpu')
GROUP BY node, kind, code, device, text
"""


def version_routes(
    head: Head, monotonic: Callable[[], float] = time.monotonic
) -> list[web.RouteDef]:
    """``GET /api/v1/versions?age=``: {groups: [...]}, as :func:`plain_groups` has them.

    ``age``: an answer that is at most so many seconds old will do; it costs nothing. Without, the
    store is read anew.
    """
    define(head.store.database)
    one_at_a_time = asyncio.Lock()
    kept: tuple[float, list[dict[str, Any]]] | None = None

    def read() -> list[dict[str, Any]]:
        nodes = set(head.nodes) or None
        return plain_groups(groups(readings(head.store.database), nodes, head.config.versions))

    async def answer(request: web.Request) -> web.Response:
        nonlocal kept
        oldest = number(request, "age", 0, 0, 86_400)
        async with one_at_a_time:
            now = monotonic()
            if kept is None or now - kept[0] >= oldest:
                kept = now, await asyncio.to_thread(read)
            return reply({"groups": kept[1]})

    return [web.get("/api/v1/versions", answer)]


def readings(database: Database) -> list[Reading]:
    """Every version as it was told last: seconds of processor time for 10,000 nodes.

    A version that came, went and came again is taken to be there since the other was told last.
    """
    spans: dict[tuple[str, str, str], dict[str, tuple[int, int]]] = {}
    for row in database.query(_SPANS):
        texts = spans.setdefault((row["node"], row["code"], row["device"]), {})
        text = _told(row["code"], row["text"])
        first_ns, last_ns = texts.get(text, (row["first_ns"], row["last_ns"]))
        texts[text] = min(first_ns, row["first_ns"]), max(last_ns, row["last_ns"])
    found = []
    for (node, code, device), texts in spans.items():
        text = max(texts, key=lambda one: texts[one][1])
        first_ns, last_ns = texts.pop(text)
        before = max(texts, key=lambda one: texts[one][1], default="")
        since_ns = max(first_ns, texts[before][1] if before else 0)
        name = "model" if code == "gpu" else code
        found.append(Reading(node, name, device, text, since_ns, last_ns, before))
    return [one for one in found if one.text]


def define(database: Database) -> None:
    """Makes the index. At the head's start: over many events it takes its time."""
    database.define(_INDEX)


def _told(code: str, text: str) -> str:
    """The version in an event's text; of a GPU's inventory its model."""
    return text.partition("model=")[2] if code == "gpu" else text


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
            "declared": list(one.declared),
            "others": [
                {
                    "text": other.text,
                    "nodes": compress(other.nodes),
                    "first_node": other.nodes[0],
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
