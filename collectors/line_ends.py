"""The ends of lines that were read before: limits, widths, counts of errors that nobody has.

Of the 45 fields of a GPU two thirds read the same from one reading to the next, and on nearly
every GPU of a fleet. Where such fields stand together at the end of a line, the end is found by
its bytes and its fields are taken from where they were read first. Lines of a measurement are
cut at the name from which on they are mostly alike; which one that is, is learned from the
lines, and learned anew when ends that are not known become many.

A cut never changes what a line means. It is made in plain lines only, at a comma, and no comma
of a plain line stands within a name or value; what stands behind the cut has been read before,
as a part of a whole line, and gave the same fields there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from collectors.sample import Value

# So much memory for all ends, as reckoned by their text and fields. Then all are forgotten, and
# learned again within a few bodies.
_ROOM_BYTES: Final = 32 * 1024 * 1024
_FIELD_BYTES: Final = 100  # a place in a dict, and a number
_END_BYTES: Final = 400  # a dict, its text and its place among the others, however short it is
_MEASUREMENTS: Final = 256
# One line in so many that had no known end is compared with the one before it that was, and
# after so many comparisons it is decided anew where to cut.
_COMPARED_EACH: Final = 8
_COMPARISONS: Final = 8
_SHORTEST_END_FIELDS: Final = 4
_LONGEST_TEXT_BYTES: Final = 8_000


# ``,name=`` of the field before which is cut (empty: nowhere), and the fields of what may follow.
# The two go together: a large body is read in another thread, and may move the cut meanwhile.
Known = tuple[bytes, dict[bytes, Mapping[str, Value]]]


@dataclass(slots=True)
class Cut:
    """Where lines of one measurement are cut, and what led there."""

    known: Known = (b"", {})
    missed: int = 0
    compared: bytes = b""
    alike_from: tuple[int, ...] = ()

    def split(self, text: bytes) -> tuple[bytes, Mapping[str, Value] | None]:
        """What of a line's fields is still to be read, and the fields of its end if it is known."""
        mark, known = self.known
        if mark:
            before, found, end = text.partition(mark)
            if found and (fields := known.get(end)) is not None:
                return before, fields
        return text, None


class Ends:
    """The cuts of all measurements, and the ends that are known."""

    def __init__(self, room_bytes: int = _ROOM_BYTES) -> None:
        self.room_bytes = room_bytes
        self.size_bytes = 0
        self._cuts: dict[str, Cut] = {}

    def cut_of(self, measurement: str) -> Cut:
        """Where to cut lines of ``measurement``."""
        cut = self._cuts.get(measurement)
        if cut is None:
            if len(self._cuts) >= _MEASUREMENTS:
                self._make_room()
            cut = self._cuts[measurement] = Cut()
        return cut

    def _make_room(self) -> None:
        """Names that a sender invents are cut nowhere: they go first, and cost nobody his ends."""
        # In one step: a large body is read in another thread, and may add to them meanwhile.
        cuts = list(self._cuts.items())
        self._cuts = {name: cut for name, cut in cuts if cut.known[0]}
        if len(self._cuts) >= _MEASUREMENTS:
            self.forget()

    def forget(self) -> None:
        """Begins anew."""
        self._cuts.clear()
        self.size_bytes = 0

    def learn(self, cut: Cut, text: bytes, fields: Mapping[str, Value]) -> int:
        """Takes note of a line whose end was not known: its ``text`` and the ``fields`` read of it.

        How many of the fields stand before the cut, 0 when it was not cut.
        """
        # A name that came twice left its last value at its first place: no end is told from that.
        if len(text) > _LONGEST_TEXT_BYTES or text.count(b",") + 1 != len(fields):
            return 0
        cut.missed += 1
        if cut.missed % _COMPARED_EACH == 0:
            self._compare(cut, text)
        mark, known = cut.known
        before, found, end = text.partition(mark) if mark else (text, b"", b"")
        if not found:
            return 0
        if self.size_bytes > self.room_bytes:
            self.forget()
            return 0
        count = before.count(b",") + 1
        if end not in known:
            known[end] = dict(islice(fields.items(), count, None))
            self.size_bytes += len(end) + _END_BYTES + _FIELD_BYTES * len(known[end])
        return count

    def _compare(self, cut: Cut, text: bytes) -> None:
        """Where this line and the one compared before begin to be alike to their ends."""
        words, others = text.split(b","), cut.compared.split(b",")
        cut.compared = text
        if len(words) != len(others):
            return
        place = len(words)
        while place and words[place - 1] == others[place - 1]:
            place -= 1
        places = cut.alike_from = (*cut.alike_from, place)
        if len(places) < _COMPARISONS:
            return
        cut.alike_from = ()
        # One line that is odd near its end does not decide for the others.
        place = max(1, sorted(places)[len(places) * 3 // 4])
        long_enough = len(words) - place >= _SHORTEST_END_FIELDS
        mark = b",%b=" % words[place].partition(b"=")[0] if long_enough else b""
        if mark != cut.known[0]:
            cut.known = (mark, {})
