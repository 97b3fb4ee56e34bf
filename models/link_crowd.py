"""How many hosts had link trouble at about one time, where nobody knows their switch. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping

from models.link_state import HostPort, Key
from models.links import SWITCH_LEAST_HOSTS
from models.rule_state import Node

Ports = Iterable[tuple[Key, HostPort]]


class Crowd:
    """Hosts whose ports have trouble now, or went down since ``since_ns``: what began at several
    of them within ``window_ns`` is the fault of none. Times are the head's.
    """

    def __init__(
        self, ports: Ports, nodes: Mapping[str, Node], window_ns: int, since_ns: int
    ) -> None:
        self._nodes = nodes
        self._window_ns = window_ns
        self._since_ns = since_ns
        self._begun = sorted(
            (at_ns, key[0]) for key, port in ports for at_ns in self._times(key, port)
        )

    def _times(self, key: Key, port: HostPort) -> Iterator[int]:
        node = self._nodes.get(key[0])
        skew_ns = node.skew_ns if node is not None and not port.from_fabric else 0
        states = (port.down_since_ns, port.init_since_ns, port.narrow_since_ns)
        yield from (at_ns + skew_ns for at_ns in states if at_ns and port.expected)
        if port.flaps and port.flaps[-1].time_ns + skew_ns >= self._since_ns:
            yield port.flaps[-1].time_ns + skew_ns

    def has(self, key: Key, port: HostPort) -> bool:
        """Whether the trouble of this port began together with that of a crowd."""
        for at_ns in self._times(key, port):
            first = bisect_left(self._begun, (at_ns - self._window_ns, ""))
            last = bisect_right(self._begun, (at_ns + self._window_ns + 1, ""))
            if len({name for _, name in self._begun[first:last]}) >= SWITCH_LEAST_HOSTS:
                return True
        return False
