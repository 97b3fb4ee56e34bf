"""What is made of a tuple is kept while the same tuple comes again.

Risks are scored each 15 s and judged each 5 s, and an urgent event has them judged at once: of
10,000 nodes the same risks would be sorted by node three times as often as they change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TypeVar

One = TypeVar("One")
Result = TypeVar("Result")


def of_newest(function: Callable[[Iterable[One]], Result]) -> Callable[[Iterable[One]], Result]:
    """``function``, answered from memory for the very tuple that it was asked of last.

    Nobody may change what it answers. What is no tuple could change itself, and is read anew.
    Safe for threads: the worst is that two of them reckon the same.
    """
    newest: tuple[Iterable[One], Result] | None = None

    @wraps(function)
    def told(some: Iterable[One]) -> Result:
        nonlocal newest
        held = newest
        if held is not None and held[0] is some:
            return held[1]
        found = function(some)
        if type(some) is tuple:
            newest = some, found
        return found

    return told
