"""A person's word that a node, a case or a code is known: it is told to nobody until it ends.

Muting hides nothing and stops nothing: the alert stays in status, on the page and in the journal,
decisions and drains go on. Only mail and webhook keep quiet, for a bounded time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from daemon.alerts.active import Alert
from daemon.clock import NANOSECONDS
from daemon.page.view import iso

# Nobody remembers a mute for longer than that.
HOURS_MOST = 720.0
MUTES_MOST = 1000
_ID = re.compile(r"[0-9a-f]{4,64}")


@dataclass(frozen=True, slots=True)
class Mute:
    """``target`` is a node, a case's id (or how it begins), a code such as ``heat``, or the guard
    behind an alert of many refused drains (``caps``, ``breaker``).
    """

    target: str
    user: str
    since_ns: int
    until_ns: int
    text: str = ""

    def hides(self, alert: Alert, now_ns: int) -> bool:
        """Whether ``alert`` is meant, now."""
        if not self.since_ns <= now_ns < self.until_ns:
            return False
        if self.target in (alert.node, alert.code, alert.key, alert.key.removeprefix("guard/")):
            return True
        if alert.nodes == (self.target,):
            return True
        return _ID.fullmatch(self.target) is not None and alert.id.startswith(self.target)

    @property
    def words(self) -> str:
        """Who muted it, until when, and why."""
        because = f": {self.text}" if self.text else ""
        return f"muted by {self.user} until {iso(self.until_ns)[:16]}Z{because}"


def muted(mutes: Iterable[Mute], alert: Alert, now_ns: int) -> str:
    """By whom and until when ``alert`` is muted; empty: it is not."""
    return next((one.words for one in mutes if one.hides(alert, now_ns)), "")


def until(now_ns: int, hours: float) -> int:
    """When a mute of ``hours`` ends. Raises ValueError for a time that nobody means."""
    if not 0 < hours <= HOURS_MOST:
        raise ValueError(f"a mute lasts more than 0 and at most {HOURS_MOST:g} hours")
    return now_ns + int(hours * 3600 * NANOSECONDS)


def restored(rows: Iterable[Mapping[str, Any]]) -> dict[str, Mute]:
    """The mutes that a head kept in its file. Raises KeyError, TypeError or ValueError."""
    made = (
        Mute(
            str(row["target"]), str(row["user"]), int(row["since_ns"]), int(row["until_ns"]),
            str(row["text"]),
        )
        for row in rows
    )  # fmt: skip
    return {one.target: one for one in made}
