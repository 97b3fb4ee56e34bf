"""State given out in short turns: a piece, and where in the whole it belongs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

# Where a piece belongs, and the piece. Several objects at one place are one, several lists too.
Turn = tuple[tuple[str, ...], Any]

# About 10 ms of work where nodes have eight GPUs.
NODES_AT_ONCE = 256
ROWS_AT_ONCE = 4096

Held = TypeVar("Held")
Key = TypeVar("Key")


def some_at_once(
    place: tuple[str, ...], nodes: Mapping[str, Held], dump: Callable[[Held], object]
) -> Iterator[Turn]:
    """``nodes`` as JSON data by ``dump``, NODES_AT_ONCE a turn.

    Between turns nodes may come and go: who goes is left out, who comes too.
    """
    yield place, {}  # there also where there is no node
    for some in some_of(nodes):
        yield place, {name: dump(nodes[name]) for name in some if name in nodes}


def some_of(names: Iterable[str]) -> Iterator[list[str]]:
    """``names`` as they are now, NODES_AT_ONCE each time."""
    left = iter(list(names))
    while some := list(islice(left, NODES_AT_ONCE)):
        yield some


def rows_at_once(
    place: tuple[str, ...],
    mapping: Mapping[Key, Held],
    row: Callable[[Key, Held], list[Any]],
) -> Iterator[Turn]:
    """A list of a ``row`` for each key and value as they are now, ROWS_AT_ONCE a turn.

    For values that do not change.
    """
    left = iter(list(mapping.items()))
    yield place, []
    while some := list(islice(left, ROWS_AT_ONCE)):
        yield place, [row(key, value) for key, value in some]


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
        known = inner.get(place[-1])
        if isinstance(known, dict):
            known.update(piece)
        elif isinstance(known, list):
            known.extend(piece)
        else:
            inner[place[-1]] = piece
    return whole
