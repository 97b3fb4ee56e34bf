"""What happens in the demo, and when. Pure: the same seed tells the same story.

It opens with what matters most: a GPU that sickens against its siblings and is lost, one that
falls off the bus without warning, application errors that mean nothing, several faults at
once that a cap holds back, and a rack that goes silent and must not be drained for it. Then
it goes on without end, a fault every half hour of simulated time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

MINUTE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that happens ``at_seconds`` after the start, in simulated time.

    ``what`` is a fault class of ``models.simulate.CLASSES``, ``noise`` (an application's XID)
    or ``silence`` (no agent of ``nodes`` is heard for ``lead_seconds``). A fault shows its
    precursor from ``at_seconds`` on and strikes ``lead_seconds`` later.
    """

    at_seconds: float
    what: str
    nodes: tuple[int, ...]
    gpu: int = 0
    lead_seconds: float = 0.0
    strength: float = 1.0


# Fault classes of the endless part with their share; what hurts GPUs most comes most often.
_LATER = (("bus_lost", 5), ("heat", 4), ("hbm", 3), ("nvlink", 2), ("gsp", 1), ("ib_link", 1))
_LATER_EVERY_MINUTES = (20.0, 45.0)


def opening(nodes: int, gpus: int, rack: int) -> list[Act]:
    """The first two hours, by time. Places shrink to fit a small fleet."""
    minute = MINUTE_SECONDS

    def place(share: float) -> int:
        return min(nodes - 1, int(share * nodes))

    sick = place(0.27)
    taken = {sick}

    def other(share: float) -> int:
        index = place(share)
        while index in taken and len(taken) < nodes:
            index = (index + 1) % nodes
        taken.add(index)
        return index

    lost, remapped = other(0.66), other(0.42)
    crowd = [other(share) for share in (0.10, 0.35, 0.57, 0.80)]
    last_rack = tuple(i for i in range(nodes - min(rack, nodes), nodes) if i not in taken)
    gpu = min(3, gpus - 1)
    acts = [
        # One GPU, two signs: hotter than its siblings, and memory rows that wear out.
        Act(3 * minute, "heat", (sick,), gpu, 42 * minute, 2.0),
        Act(12 * minute, "hbm", (sick,), gpu, 40 * minute, 1.0),
        Act(9 * minute, "noise", (place(0.5),), 0),
        Act(16 * minute, "noise", (place(0.9),), gpus - 1),
        Act(24 * minute, "bus_lost", (lost,), min(5, gpus - 1)),
        Act(50 * minute, "hbm", (remapped,), 0, 20 * minute, 1.0),
        *(Act(88 * minute + 4 * i, "bus_lost", (node,), i % gpus) for i, node in enumerate(crowd)),
    ]
    if last_rack and len(last_rack) < nodes:
        acts.append(Act(108 * minute, "silence", last_rack, 0, 12 * minute))
    return sorted(acts, key=lambda act: act.at_seconds)


def plot(nodes: int, gpus: int, rack: int, seed: int) -> Iterator[Act]:
    """The opening, then a fault every 20 to 45 simulated minutes for ever. Ordered by time."""
    acts = opening(nodes, gpus, rack)
    yield from acts
    rng = random.Random(seed)  # noqa: S311 - tells a story, guards nothing
    at_seconds = 130 * MINUTE_SECONDS
    classes = [name for name, _ in _LATER]
    weights = [weight for _, weight in _LATER]
    while True:
        what = rng.choices(classes, weights)[0]
        lead = rng.uniform(25, 60) if what in ("heat", "hbm", "nvlink", "ib_link") else 0.0
        yield Act(
            at_seconds,
            what,
            (rng.randrange(nodes),),
            rng.randrange(gpus),
            lead * MINUTE_SECONDS,
            2.0,
        )
        if rng.random() < 0.5:
            yield Act(at_seconds, "noise", (rng.randrange(nodes),), rng.randrange(gpus))
        at_seconds += rng.uniform(*_LATER_EVERY_MINUTES) * MINUTE_SECONDS
