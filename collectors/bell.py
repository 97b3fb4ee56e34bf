"""Waiting for news without asking again and again: a file descriptor, or a bell that is rung."""

from __future__ import annotations

import os
import select


class Bell:
    """Ends a wait from another thread, for good: it is rung when everything ends."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def ring(self) -> None:
        """Ends the wait under way and all later ones."""
        if self._descriptor >= 0:
            os.eventfd_write(self._descriptor, 1)

    def wait(self, seconds: float, descriptor: int = -1) -> bool:
        """Returns after ``seconds``, at the bell, or when ``descriptor`` has something to read;
        whether it was the bell."""
        poll = select.poll()
        for one in (self._descriptor, descriptor):
            if one >= 0:
                poll.register(one, select.POLLIN | select.POLLPRI)
        return any(one == self._descriptor for one, _ in poll.poll(max(0.0, seconds) * 1000))

    def close(self) -> None:
        """Lets go of its descriptor. Nobody may wait any more."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
