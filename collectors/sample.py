"""The words every source speaks: Metric, Sample, Problem, Batch, Source.

A *source* reads one outside thing (NVML, the kernel log, Slurm ...) and answers with a
Batch of Samples. A failed reading is data: a source that cannot read raises
SourceUnavailable, and :func:`run_cycle` turns that, or any other exception, into a Batch
that still carries the ``source`` reading, so that silence is never mistaken for health.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

Value = float | str
Tags = tuple[tuple[str, str], ...]

# Measurements whose fields may hold text. Everywhere else a field is a float, so that one
# InfluxDB column never meets two types.
TEXT_MEASUREMENTS = frozenset({"event", "source", "risk", "decision", "slurm_event"})

# The longest text field that is kept; the rest is cut and ends in an ellipsis.
TEXT_LIMIT_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class Metric:
    """One field of one measurement: what it is, its unit, and what it can sanely be.

    ``low`` and ``high`` bound what a device can report; a value outside is a sentinel or
    garbage and is refused and counted, never stored and never turned into 0.
    """

    measurement: str
    name: str
    kind: Literal["gauge", "counter", "state", "text"]
    help: str
    low: float = float("-inf")
    high: float = float("inf")

    def accepts(self, value: float) -> bool:
        """Whether ``value`` is one that the device can really have reported."""
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Sample:
    """One point: a measurement, its tags (sorted by name), its fields and its UTC time.

    A field that was not read is absent. ``time_ns`` is nanoseconds since the epoch; two
    samples of a batch never share measurement, tags and time, for a store would keep one.
    """

    measurement: str
    tags: Tags
    fields: Mapping[str, Value]
    time_ns: int

    def tag(self, name: str, default: str = "") -> str:
        """The value of tag ``name``, or ``default``."""
        for key, value in self.tags:
            if key == name:
                return value
        return default

    def number(self, name: str) -> float | None:
        """The field ``name`` if it was read and is a number, else None."""
        value = self.fields.get(name)
        return value if isinstance(value, float) else None

    def text(self, name: str) -> str:
        """The field ``name`` if it was read and is text, else the empty string."""
        value = self.fields.get(name)
        return value if isinstance(value, str) else ""


def sample(measurement: str, time_ns: int, fields: Mapping[str, Value], **tags: str) -> Sample:
    """A Sample with its tags sorted and empty tags left out.

    >>> sample("host", 0, {"load_1m": 0.5}, node="n1").tag("node")
    'n1'
    """
    kept = tuple(sorted((name, value) for name, value in tags.items() if value))
    return Sample(measurement, kept, fields, time_ns)


def numbers_of(*names: str) -> Callable[[Mapping[str, Value]], tuple[float | None, ...]]:
    """Reads these fields (two or more): in order, None for what was not read or is no number."""
    read = itemgetter(*names)

    def told(fields: Mapping[str, Value]) -> tuple[float | None, ...]:
        try:  # as a rule all are there and numbers: read in one go
            values: tuple[float, ...] = read(fields)
            sum(values)  # with text it has none; quicker than to ask each for its type
            return values
        except (KeyError, TypeError):
            pass
        some = [fields.get(name) for name in names]
        return tuple([value if isinstance(value, float | int) else None for value in some])

    return told


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that could not be read: what, and the piece of input it concerns."""

    problem: str
    line: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one cycle of one source gave: samples, problems, and how the cycle went."""

    source: str
    samples: tuple[Sample, ...] = ()
    problems: tuple[Problem, ...] = ()
    up: bool = True
    fault: str = ""
    duration_seconds: float = 0.0


class SourceUnavailable(Exception):
    """The source cannot be read now. The text says what happened and what to do."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a source may know of the world: handed in, never reached for.

    ``root`` stands before /sys, /proc, /dev and /run, so that tests hand in a tree.
    ``state_dir`` is a folder of the source's own for cursors and baselines.
    """

    node: str
    state_dir: Path
    root: Path = Path("/")
    now_ns: Callable[[], int] = time.time_ns


@runtime_checkable
class Source(Protocol):
    """One thing that is read. ``collect`` ends, one way or another, by its deadline."""

    name: str
    period_seconds: float
    deadline_seconds: float

    def collect(self, now_ns: int) -> Batch:
        """Reads once. Raises SourceUnavailable when nothing could be read."""
        ...

    def close(self) -> None:
        """Lets go of files and processes. May be called twice."""
        ...


@dataclass
class Cycle:
    """Runs one source cycle after cycle and keeps what the ``source`` reading tells."""

    source: Source
    node: str
    monotonic: Callable[[], float] = time.monotonic
    last_good_seconds: float | None = field(default=None, init=False)
    started_seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.started_seconds = self.monotonic()

    def run(self, now_ns: int) -> Batch:
        """One cycle; whatever happens, the batch ends in the ``source`` reading."""
        begin = self.monotonic()
        try:
            batch = self.source.collect(now_ns)
        except SourceUnavailable as error:
            batch = Batch(self.source.name, up=False, fault=str(error))
        except Exception as error:  # a source's bug must not cost other sources
            fault = f"{type(error).__name__}: {error}"
            batch = Batch(self.source.name, up=False, fault=fault)
        end = self.monotonic()
        if batch.up:
            self.last_good_seconds = end
        return self.closed(batch, now_ns, end - begin)

    def closed(self, batch: Batch, now_ns: int, duration_seconds: float) -> Batch:
        """``batch`` with its ``source`` reading appended."""
        reading = source_reading(
            self.node,
            self.source.name,
            now_ns,
            up=batch.up,
            duration_seconds=duration_seconds,
            age_seconds=self.age_seconds(),
            fault=batch.fault,
        )
        return Batch(
            batch.source,
            (*batch.samples, reading),
            batch.problems,
            batch.up,
            batch.fault,
            duration_seconds,
        )

    def age_seconds(self) -> float:
        """Seconds since the last good cycle, or since the start when there was none."""
        since = self.last_good_seconds
        return max(0.0, self.monotonic() - (self.started_seconds if since is None else since))


def source_reading(
    node: str,
    source: str,
    now_ns: int,
    *,
    up: bool,
    duration_seconds: float,
    age_seconds: float,
    fault: str = "",
) -> Sample:
    """The ``source`` point that every cycle writes, whatever happened."""
    fields: dict[str, Value] = {
        "up": 1.0 if up else 0.0,
        "duration_seconds": round(duration_seconds, 6),
        "age_seconds": round(age_seconds, 3),
    }
    if fault:
        fields["fault"] = clip(fault)
    return sample("source", now_ns, fields, node=node, source=source)


def clip(text: str, limit_characters: int = TEXT_LIMIT_CHARACTERS) -> str:
    """``text`` on one line, without control characters, at most ``limit_characters`` long."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= limit_characters else plain[: limit_characters - 1] + "\u2026"


def bounded(
    metrics: Mapping[str, Metric], values: Iterable[tuple[str, float]]
) -> tuple[dict[str, Value], list[Problem]]:
    """Splits readings into fields that a device can report and problems for the rest."""
    fields: dict[str, Value] = {}
    problems: list[Problem] = []
    for name, value in values:
        metric = metrics[name]
        if metric.accepts(value):
            fields[name] = float(value)
        else:
            problems.append(Problem(f"{name} out of range: {value:g}"))
    return fields, problems
