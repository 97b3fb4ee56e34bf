"""A node's clock that ran ahead and was set right: its readings are heard again at once.

Readings older than the newest one are left out, for a spool is emptied after newer ones. A clock
that ran hours ahead would so make its node unheard for hours. The head's own clock tells the two
apart: the newest reading was ahead of it when it came, and this one comes at its own time. A node
whose clock stays ahead is believed as it is, as the rules do.
"""

from __future__ import annotations

import numpy as np

from models.features.arrays import Rows, Times
from models.features.table import EntityTable, StreamState

AHEAD_NS = 120_000_000_000  # two clocks that are as much apart are not in step


def set_right(
    table: EntityTable, state: StreamState, rows: Rows, times_ns: Times, arrivals_ns: Times
) -> None:
    """Takes notice of live readings that are ahead of ``arrivals_ns``, the head's clock, and sets
    back what is kept of rows that were and no longer are. ``rows`` [n], -1 for none of ours.

    A history does not know when a reading came: it is not for that.
    """
    apart_ns = times_ns - arrivals_ns
    if state.ahead:
        known = np.isin(rows, list(state.ahead))
        right = known & (np.abs(apart_ns) <= AHEAD_NS)
        late = right & (times_ns <= state.last_ns(np.maximum(rows, 0)))
        order = np.flatnonzero(late)
        order = order[np.argsort(times_ns[order], kind="stable")]
        back, first = np.unique(rows[order], return_index=True)
        if len(back):  # just before the first reading of the clock that is right
            before_ns = times_ns[order][first] - 1
            table.arrays.set_back(back, before_ns, before_ns)
        state.ahead -= set(rows[right].tolist())
    ahead = (rows >= 0) & (apart_ns > AHEAD_NS)
    if ahead.any():
        state.ahead |= set(rows[ahead].tolist())
