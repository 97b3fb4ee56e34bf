"""Whose line is it? A log file may collect the lines of many hosts, and only ours are our faults.

A syslog server writes the lines of a whole cluster into one file, and a group of nodes may share
one over a network filesystem. An Xid of another host taken for ours would drain the wrong node.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

# What a machine calls itself before it knows its name, and what stands for no name at all.
_NAMELESS = frozenset(
    {"", "-", "(none)", "unknown", "localhost", "localhost.localdomain", "localhost6"}
)
_FOREIGN_LIMIT = 64
_SHOWN = 3


class Hosts:
    """Tells our lines from those of others, by the host that a line names.

    A line that names nobody is ours in a log of our own. Once another host's line was seen the log
    is ``shared``, and from then on only lines that name us count.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name.strip().lower().rstrip(".") for name in names} - _NAMELESS
        self._foreign: dict[str, None] = {}
        self.shared = False

    def look(self, host: str) -> None:
        """Learns from one more line whether the log is shared."""
        host = host.lower().rstrip(".")
        if host in _NAMELESS or self._is_us(host):
            return
        self.shared = True
        if len(self._foreign) < _FOREIGN_LIMIT:
            self._foreign[host[:64]] = None

    def ours(self, host: str) -> bool:
        """Whether a line of ``host`` (empty: it names none) is about this node."""
        host = host.lower().rstrip(".")
        if host in _NAMELESS:
            return not self.shared
        return self._is_us(host)

    @property
    def words(self) -> str:
        """What is said about a shared log; empty for one of our own."""
        if not self.shared:
            return ""
        others = list(self._foreign)
        more = len(others) - _SHOWN
        named = ", ".join(others[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        who = f" ({named})" if others else ""
        return (
            f"this log holds lines of other hosts{who}; they are left out, and only lines that "
            f"name {' or '.join(sorted(self._names)) or 'this node'} count (more names of this "
            "node: host_names)"
        )

    def _is_us(self, host: str) -> bool:
        return any(_same(host, name) for name in self._names)


def _same(one: str, other: str) -> bool:
    """Whether two names are of one host: one of them may lack its domain.

    >>> _same("gpu07.a.example", "gpu07"), _same("gpu07.a.example", "gpu07.b.example")
    (True, False)
    """
    if one == other:
        return True
    if _address(one) or _address(other) or ("." in one and "." in other):
        return False
    return one.split(".", 1)[0] == other.split(".", 1)[0]


def _address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
