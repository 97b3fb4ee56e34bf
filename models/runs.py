"""The samples of one write, cut into runs of one measurement and one node.

An agent sends the GPUs of its node one after the other: what is looked up by node and by
measurement is so looked up once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from collectors.sample import Sample


class Run(NamedTuple):
    """Samples that came one after the other; ``node`` is empty where their tags name none."""

    measurement: str
    node: str
    samples: list[Sample]


def runs_of(samples: Iterable[Sample]) -> list[Run]:
    """``samples`` in order, cut where the measurement or the node changes.

    >>> one = Sample("host", (("node", "n1"),), {}, 0)
    >>> [(run.node, len(run.samples)) for run in runs_of([one, one])]
    [('n1', 2)]
    """
    found: list[Run] = []
    held: list[Sample] = []
    measurement = node = None
    for one in samples:
        name = ""
        for key, value in one.tags:
            if key == "node":
                name = value
                break
        if one.measurement != measurement or name != node:
            measurement, node, held = one.measurement, name, []
            found.append(Run(measurement, node, held))
        held.append(one)
    return found
