"""Links of several planes (XDR): what single planes say, told as one thing of one link.

A plane has cables and counters of its own and is kept like a port, under the name ``1.3`` (plane 3
of port 1). It makes no link: a link with a plane less is slower, and one drop of the whole link,
which every plane counts, is one drop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.link_held import flapped, states_held
from models.link_state import HostPort, Key, LinkThresholds
from models.rule_state import Node


def plane_key(link: Key, plane: str) -> Key:
    """The key of a plane of ``link``."""
    return link[0], link[1], f"{link[2]}.{plane}"


def is_plane(key: Key) -> bool:
    """Whether this is a plane, and no link."""
    return "." in key[2]


def link_of(key: Key) -> Key:
    """The link of a plane; a link is its own."""
    return key[0], key[1], key[2].partition(".")[0]


def same_plane(link: Key, other: Key) -> Key:
    """The plane of ``link`` that has the number of ``other``; ``link`` where ``other`` is one."""
    return plane_key(link, other[2].partition(".")[2]) if is_plane(other) else link


@dataclass(frozen=True, slots=True)
class SickPlane:
    """A plane that is lost or slow since ``lost_ns``, or went down ``drops`` (0: not) times."""

    key: Key
    port: HostPort
    lost_ns: int
    drops: float
    dropped_ns: int

    def has(self, code: str) -> bool:
        """Whether this plane has a part in the fact called ``code``."""
        return bool(self.lost_ns if code == "ibrate" else self.drops)


def sick_plane(
    key: Key, port: HostPort, now_ns: int, node: Node | None, limits: LinkThresholds
) -> SickPlane | None:
    """What is wrong with a plane now, by the thresholds of links; None where nothing is."""
    lost_ns = min((onset for _, onset, _ in states_held(port, now_ns, node, limits)), default=0)
    dropped_ns = next((onset for _, onset, _, _ in flapped(port, now_ns, node, limits)), 0)
    drops = sum(flap.count for flap in port.flaps) if dropped_ns else 0.0
    if not lost_ns and not drops:
        return None
    return SickPlane(key, port, lost_ns, drops, dropped_ns)


def plane_words(
    link: HostPort | None, planes: Sequence[HostPort], sick: Sequence[SickPlane]
) -> tuple[str, int, str, bool] | None:
    """(code, onset, words, whether it may drain) of what the planes ``sick`` say of ``link``.

    None where the link tells it itself. Planes that are all lost while their link says it is up
    contradict it: that is for a person. So are drops of single planes, and drops that only the
    fabric has seen.
    """
    if link is not None and (link.down_since_ns or link.init_since_ns):
        return None
    total = max(sum(1 for one in planes if one.expected), len(sick))
    lost = [one for one in sick if one.lost_ns]
    if lost:
        words = f"{len(lost)} of {total} planes lost or slow ({_numbers(lost)})"
        return "ibrate", min(one.lost_ns for one in lost), words, len(lost) < total
    if link is not None and link.flaps:
        return None
    dropped = [one for one in sick if one.drops]
    since_ns = min(one.dropped_ns for one in dropped)
    if link is None and len(dropped) == len(planes):
        least = min(one.drops for one in dropped)
        return "ibflap", since_ns, f"all {len(planes)} planes went down {least:g} times", False
    worst = max(one.drops for one in dropped)
    words = f"plane {_numbers(dropped)} went down {worst:g} times in 24 h"
    return "ibflap", since_ns, words, False


def _numbers(planes: Sequence[SickPlane]) -> str:
    return ", ".join(one.key[2].partition(".")[2] for one in planes)
