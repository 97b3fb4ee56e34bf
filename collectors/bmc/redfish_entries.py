"""Reads what is new in one Redfish log. Logs are never cleared.

Vendors list entries newest first or oldest first, in pages or not, and number them or not. So the
cursor keeps the newest time, the highest number, and the names of the newest entries. That somebody
else cleared a log is told from the number of its entries and from what is left of those we know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from collectors.bmc.ipmi_sel_entry import iso_time
from collectors.bmc.points import Readings
from collectors.bmc.redfish_http import Client
from collectors.bmc.redfish_logs import cleared_log, entries, entry_id
from collectors.bmc.redfish_parts import text
from collectors.bmc.redfish_plan import links, members
from collectors.sample import Sample

SEEN_LIMIT = 300
NAME_LIMIT_CHARACTERS = 200
# BMC clocks may run this far ahead; a time beyond would make all that follows look old.
AHEAD_NS = 86_400 * 1_000_000_000
PAGES_LIMIT = 40
EMPTY_TIMES = 2


@dataclass
class LogCursor:
    """Where we are in one log. ``seen``: names of entries, each with its time, 0 where it has none.

    ``empty`` is how often in a row the log was found to be empty, though it was not before;
    ``waiting`` says that more of it may be new than its first page tells, or than one round takes.
    """

    newest_ns: int = 0
    highest: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    count: int = 0
    started: bool = False
    empty: int = 0
    waiting: bool = False

    def dump(self) -> list[object]:
        """JSON data."""
        return [self.newest_ns, self.highest, list(self.seen.items()), self.count]

    @classmethod
    def load(cls, data: object) -> LogCursor:
        """What ``dump`` gave; a fresh cursor from anything else."""
        if not isinstance(data, list) or len(data) != 4 or not isinstance(data[2], list):
            return cls()
        try:
            named = (one if isinstance(one, list) else (one, 0) for one in data[2][:SEEN_LIMIT])
            seen = {str(name)[:NAME_LIMIT_CHARACTERS]: int(stamp) for name, stamp in named}
            return cls(int(data[0]), int(data[1]), seen, int(data[3]), True)
        except (TypeError, ValueError):
            return cls()

    def is_new(self, body: Mapping[str, Any]) -> bool:
        """Whether this entry was not read before."""
        held_ns = self.seen.get(_id(body))
        stamp = iso_time(text(body.get("Created")))
        if held_ns is not None:
            # Numbers begin again where a log was cleared: an entry later than all is another one.
            return bool(held_ns) and (stamp or 0) > max(held_ns, self.newest_ns)
        number = entry_id(body)
        if number is not None and number > self.highest:
            return True
        if stamp is None:
            return number is None
        return stamp >= self.newest_ns

    def take(self, body: Mapping[str, Any], now_ns: int) -> None:
        """Keeps that this entry was read."""
        stamp = iso_time(text(body.get("Created"))) or 0
        self.seen.pop(_id(body), None)
        self.seen[_id(body)] = stamp
        while len(self.seen) > SEEN_LIMIT:
            del self.seen[next(iter(self.seen))]
        self.highest = max(self.highest, entry_id(body) or 0)
        if stamp <= now_ns + AHEAD_NS:
            self.newest_ns = max(self.newest_ns, stamp)

    def was_cleared(self, page: Any, listed: list[Mapping[str, Any]], total: int) -> bool:
        """Whether somebody cleared the log since the last time; ``page`` is its first page.

        All that is left of it is new, and it is shorter than it was or its oldest entry is seen. A
        log that is empty is told at the second time: BMCs that start show theirs late.
        """
        if not self.started or not self.count:
            return False
        if not listed:
            self.empty += 1
            return self.empty == EMPTY_TIMES
        self.empty = 0
        has_more = isinstance(page, dict) and bool(page.get("Members@odata.nextLink"))
        seen_oldest = not has_more or _ascending(listed)
        return (seen_oldest or total < self.count) and all(self.is_new(one) for one in listed)


def _id(body: Mapping[str, Any]) -> str:
    return text(body.get("Id"))[:NAME_LIMIT_CHARACTERS]


def every(body: Mapping[str, Any]) -> bool:
    """Nothing of the log is told in another way."""
    del body
    return True


async def read_new(
    client: Client,
    uri: str,
    cursor: LogCursor,
    node: str,
    now_ns: int,
    limit: int,
    backlog: int,
    found: Readings,
    first: Callable[[Mapping[str, Any]], bool] = every,
) -> list[Sample]:
    """Events of the entries since the last time, oldest first, at most ``limit``.

    ``first`` says of an entry whether it was not told in another way.
    """
    samples: list[Sample] = []
    before = cursor.count, cursor.empty
    try:
        fresh = await _fresh(client, uri, cursor, limit, backlog, node, now_ns, samples)
    except BaseException:
        # That the log was cleared goes with what could not be read: next time it shows again.
        cursor.count, cursor.empty = before
        raise
    for body in fresh:
        if first(body):
            samples.extend(entries(body, node, now_ns, found))
        cursor.take(body, now_ns)
    cursor.started = True
    return samples


async def _fresh(
    client: Client,
    uri: str,
    cursor: LogCursor,
    limit: int,
    backlog: int,
    node: str,
    now_ns: int,
    told: list[Sample],
) -> list[Mapping[str, Any]]:
    """The new entries, oldest first; ``told`` gets an event when the log was cleared."""
    # Asked as a whole where "not modified" would hide that it stays empty, or what is left of it.
    page = await client.get(uri, fresh_only=not (cursor.empty or cursor.waiting))
    if page is None:
        return []
    listed = _objects(page)
    total = _total(page)
    only_links = not listed and bool(links(page))
    if not only_links and cursor.was_cleared(page, listed, total or len(listed)):
        told.append(cleared_log(uri, node, cursor.count, total or len(listed), now_ns))
        cursor.count = cursor.empty = 0
    if not listed and not only_links:
        return []
    paged = _ascending(listed) and "Members@odata.nextLink" in page
    if only_links:
        # Only addresses: the newest few are read one by one.
        return await _single(client, links(page), cursor, min(limit, max(backlog, 20)))
    if not cursor.started and total > backlog + len(listed) and _ascending(listed):
        page = await client.get(f"{uri}?$skip={total - backlog}")
        listed = _objects(page)
    elif cursor.started and _ascending(listed) and cursor.count > len(listed):
        # Oldest first: what is new stands behind what was there.
        page = await client.get(f"{uri}?$skip={min(cursor.count, total) - 1}")
        listed = _objects(page)
    ascending = _ascending(listed)
    fresh = await _follow(client, page, cursor, limit if cursor.started else backlog)
    cursor.count = total
    fresh.sort(key=_order)
    if not cursor.started:
        for body in fresh:
            cursor.take(body, now_ns)  # older ones count as read
        return fresh[-backlog:] if backlog else []
    left = len(fresh) - limit if ascending else 0
    if left > 0:
        cursor.count -= left  # the rest stands behind: it is begun with next time
    cursor.waiting = paged or left > 0
    return fresh[:limit] if ascending else fresh[-limit:]


async def _follow(
    client: Client, page: Any, cursor: LogCursor, wanted: int
) -> list[Mapping[str, Any]]:
    """The new entries of ``page`` and of those after it, until ``wanted`` are found."""
    listed = _objects(page)
    ascending = _ascending(listed)
    fresh: list[Mapping[str, Any]] = []
    for _ in range(PAGES_LIMIT):
        new = [body for body in listed if cursor.is_new(body)]
        fresh.extend(new)
        following = text(page.get("Members@odata.nextLink")) if isinstance(page, dict) else ""
        enough = len(fresh) >= wanted
        if not following or (not ascending and (len(new) < len(listed) or enough)):
            break
        if ascending and enough and cursor.started:
            break
        page = await client.get(following)
        listed = _objects(page)
        if not listed:
            break
    return fresh


async def _single(
    client: Client, uris: list[str], cursor: LogCursor, limit: int
) -> list[Mapping[str, Any]]:
    unknown = [uri for uri in uris if uri.rstrip("/").rsplit("/", 1)[-1] not in cursor.seen]
    fresh: list[Mapping[str, Any]] = []
    for uri in unknown[-limit:]:
        body = await client.get(uri)
        if isinstance(body, dict) and cursor.is_new(body):
            fresh.append(body)
    for uri in unknown[:-limit]:
        cursor.seen[uri.rstrip("/").rsplit("/", 1)[-1]] = 0
    fresh.sort(key=_order)
    return fresh


def _total(page: Any) -> int:
    """How many entries the log says that it has; 0 where it does not say."""
    count = page.get("Members@odata.count") if isinstance(page, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) else 0


def _objects(page: Any) -> list[Mapping[str, Any]]:
    return [one for one in members(page) if isinstance(one, dict) and set(one) != {"@odata.id"}]


def _order(body: Mapping[str, Any]) -> tuple[int, int]:
    return iso_time(text(body.get("Created"))) or 0, entry_id(body) or 0


def _ascending(listed: list[Mapping[str, Any]]) -> bool:
    """Whether the oldest entry stands first."""
    if len(listed) < 2:
        return False
    first, last = _number(listed[0]), _number(listed[-1])
    return first < last if first != last else _order(listed[0]) < _order(listed[-1])


def _number(body: Mapping[str, Any]) -> int:
    return entry_id(body) or 0
