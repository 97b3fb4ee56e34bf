"""Which jobs ran where when something began: one job over many nodes is one cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SECOND_NS = 1_000_000_000
# A reading of Slurm may be so old when a job ends; clocks of nodes may be off by some of it.
SLACK_NS = 120 * SECOND_NS


@dataclass(frozen=True, slots=True)
class Ran:
    """A job over several nodes: ``key`` as people type it; from ``begin_ns`` to ``seen_ns``, the
    last reading that showed it, UTC ns.
    """

    key: str
    nodes: frozenset[str]
    begin_ns: int
    seen_ns: int

    def at(self, time_ns: int) -> bool:
        """Whether it ran at ``time_ns``, as far as readings tell."""
        return self.begin_ns - SLACK_NS <= time_ns <= self.seen_ns + SLACK_NS


RanOn = Mapping[str, tuple[Ran, ...]]


def by_node(ran: Iterable[Ran]) -> RanOn:
    """Node to the jobs that hold or held it."""
    found: dict[str, list[Ran]] = {}
    for one in ran:
        for node in one.nodes:
            found.setdefault(node, []).append(one)
    return {node: tuple(own) for node, own in found.items()}
