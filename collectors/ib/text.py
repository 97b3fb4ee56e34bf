"""What the parsers of InfiniBand tools share: careful lines in, points and problems out.

The rule of all of them: a number is read only from a whole line in a form that is known. A text
that was cut off loses its last line, an unknown line costs itself, and both are told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from collectors.ib.units import (
    BY_TOOL,
    DATA_FIELDS,
    OLD_NAMES,
    U64_CEILING,
    Counter,
    at_ceiling,
)
from collectors.line_pieces import split_lines
from collectors.sample import Problem, Sample, Value, sample

LINE_LIMIT_CHARACTERS = 4_096
PROBLEM_LIMIT = 200
# Ports in one text: more than a fabric has (10,000 hosts on three tiers have some 70,000 a rail).
POINTS_LIMIT = 250_000

# What the tools and libibumad/libibmad say when they fail; often on stdout, often with exit 0.
FAILURE = re.compile(
    r"ib(?:panic|warn|error)\b|iberror|mad_rpc|\bumad\b|libibnetdisc|Query SA failed"
    r"|Fatal error|[Ff]ailed to |can't open|query failed|[Cc]onnection timed out"
    r"|[Nn]o such file|[Pp]ermission denied|command not found"
)


@dataclass
class Problems:
    """Problems, bounded: past the limit they are only counted."""

    kept: list[Problem] = field(default_factory=list)
    left: int = 0

    def add(self, problem: str, line: str = "") -> None:
        """Keeps one problem, or counts it when there are already many."""
        if len(self.kept) < PROBLEM_LIMIT:
            self.kept.append(Problem(problem, line[:400]))
        else:
            self.left += 1

    def unknown(self, line: str, tool: str) -> bool:
        """A line that the parser has no form for: a failure in the tool's words, or foreign.

        True for a foreign one. It may have been a heading: what stands below belongs to nobody.
        """
        if len(self.kept) >= PROBLEM_LIMIT:  # a text of another kind: no closer look at each line
            self.left += 1
            return True
        if FAILURE.search(line):
            self.add(f"{tool} reports a failure", line)
            return False
        self.add(f"not a line that {tool} prints", line)
        return True

    def all(self) -> list[Problem]:
        """What was kept, and how many were not."""
        if not self.left:
            return self.kept
        return [*self.kept, Problem(f"{self.left} more problems of the same text")]


def whole_lines(text: str | bytes, problems: Problems) -> Iterator[str]:
    """The lines of ``text`` that are whole, without blanks at their end: no cut-off last line,
    none of absurd length.

    A text that does not end in a line end was cut: its last number may have lost digits.
    """
    end = text.rfind(b"\n") if isinstance(text, bytes) else text.rfind("\n")
    if end >= 0:
        for line in split_lines(text, end):
            line = line.rstrip()
            if len(line) > LINE_LIMIT_CHARACTERS:
                problems.add(f"line of over {LINE_LIMIT_CHARACTERS} characters left out", line)
            else:
                yield line
    for last in split_lines(text[end + 1 : end + 1 + LINE_LIMIT_CHARACTERS]):
        if last.strip():
            problems.add("cut off in this line, which is left out", last)


@dataclass
class Points:
    """Collects the fields of points; one point per measurement and tags, whatever the order."""

    problems: Problems
    found: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, Value]] = field(
        default_factory=dict
    )
    left: int = 0

    def put(self, measurement: str, tags: Mapping[str, str], fields: Mapping[str, float]) -> None:
        """Adds ``fields`` to the point. A field that is told twice with two values is a problem
        and the first is kept: which one is true cannot be known."""
        key = (measurement, tuple(sorted((k, v) for k, v in tags.items() if v)))
        if len(self.found) >= POINTS_LIMIT and key not in self.found:
            self.left += 1
            return
        point = self.found.setdefault(key, {})
        for name, value in fields.items():
            old = point.setdefault(name, value)
            if old != value:
                where = " ".join(f"{k}={v}" for k, v in key[1])
                self.problems.add(f"{name} is told twice: {old:g} and {value:g}", where)

    def samples(self, now_ns: int) -> list[Sample]:
        """One sample per point that has fields."""
        if self.left:
            words = f"more than {POINTS_LIMIT} ports: the rest of the text is left out"
            self.problems.kept.append(Problem(words))
        return [
            sample(measurement, now_ns, fields, **dict(tags))
            for (measurement, tags), fields in self.found.items()
            if fields
        ]


_NUMBER = re.compile(r"\d{1,20}\Z")


def counter_value(
    counter: Counter, text: str, where: str, problems: Problems, bits: int | None
) -> float | None:
    """The counter's value in our unit, or None with a problem.

    ``bits`` is the width that the text implies, None where it may be either width. In
    PortCounters a counter stops at its ceiling: an error counter there is a lower bound and is
    kept with a problem; a data counter there says nothing and is left out. A number wider than
    its counter cannot have been read from a port.
    """
    if not _NUMBER.match(text):
        problems.add(f"{counter.tool} of {where} is no number", text)
        return None
    raw = int(text)
    if raw > U64_CEILING or (bits is not None and raw >= 1 << bits):
        problems.add(f"{counter.tool} of {where} is larger than its counter", text)
        return None
    narrow = bits is None or bits == counter.bits
    if raw == U64_CEILING or (narrow and at_ceiling(counter, raw)):
        if counter.field in DATA_FIELDS or raw == U64_CEILING:
            problems.add(f"{counter.tool} of {where} saturated: stopped at its ceiling, left out")
            return None
        problems.add(
            f"{counter.tool} of {where} saturated: at least {raw}, no longer counting", text
        )
    return float(raw * counter.factor)


def known_counter(tool_name: str) -> Counter | None:
    """The counter that the tools, new or old, call ``tool_name``, or None."""
    return BY_TOOL.get(OLD_NAMES.get(tool_name, tool_name))


# Names that the tools print beside the counters of the schema; they are read over in silence.
OTHER_NAMES = frozenset(
    {
        "PortSelect",
        "CounterSelect",
        "CounterSelect2",
        "PortXmitConstraintErrors",
        "PortRcvConstraintErrors",
        "QP1Dropped",
        "XmtConstraintErrors",
        "RcvConstraintErrors",
        "XmtPkts",
        "RcvPkts",
        "PortXmitPkts",
        "PortRcvPkts",
        "PortUnicastXmitPkts",
        "PortUnicastRcvPkts",
        "PortMulticastXmitPkts",
        "PortMulticastRcvPkts",
        "PortLocalPhysicalErrors",
        "PortMalformedPktErrors",
        "PortBufferOverrunErrors",
        "PortDLIDMappingErrors",
        "PortVLMappingErrors",
        "PortLoopingErrors",
        "PortInactiveDiscards",
        "PortNeighborMTUDiscards",
        "PortSwLifetimeLimitDiscards",
        "PortSwHOQLifetimeLimitDiscards",
    }
)
