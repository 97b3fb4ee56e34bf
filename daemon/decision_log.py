"""What the ledger has newly recorded, as lines of the journal and as ``decision`` points."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import structlog

from collectors.sample import Sample
from daemon.points import decision_samples
from daemon.policy.decisions import Decision

log = structlog.get_logger("tocsin.head")

Keep = Callable[[Sequence[Sample]], Awaitable[bool]]


class DecisionLog:
    """Where writing goes on: a decision that the store did not take is written again later.

    ``sequence`` is that of the newest decision that was written; each is logged once.
    """

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self._logged = 0  # of those after ``sequence``

    async def write(self, newest: int, fresh: Sequence[Decision], keep: Keep) -> None:
        """Writes what the ledger gave as recorded after ``sequence``, up to ``newest``."""
        for one in fresh[self._logged :]:
            log.info(
                "decision",
                id=one.id,
                node=one.node,
                device=one.device,
                action=one.action.value,
                guard=one.guard.value if one.guard else "",
                reason=one.reason,
                mode=one.mode.value,
            )
        self._logged = max(self._logged, len(fresh))
        if not fresh or await keep(decision_samples(fresh)):
            self.sequence, self._logged = newest, 0
