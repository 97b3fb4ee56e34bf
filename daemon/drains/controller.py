"""Whether another slurmctld answers now than the one that last showed our drains.

One that is started anew may have forgotten what it had not saved; it tells when it was started.
A backup that takes over does not: it has been running all the while, and what it tells lies before
our drains (measured on a pair of 22.05; where the two share no StateSaveLocation it knows none of
them). So the start that was told is remembered, and another one than before says the same as a
later one. It is asked for once in a while, when everything agrees: had another taken over unseen
in the meantime, a person's lift after that would look like a loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from collectors.slurm.faults import MISSING
from daemon.drains.ledger import SECOND_NS
from daemon.slurm.adapter import SlurmError

# One small request so often while drains of ours stand, and after each reading that failed.
CONFIRM_NS = 60 * SECOND_NS


class Controller:
    """Asks for slurmctld's start, UTC ns, by ``ask``, at most once a cycle."""

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._told_ns: int | None = None  # in this cycle
        self._known_ns = 0  # of the one that last showed our drains; 0 where that is not known
        self._confirmed_ns = 0
        self._paused = True

    def begin(self) -> None:
        """A cycle begins."""
        self._told_ns = None

    def not_read(self) -> None:
        """A reading failed: the next one may come from another slurmctld."""
        self._paused = True

    def settled(self, now_ns: int, all_stand: bool) -> None:
        """What was gone has been judged; who answers now is the one to remember.

        ``all_stand``: every drain of ours stands as it should, so that it may be asked for.
        """
        due = self._paused or not 0 <= now_ns - self._confirmed_ns < CONFIRM_NS
        if all_stand and due:
            with contextlib.suppress(SlurmError):
                self.started_ns()
        if self._told_ns is not None:
            self._known_ns, self._confirmed_ns, self._paused = self._told_ns, now_ns, False
        elif all_stand and self._paused:
            # Whoever came after the failure shows our drains, and did not say who it is: what is
            # lifted from now on may be a person's word as well as another's loss.
            self._known_ns = 0

    def started_ns(self) -> int:
        """When the slurmctld that answers was started. Raises SlurmError."""
        if self._told_ns is None:
            self._told_ns = self._ask()
        return self._told_ns

    def is_another(self, since_ns: int) -> bool | None:
        """Whether it is another one than at ``since_ns``; None where that cannot be known yet.

        An adapter that can never tell (kind ``missing``) says no: a person lifted what is gone.
        """
        try:
            started_ns = self.started_ns()
        except SlurmError as error:
            return False if error.kind == MISSING else None
        if started_ns == self._known_ns:
            # The very one that showed them: its clock and ours may differ, this does not.
            return False
        # Slurm tells its start in whole seconds.
        end_ns = started_ns + SECOND_NS
        if end_ns > since_ns:
            return True
        # One that was started after the last answer, and before our drains were last seen, is the
        # one that showed them: from 23.11 on each `scontrol reconfigure` starts slurmctld anew.
        return self._known_ns > 0 and end_ns <= self._confirmed_ns
