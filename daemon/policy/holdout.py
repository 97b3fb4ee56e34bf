"""The hold-out: a share of the nodes on which a risk is recorded and never drains.

Without it nobody can tell any more whether the risk was right: a node that is drained in time
does not fail. The nodes change each week and follow from a hash, so that anybody can reckon why
a node was held out. Facts are not asked here: they drain on every node.
"""

from __future__ import annotations

import hashlib

from pydantic import Field

from daemon.settings import Section

WEEK_NS = 7 * 86_400 * 1_000_000_000


class HoldOut(Section):
    """Section ``[policy.holdout]``: on which share of the nodes a risk only watches."""

    # Share of the nodes, drawn anew each week; 0 holds out nobody.
    share: float = Field(default=0.05, ge=0, le=0.5)
    # Another word draws other nodes.
    seed: str = Field(default="tocsin", max_length=100)


def draw(node: str, now_ns: int, seed: str) -> tuple[float, int]:
    """The node's number in [0, 1) for the week that holds ``now_ns``, and the week.

    Weeks are counted from 1970-01-01 (a Thursday), UTC. The number is the first 8 bytes of
    blake2s of ``seed``, node and week, joined by newlines, over 2**64.
    """
    week = now_ns // WEEK_NS
    digest = hashlib.blake2s(f"{seed}\n{node}\n{week}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2.0**64, week


def held_out(node: str, voice: str, now_ns: int, options: HoldOut) -> str:
    """Why a drain of ``node`` for a risk is only recorded this week, or empty."""
    if voice not in ("risk", "history") or options.share <= 0:
        return ""
    number, week = draw(node, now_ns, options.seed)
    if number >= options.share:
        return ""
    return (
        f"held out in week {week}: {options.share:.0%} of the nodes are not drained for a risk, "
        f"so that it can be seen whether it was right (this node drew {number:.4f})"
    )
