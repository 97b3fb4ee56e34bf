"""How often a login may be wrong: guessing secrets at the page is made slow.

Failures are counted for each address (an IPv6 client's whole /64) and for all together. Who is
over is not even compared with the secrets for a while. A login that was right before goes on
being compared: whoever guesses from the same address, or behind the same proxy, locks nobody out
who has entered already.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Any

# So many failures at once, then one more in each so many seconds.
FREE = 10
EACH_SECONDS = 10.0
# The same for all addresses together.
FREE_OF_ALL = 200
EACH_SECONDS_OF_ALL = 0.5
# Addresses and logins kept in mind; the ones longest not heard of are dropped.
KEPT = 4096


class _Bucket:
    """``level`` failures are open at ``at``; one is forgiven in each ``each_seconds``."""

    __slots__ = ("at", "level")

    def __init__(self, now: float) -> None:
        self.level = 0.0
        self.at = now

    def settle(self, now: float, each_seconds: float) -> float:
        self.level = max(0.0, self.level - (now - self.at) / each_seconds)
        self.at = now
        return self.level


class Attempts:
    """Not for use from two threads at once."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._of: OrderedDict[str, _Bucket] = OrderedDict()
        self._all = _Bucket(monotonic())
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def wait_seconds(self, address: str, login: str) -> int:
        """How long ``address`` must wait before ``login`` is looked at; 0 where it may at once."""
        if _digest(login) in self._known:
            return 0
        now = self._monotonic()
        bucket = self._of.get(_place(address))
        own = bucket.settle(now, EACH_SECONDS) if bucket is not None else 0.0
        rest = max(
            (own - FREE + 1) * EACH_SECONDS,
            (self._all.settle(now, EACH_SECONDS_OF_ALL) - FREE_OF_ALL + 1) * EACH_SECONDS_OF_ALL,
        )
        return math.ceil(rest) if rest > 0 else 0

    def failed(self, address: str, login: str) -> bool:
        """Counts a wrong login; answers whether this one used up what ``address`` has free."""
        now = self._monotonic()
        self._known.pop(_digest(login), None)
        bucket = self._of.setdefault(_place(address), _Bucket(now))
        before = bucket.settle(now, EACH_SECONDS)
        bucket.level += 1
        self._all.settle(now, EACH_SECONDS_OF_ALL)
        self._all.level += 1
        _keep(self._of, _place(address))
        return before <= FREE - 1 < bucket.level

    def entered(self, login: str) -> None:
        """Remembers that ``login`` was right, by its digest alone."""
        digest = _digest(login)
        self._known[digest] = None
        _keep(self._known, digest)


def _keep(places: OrderedDict[Any, Any], key: str | bytes) -> None:
    places.move_to_end(key)
    while len(places) > KEPT:
        places.popitem(last=False)


def _digest(login: str) -> bytes:
    return hashlib.sha256(login.encode("utf-8", "replace")).digest()


def _place(address: str) -> str:
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(found, IPv6Address):
        mapped = found.ipv4_mapped
        return str(mapped) if mapped is not None else str(IPv6Address(int(found) >> 64 << 64))
    return str(found)
