"""Slurm's host lists: ``n[1-3,7]`` to names and back.

Slurm writes a set of node names as prefixes with bracketed ranges (slurm.conf(5), "NodeName").
``expand`` reads every shape that Slurm prints, several brackets in one name included;
``compress`` writes the plain shape, one bracket at the end of a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# The largest cluster we serve is 10,000 nodes; a list that expands to far more is garbage.
EXPAND_LIMIT = 200_000

# What slurm.conf accepts as a NodeName, bounded. No brackets, commas, spaces or quotes, so a
# name that matches can stand in a command line or a host list as it is.
NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9_])?\Z")

# Words that Slurm's update commands read as "every node".
RESERVED_NAMES = frozenset({"all", "default", "none"})


class HostlistError(ValueError):
    """The text is no host list. The message says where."""


def valid_name(name: str) -> bool:
    """Whether ``name`` can be one node's name: never a list, a pattern or ``ALL``."""
    return bool(NAME.match(name)) and name.lower() not in RESERVED_NAMES


def expand(text: str) -> list[str]:
    """The names in ``text``, in order and as often as they stand there.

    >>> expand("n[1-3,07],login")
    ['n1', 'n2', 'n3', 'n07', 'login']
    """
    names: list[str] = []
    for word in _words(text.strip()):
        for name in _names(word):
            names.append(name)
            if len(names) > EXPAND_LIMIT:
                raise HostlistError(f"over {EXPAND_LIMIT} names in one host list")
    return names


def _words(text: str) -> Iterator[str]:
    """Splits at the commas that stand outside brackets."""
    depth = 0
    begin = 0
    for at, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            if at > begin:
                yield text[begin:at]
            begin = at + 1
        if depth not in (0, 1):
            raise HostlistError(f"unbalanced brackets in {text[:80]!r}")
    if depth:
        raise HostlistError(f"unbalanced brackets in {text[:80]!r}")
    if begin < len(text):
        yield text[begin:]


def _names(word: str) -> Iterator[str]:
    head, bracket, rest = word.partition("[")
    if not bracket:
        yield word
        return
    inside, _, tail = rest.partition("]")
    for part in _numbers(inside):
        for end in _names(tail):
            yield f"{head}{part}{end}"


def _numbers(inside: str) -> Iterator[str]:
    for item in inside.split(","):
        low, dash, high = item.partition("-")
        if not dash:
            yield item
            continue
        if not (low.isdecimal() and high.isdecimal() and low.isascii() and high.isascii()):
            raise HostlistError(f"no range: {item[:40]!r}")
        if len(high) > 9 or int(high) - int(low) > EXPAND_LIMIT:
            raise HostlistError(f"range too long: {item[:40]!r}")
        for number in range(int(low), int(high) + 1):
            yield str(number).zfill(len(low))


_LAST_NUMBER = re.compile(r"(.*?)(\d{1,9})\Z", re.DOTALL)


def compress(names: Iterable[str]) -> str:
    """One host list for ``names``, sorted, without doubles.

    A number in the midst of a name gets no brackets: Slurm 22.05 reads none there ("unable to parse
    node list"), and no request with such a list would reach it.

    >>> compress(["n2", "n1", "n3", "login", "n07", "a1-ib", "a2-ib"])
    'a1-ib,a2-ib,login,n07,n[1-3]'
    """
    plain: list[str] = []
    numbered: list[tuple[str, str]] = []
    padded: set[tuple[str, int]] = set()
    for name in sorted(set(names)):
        match = _LAST_NUMBER.match(name)
        if match is None:
            plain.append(name)
            continue
        head, digits = match.groups()
        numbered.append((head, digits))
        if len(digits) > 1 and digits.startswith("0"):
            padded.add((head, len(digits)))
    groups: dict[tuple[str, int], list[int]] = {}
    for head, digits in numbered:
        # "9" and "10" share a range without padding; "09" and "10" one of width 2.
        width = len(digits) if (head, len(digits)) in padded else 0
        groups.setdefault((head, width), []).append(int(digits))
    words = plain
    for (head, width), numbers in groups.items():
        runs = list(_runs(sorted(numbers)))
        if len(runs) == 1 and runs[0][0] == runs[0][1]:
            words.append(f"{head}{str(runs[0][0]).zfill(width)}")
            continue
        inside = ",".join(_run(low, high, width) for low, high in runs)
        words.append(f"{head}[{inside}]")
    return ",".join(words)


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    low = high = numbers[0]
    for number in numbers[1:]:
        if number == high + 1:
            high = number
            continue
        yield low, high
        low = high = number
    yield low, high


def _run(low: int, high: int, width: int) -> str:
    first = str(low).zfill(width)
    return first if low == high else f"{first}-{str(high).zfill(width)}"
