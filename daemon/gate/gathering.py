"""Small writes that come one by one are read one right after the other, a few at a time.

Ten thousand agents write three hundred times a second, each alone, and each alone is a commit, a
hand-over to the watch and some turns of the loop. So a write that finds others under way waits
for a few more, but never for long. What it saves by itself was within the noise of measuring.
"""

from __future__ import annotations

import asyncio

GATHER_SECONDS = 0.04
# So many are read without a wait for more: a busier sender gains nothing by it.
WRITES_AT_ONCE = 16
# With fewer than so many under way nobody waits: a lone sender is answered at once.
OTHERS_LEAST = 4


class Gathering:
    """Those that wait now. For one event loop."""

    def __init__(self, seconds: float = GATHER_SECONDS, at_once: int = WRITES_AT_ONCE) -> None:
        self.seconds = seconds
        self.at_once = at_once
        self._waiting: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    async def others(self) -> None:
        """Returns when enough have come, or it was waited long enough: to all in one turn."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) >= self.at_once:
            self._go()
        elif self._timer is None:
            self._timer = loop.call_later(self.seconds, self._go)
        await turn

    def _go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():  # a sender that hung up meanwhile
                turn.set_result(None)
