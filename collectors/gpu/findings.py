"""What the GPU parsers share: careful lines in; samples and problems out, both bounded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from collectors.events import spaced
from collectors.gpu.metrics import GPU_FIELDS
from collectors.sample import Metric, Problem, Sample, Value, clip

LINE_LIMIT_CHARACTERS = 16_384
SAMPLES_MOST = 50_000
PATIENCE_LINES = 50_000
PROBLEMS_MOST = 200

Text = str | bytes


@dataclass
class Findings:
    """Samples and problems of one text. What passes the limits is counted, not kept."""

    samples: list[Sample] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    samples_left: int = 0
    problems_left: int = 0
    _told: set[str] = field(default_factory=set)

    def add(self, one: Sample) -> None:
        """Keeps a sample that has fields."""
        if not one.fields:
            return
        if len(self.samples) < SAMPLES_MOST:
            self.samples.append(one)
        else:
            self.samples_left += 1

    def problem(self, words: str, line: str = "", *, once: bool = False) -> None:
        """Keeps a problem; with ``once``, the same words are told a single time."""
        if once and words in self._told:
            return
        if len(self.problems) < PROBLEMS_MOST:
            self._told.add(words)
            self.problems.append(Problem(clip(words, 500), clip(line, 300)))
        else:
            self.problems_left += 1

    def close(self) -> tuple[list[Sample], list[Problem]]:
        """Everything: no two samples share measurement, tags and time."""
        problems = list(self.problems)
        if self.problems_left:
            problems.append(Problem(f"{self.problems_left} more problems in the same text"))
        if self.samples_left:
            problems.append(Problem(f"more than {SAMPLES_MOST} readings: the rest is left out"))
        return spaced(self.samples), problems


def accepted(
    values: Mapping[str, float],
    findings: Findings,
    where: str,
    metrics: Mapping[str, Metric] = GPU_FIELDS,
) -> dict[str, Value]:
    """The values that a device can have reported; the others become problems."""
    fields: dict[str, Value] = {}
    for name, value in values.items():
        if metrics[name].accepts(value):
            fields[name] = float(value)
        else:
            findings.problem(f"{where}: {name} out of range: {value:g}")
    return fields


def lines(text: Text, findings: Findings) -> Iterator[tuple[str, bool]]:
    """Each line that is not empty, without its end, and whether it is whole.

    The last line is not whole when no line end follows: its last number may have lost digits.
    A line beyond the limit is cut and not whole. Only one line is copied at a time. After very
    many lines from which nothing was read, the text is another tool's and the rest is left.
    """
    size = len(text)
    patience, read = PATIENCE_LINES, len(findings.samples)
    pattern: re.Pattern[bytes] | re.Pattern[str]
    pattern = _LINES_BYTES if isinstance(text, bytes) else _LINES_TEXT
    for found in pattern.finditer(text):  # type: ignore[arg-type]
        at, stop = found.span()
        piece = text[at : min(stop, at + LINE_LIMIT_CHARACTERS)]
        line = piece.decode("utf-8", "replace") if isinstance(piece, bytes) else piece
        if at == 0:
            line = line.removeprefix("\ufeff")
        yield line.rstrip("\r"), stop < size and stop - at <= LINE_LIMIT_CHARACTERS
        if findings.samples_left:
            return
        patience -= 1
        if patience <= 0:
            if read == len(findings.samples):
                findings.problem(
                    f"nothing was read from {PATIENCE_LINES} lines in a row: the rest is left out"
                )
                return
            patience, read = PATIENCE_LINES, len(findings.samples)


_LINES_BYTES = re.compile(rb"[^\n]+")
_LINES_TEXT = re.compile(r"[^\n]+")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def without_escapes(line: str) -> str:
    """``line`` without the terminal's colours and underlines."""
    return _ESCAPES.sub("", line) if "\x1b" in line else line


def printable(line: str) -> bool:
    """Whether ``line`` is text: no control characters but tabs, no undecodable bytes."""
    return all(char.isprintable() or char == "\t" for char in line) and "\ufffd" not in line


def sum_known(values: Iterable[float | None]) -> float | None:
    """The sum of those that are numbers; None when none is."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None
