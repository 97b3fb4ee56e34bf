"""Reads the Prometheus text format, line by line: name, labels, value.

Source: the text exposition format (prometheus.io, version 0.0.4). Time stamps and comments are
passed over. Label sets repeat on many lines and are read once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from collectors.gpu.findings import Findings, Text, lines

LABEL_SETS_MOST = 20_000

_LINE = re.compile(
    r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]{0,200})\s*(?:\{(?P<labels>.*)\})?\s+"
    r"(?P<value>[-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|Inf|NaN))"
    r"(?:\s+-?\d{1,20})?\s*"
)
_LABEL = re.compile(
    r'\s*(?P<name>[A-Za-z_][A-Za-z0-9_]{0,100})\s*=\s*"(?P<value>(?:[^"\\]|\\.)*)"\s*,?'
)
_ESCAPE = re.compile(r"\\(.)")

Labels = dict[str, str]


@dataclass(frozen=True, slots=True)
class Point:
    """One line: ``labels`` by name in lower case, ``value`` a number, NaN or infinite."""

    name: str
    labels: Labels
    value: float


def points(text: Text, findings: Findings, wanted: str = "") -> Iterator[Point]:
    """The points of a text whose names begin with ``wanted``; other lines are passed over.

    A line that is none of the format is a problem; so is one that was cut off.
    """
    known: dict[str, Labels] = {}
    for line, whole in lines(text, findings):
        if line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None or not whole:
            if line.strip():
                findings.problem(
                    "cut off in this line, which is left out" if found else "not a metric", line
                )
            continue
        if not found["name"].startswith(wanted):
            continue
        raw = found["labels"] or ""
        labels = known.get(raw)
        if labels is None:
            read = _labels(raw)
            if read is None:
                findings.problem("labels that cannot be read", line)
                continue
            labels = read
            if len(known) < LABEL_SETS_MOST:
                known[raw] = labels
        yield Point(found["name"], labels, float(found["value"]))


def _labels(raw: str) -> Labels | None:
    labels: Labels = {}
    at = 0
    while at < len(raw):
        found = _LABEL.match(raw, at)
        if found is None:
            return None if raw[at:].strip() else labels
        value = found["value"]
        labels[found["name"].lower()] = _unescaped(value) if "\\" in value else value
        at = found.end()
    return labels


def _unescaped(value: str) -> str:
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], value)
