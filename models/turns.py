"""State given out in short turns: a piece, and where in the whole it belongs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

# Where a piece belongs, and the piece. Several objects at one place are one object.
Turn = tuple[tuple[str, ...], Any]

# About 10 ms of work where nodes have eight GPUs.
NODES_AT_ONCE = 256

Held = TypeVar("Held")


def some_at_once(
    place: tuple[str, ...], nodes: Mapping[str, Held], dump: Callable[[Held], object]
) -> Iterator[Turn]:
    """``nodes`` as JSON data by ``dump``, NODES_AT_ONCE a turn.

    Between turns nodes may come and go: who goes is left out, who comes too.
    """
    names = iter(list(nodes))
    yield place, {}  # there also where there is no node
    while some := list(islice(names, NODES_AT_ONCE)):
        yield place, {name: dump(nodes[name]) for name in some if name in nodes}


def below(name: str, turns: Iterable[Turn]) -> Iterator[Turn]:
    """``turns`` of a part that is called ``name`` in the whole."""
    for place, piece in turns:
        yield (name, *place), piece


def put_together(turns: Iterable[Turn]) -> dict[str, Any]:
    """The whole.

    >>> put_together([(("a", "b"), {"x": 1}), (("a", "b"), {"y": 2}), (("c",), [])])
    {'a': {'b': {'x': 1, 'y': 2}}, 'c': []}
    """
    whole: dict[str, Any] = {}
    for place, piece in turns:
        inner = whole
        for name in place[:-1]:
            inner = inner.setdefault(name, {})
        if isinstance(known := inner.get(place[-1]), dict):
            known.update(piece)
        else:
            inner[place[-1]] = piece
    return whole
