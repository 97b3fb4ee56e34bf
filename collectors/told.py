"""Events of what lasts: told when it begins or changes, and once more when it is over.

A report that is asked each round says the same thing each round; as an event it counts once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from collectors.events import INFO, event
from collectors.sample import Sample

_KEPT_MOST = 4096

Key = tuple[str, str, str, str]


class Told:
    """What was told of one thing that reports. ``over`` is said in these words."""

    def __init__(self, over: str) -> None:
        self._over = over
        self._lasting: dict[Key, float] = {}

    def changes(self, events: Iterable[Sample], read: Collection[str], now_ns: int) -> list[Sample]:
        """Of one whole report, the events that are new or of another severity.

        What was told before and is not in the report is over, if its device is among those that
        were ``read``: a part that could not be read may still be as bad as before.
        """
        now = {_key(one): one for one in events if one.number("severity")}
        new = [one for key, one in now.items() if self._lasting.get(key) != one.number("severity")]
        for key, one in now.items():
            if key in self._lasting or len(self._lasting) < _KEPT_MOST:
                self._lasting[key] = one.number("severity") or 0.0
        for key in [key for key in self._lasting if key not in now and key[3] in read]:
            del self._lasting[key]
            node, kind, code, device = key
            words = f"{device or 'all'}: {code.replace('_', ' ')}: {self._over}"
            new.append(event(node, kind, code, now_ns, text=words, severity=INFO, device=device))
        return new


def _key(one: Sample) -> Key:
    return one.tag("node"), one.tag("kind"), one.tag("code"), one.text("device")
