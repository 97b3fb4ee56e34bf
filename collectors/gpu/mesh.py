"""Whether each GPU has as many NVLinks up as its peers: the mesh of a node is whole or it is not.

Compared with most of the GPUs of one model in the node, so that nobody needs to say how many there
should be. A reset takes links down for a moment: fewer must be read twice in a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from collectors.events import WARNING, event
from collectors.inventory import Board
from collectors.sample import Sample
from collectors.told import Told

READINGS_LEAST = 2


class MeshWatch:
    """How often in a row each GPU had fewer links than its peers, and what was told of it."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._fewer: dict[str, int] = {}
        self._told = Told("has as many NVLinks as its peers again")

    def events(
        self, links: Mapping[int, float], boards: Mapping[int, Board], now_ns: int
    ) -> list[Sample]:
        """What is new, given the links that are up now, by the GPUs' indices."""
        lasting = []
        read = set()
        for index, active in sorted(links.items()):
            board = boards.get(index, Board(index))
            device = board.bus or f"gpu{index}"
            peers = [
                other
                for number, other in links.items()
                if boards.get(number, Board(number)).model == board.model
            ]
            usual, count = Counter(peers).most_common(1)[0]
            if count * 2 <= len(peers):
                continue  # no peers to speak of
            read.add(device)
            if active >= usual:
                self._fewer.pop(device, None)
                continue
            self._fewer[device] = self._fewer.get(device, 0) + 1
            if self._fewer[device] >= READINGS_LEAST:
                words = f"gpu{index}: {active:.0f} NVLinks are up where its peers have {usual:.0f}"
                lasting.append(
                    event(
                        self._node,
                        "topology",
                        "nvlink",
                        now_ns,
                        text=words,
                        severity=WARNING,
                        device=device,
                    )
                )
        return self._told.changes(lasting, read, now_ns) if read else []
