"""How many series the head's own sources may bring in: each costs every store for ever.

The gateway has such a budget for senders (:mod:`daemon.gate.admission`). What the head polls itself
is no safer: a BMC that names its sensors anew at each look, a sweep of a fabric full of made-up
GUIDs. Nothing of a series that is known today is ever cut; of one that is new, what is over.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from collectors.sample import Sample

log = logging.getLogger("tocsin.sources")

_DAY_NS = 86_400 * 1_000_000_000
# Of one measurement of a node or a switch: as many as the BMC's readers take of one BMC.
PART_LIMIT = 4_096
# Of all; up to twice as many for parts that have few, so that one cannot use up the others' place.
SERIES_LIMIT = 2_000_000
_PART_SHARE = 256
_CUT_TOLD_LIMIT = 10_000


class SeriesBudget:
    """Of one day. For one thread."""

    def __init__(
        self,
        now_ns: Callable[[], int],
        part_limit: int = PART_LIMIT,
        series_limit: int = SERIES_LIMIT,
    ) -> None:
        self._now_ns = now_ns
        self.part_limit = part_limit
        self.series_limit = series_limit
        self.refused = 0  # samples, since the start
        self.cut: dict[str, str] = {}  # node or GUID -> what was too much, of this day
        self._day = 0
        # Hashes: the names of a million sensors would take much more.
        self._known: set[int] = set()
        self._held: Counter[tuple[str, str]] = Counter()

    @property
    def series(self) -> int:
        """How many series were met today."""
        return len(self._known)

    def within(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """Those of ``samples`` that the budget has room for."""
        day = self._now_ns() // _DAY_NS
        if day != self._day:
            self._day = day
            self._known.clear()
            self._held.clear()
            self.cut.clear()
        kept = [one for one in samples if self._has_room(one)]
        self.refused += len(samples) - len(kept)
        return kept

    def _has_room(self, sample: Sample) -> bool:
        series = hash((sample.measurement, sample.tags))
        if series in self._known:
            return True
        part = sample.tag("node") or sample.tag("guid")
        held = self._held[sample.measurement, part]
        known = len(self._known)
        if held >= self.part_limit:
            self._over(part, f"{self.part_limit} series of {sample.measurement} already")
            return False
        if known >= self.series_limit * (2 if held < _PART_SHARE else 1):
            self._over(part, f"{known} series are known of all parts already")
            return False
        self._known.add(series)
        self._held[sample.measurement, part] = held + 1
        return True

    def _over(self, part: str, why: str) -> None:
        if part not in self.cut and len(self.cut) < _CUT_TOLD_LIMIT:
            self.cut[part] = f"series budget: {why}"
            log.warning("what is read of %s is cut: series budget: %s", part or "no node", why)

    def loud(self) -> str:
        """What is cut now, in words; empty when nothing is."""
        told = [f"{part or 'no node'}: {why}" for part, why in sorted(self.cut.items())]
        more = f" and {len(told) - 5} more" if len(told) > 5 else ""
        return "; ".join(told[:5]) + more
