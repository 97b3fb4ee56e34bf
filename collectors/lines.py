"""InfluxDB line protocol, both ways: the one format between agent, head and stores.

``decode`` takes what InfluxDB takes and gives it the same meaning, with two differences
that follow from our schema: every number (float, ``12i``, ``12u``, ``true``) becomes a
float, and NaN, infinities and numbers outside int64 (or uint64) are refused line by line.
The rules were settled against InfluxDB 1.6.7 itself; ``tests/collectors/test_lines_judge``
asks it again.

Most lines are plain: no escape, no quote, only printable ASCII. A body that holds no other
is read whole (``collectors.line_bodies``), which is what agents send nearly always, and of its
lines only what was not read before (``collectors.line_ends``). Else plain lines take a path of
whole ``split`` calls with the names cached; every other line goes through the exact reader of
``collectors.line_reader``. All give the same samples.

Source: https://docs.influxdata.com/influxdb/v1/write_protocols/line_protocol_reference/
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice

from collectors.line_bodies import can_be_known, numbers_of
from collectors.line_ends import Cut, Ends
from collectors.line_reader import LineError, fold_lines, read_line, read_series
from collectors.sample import Sample, Tags, Value

# A longer line is refused: it is a fault or an attack, never a reading.
LINE_LIMIT_BYTES = 64 * 1024

# Nanoseconds in one unit of the ``precision`` parameter; v1 names beside v2 names.
PRECISIONS_NS = {
    "ns": 1,
    "n": 1,
    "us": 1_000,
    "u": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}

# InfluxDB's own range of times (influxdb models.MinNanoTime, MaxNanoTime).
TIME_LOW_NS = -(2**63) + 2
TIME_HIGH_NS = 2**63 - 2

_PLAIN_BYTES = bytes(c for c in range(0x20, 0x7F) if c not in b'\\"') + b"\n"
_ALL_BUT_STRUCTURE = bytes(c for c in range(256) if c not in b"=,")
_CACHE_LIMIT = 400_000
# What is longer is read anew each time: a cache must cost no more than its number says.
_CACHED_HEAD_BYTES = 400
_CACHED_TAGS = 16
_CACHED_LAYOUT_BYTES = 8_000
_CACHED_NAMES = 512


@dataclass(frozen=True, slots=True)
class LineProblem:
    """One refused line: its number from 1, its beginning, and why."""

    number: int
    line: str
    problem: str


@dataclass(slots=True)
class Decoded:
    """What a body held: the samples of its good lines and a problem for each bad one.

    ``numbers`` has the line number of each sample.
    """

    samples: list[Sample] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    problems: list[LineProblem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Head:
    """The part before the fields, read once and then looked up."""

    measurement: str
    tags: Tags
    underscores: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """The names of one set of fields, read once and then looked up."""

    names: tuple[str, ...]
    structure: bytes
    underscores: int


class Decoder:
    """Decodes bodies; keeps a bounded cache of series and field names between them."""

    def __init__(self, line_limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self.line_limit_bytes = line_limit_bytes
        self._heads: dict[bytes, _Head] = {}
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}
        self._layouts: dict[tuple[bytes, ...], _Layout] = {}
        self._known: set[tuple[str, ...]] = set()  # the names of those layouts
        self._layout_names = 0
        self._ends = Ends()

    def decode(self, body: bytes, default_time_ns: int, precision: str = "ns") -> Decoded:
        """The samples of ``body``; lines without a time get ``default_time_ns``.

        Raises ValueError for a precision that is none of ns, us, ms, s (or v1's n, u, m, h).
        """
        unit_ns = PRECISIONS_NS.get(precision)
        if unit_ns is None:
            raise ValueError(f"precision must be one of ns, us, ms, s, not {precision!r}")
        plain_body = not body.translate(None, _PLAIN_BYTES)
        if plain_body and (whole := self._whole(body, default_time_ns, unit_ns)) is not None:
            return whole
        decoded = Decoded()
        lines: Iterable[tuple[int, bytes]] = enumerate(body.split(b"\n"), 1)
        if not plain_body and b'"' in body:
            lines = fold_lines(body, self.line_limit_bytes)
        for number, line in lines:
            sample = None
            if plain_body or not line.translate(None, _PLAIN_BYTES):
                sample = self._plain(line, default_time_ns, unit_ns)
            if sample is not None:
                decoded.samples.append(sample)
                decoded.numbers.append(number)
            else:
                self._exact(number, line, default_time_ns, unit_ns, decoded)
        return decoded

    def _whole(self, body: bytes, default_time_ns: int, unit_ns: int) -> Decoded | None:
        """A body of plain lines read at once, or None when they must be read one by one: the
        numbers of all its lines are parsed in one call, and whatever is odd about one of them
        (a fault, an integer, a name not met before) leaves the whole body to the readers of lines.
        """
        numbers: list[int] = []
        heads: list[_Head] = []
        texts: list[bytes] = []
        wholes: list[bytes] = []
        times: list[int] = []
        cuts: list[Cut] = []
        ends: list[Mapping[str, Value] | None] = []
        for number, line in enumerate(body.split(b"\n"), 1):
            if not line:
                continue
            parts = line.split(b" ")
            # int() raises for thousands of digits; 20 are more than any time has.
            if len(parts) == 3 and len(parts[2]) <= 20 and parts[2].isdigit():
                time_ns = int(parts[2]) * unit_ns
            elif len(parts) == 2:
                time_ns = default_time_ns
            else:
                return None
            if len(line) > self.line_limit_bytes:
                return None
            head = self._heads.get(parts[0]) or self._new_head(parts[0])
            if head is None or time_ns > TIME_HIGH_NS:
                return None
            cut = self._ends.cut_of(head.measurement)
            text, end = cut.split(parts[1])
            numbers.append(number)
            heads.append(head)
            texts.append(text)
            wholes.append(parts[1])
            times.append(time_ns)
            cuts.append(cut)
            ends.append(end)
        read = self._read(texts, cuts, ends)
        if read is None and any(end is not None for end in ends):
            # What stands before a known end may be met for the first time, or be forgotten: unless
            # it is learned from the whole line, no body with that end would be read so again.
            read = self._read(wholes, cuts, [None] * len(ends))
        if read is None:
            return None
        samples = [
            Sample(head.measurement, head.tags, fields, time_ns)
            for head, fields, time_ns in zip(heads, read, times, strict=True)
        ]
        return Decoded(samples, numbers)

    def _read(
        self, texts: list[bytes], cuts: list[Cut], ends: list[Mapping[str, Value] | None]
    ) -> list[dict[str, Value]] | None:
        """The fields of each line: those of its text, and of its end where that is known."""
        read = numbers_of(texts, self._known)
        if read is None:
            return None
        for fields, end, cut, text in zip(read, ends, cuts, texts, strict=True):
            if end is None:
                if before_cut := self._ends.learn(cut, text, fields):
                    self._know(tuple(islice(fields, before_cut)))
            else:
                alone = len(fields)
                fields.update(end)
                if len(fields) != alone + len(end):
                    return None  # a name that came twice
        return read

    def _plain(self, line: bytes, default_time_ns: int, unit_ns: int) -> Sample | None:
        """``line`` by whole splits, or None when only the exact reader can say."""
        if len(line) > self.line_limit_bytes:
            return None
        parts = line.split(b" ")
        if len(parts) == 3:
            head_bytes, fields_bytes, time_bytes = parts
        elif len(parts) == 2:
            (head_bytes, fields_bytes), time_bytes = parts, b""
        else:
            return None
        head = self._heads.get(head_bytes) or self._new_head(head_bytes)
        if head is None:
            return None
        words = fields_bytes.replace(b"=", b",").split(b",")
        layout = self._layouts.get(tuple(words[::2]))
        if layout is None or fields_bytes.translate(None, _ALL_BUT_STRUCTURE) != layout.structure:
            return None
        # float() and int() take "1_000" and "+1", which are no numbers here.
        if line.count(b"_") != head.underscores + layout.underscores:
            return None
        if b"=+" in fields_bytes or time_bytes[:1] == b"+":
            return None
        try:
            values = list(map(float, words[1::2]))
            time_ns = int(time_bytes) * unit_ns if time_bytes else default_time_ns
        except ValueError:
            return None
        # float() takes "nan", "inf" and "1e999": the sum shows them all at once.
        if not math.isfinite(sum(values)) or not TIME_LOW_NS <= time_ns <= TIME_HIGH_NS:
            return None
        return Sample(
            head.measurement, head.tags, dict(zip(layout.names, values, strict=True)), time_ns
        )

    def _new_head(self, head_bytes: bytes) -> _Head | None:
        """Reads a series not met before; None when it is faulty or odd."""
        if head_bytes[:1] in (b"", b"#"):
            return None
        try:
            measurement, tags = read_series(head_bytes.decode("ascii"))
        except LineError:
            return None
        # The same few tags come back in many series: one copy of each in memory.
        kept = len(head_bytes) <= _CACHED_HEAD_BYTES and len(tags) <= _CACHED_TAGS
        pairs = self._pairs
        if len(pairs) >= _CACHE_LIMIT or len(self._heads) >= _CACHE_LIMIT:
            # Together: series hold their tags, whoever else has forgotten them.
            pairs.clear()
            self._heads.clear()
        if kept:
            tags = tuple([pairs.setdefault(pair, pair) for pair in tags])
        head = _Head(sys.intern(measurement), tags, head_bytes.count(b"_"))
        if kept:
            self._heads[head_bytes] = head
        return head

    def _exact(
        self, number: int, line: bytes, default_time_ns: int, unit_ns: int, decoded: Decoded
    ) -> None:
        """``line`` by the exact reader; what it learns of a plain line is kept for the next."""
        try:
            if len(line) > self.line_limit_bytes:
                raise LineError(f"longer than {self.line_limit_bytes} bytes")
            sample = read_line(line, default_time_ns, unit_ns)
        except LineError as error:
            decoded.problems.append(LineProblem(number, _excerpt(line), str(error)))
            return
        if sample is None:
            return
        decoded.samples.append(sample)
        decoded.numbers.append(number)
        if not line.translate(None, _PLAIN_BYTES):
            self._learn(line, sample)

    def _learn(self, line: bytes, sample: Sample) -> None:
        parts = line.split(b" ")
        if len(parts) not in (2, 3) or len(parts[1]) > _CACHED_LAYOUT_BYTES:
            return
        words = tuple(parts[1].replace(b"=", b",").split(b",")[::2])
        names = tuple(word.decode("ascii") for word in words)
        if names != tuple(sample.fields):
            return  # a name given twice: never plain
        if len(names) > _CACHED_NAMES:
            return
        self._make_room(len(names))
        # The names of the first sample of a layout serve all later ones: one copy in memory.
        structure = b",".join([b"="] * len(names))
        underscores = sum(word.count(b"_") for word in words)
        self._layouts.setdefault(words, _Layout(tuple(sample.fields), structure, underscores))
        if can_be_known(names):
            self._known.add(names)

    def _know(self, names: tuple[str, ...]) -> None:
        """Lines with ``names`` alone may be read at once: they begin a line that was."""
        if names not in self._known:
            self._make_room(len(names))
            self._known.add(names)

    def _make_room(self, names: int) -> None:
        """For so many names more; forgets the others when they are too many."""
        self._layout_names += names
        if self._layout_names > _CACHE_LIMIT or len(self._layouts) >= _CACHE_LIMIT // 100:
            self._layouts.clear()
            self._known.clear()
            self._layout_names = names


_shared = Decoder()


def decode(body: bytes, default_time_ns: int, precision: str = "ns") -> Decoded:
    """:meth:`Decoder.decode` of one decoder that the process shares (not for many threads)."""
    return _shared.decode(body, default_time_ns, precision)


_NAME_ESCAPES = str.maketrans({",": "\\,", "=": "\\=", " ": "\\ ", "\n": "\\ ", "\r": "\\ "})
_MEASUREMENT_ESCAPES = str.maketrans({",": "\\,", " ": "\\ ", "\n": "\\ ", "\r": "\\ "})
_BACKSLASH_BEFORE_SPECIAL = re.compile(r'\\(?=[\\,= "]|$)')
_TEXT_ESCAPES = str.maketrans({'"': '\\"', "\\": "\\\\"})


def encode(samples: Iterable[Sample]) -> bytes:
    """``samples`` as line protocol, one line each, times in nanoseconds.

    The format has no room for a few things, so they are changed and nothing else is. In a
    name or tag a line break becomes a space and a backslash at the end becomes a slash; in
    a field's name so does one before a comma, space, quote, ``=`` or another. A measurement
    cannot begin with ``#``: it becomes ``_``. A field that is NaN or infinite is left out,
    and a sample with no field left gives no line.
    """
    lines = [line for line in map(encode_line, samples) if line]
    return ("\n".join(lines) + "\n").encode("utf-8", "replace") if lines else b""


def encode_line(sample: Sample) -> str:
    """``sample`` as one line without its line break; empty when it has no field to write."""
    fields = ",".join(
        [
            f"{_encode_key(name)}={_encode_value(value)}"
            for name, value in sample.fields.items()
            if isinstance(value, str) or math.isfinite(value)
        ]
    )
    if not fields:
        return ""
    return f"{_encode_series(sample.measurement, sample.tags)} {fields} {sample.time_ns}"


_series: dict[tuple[str, Tags], str] = {}


def _encode_series(measurement: str, tags: Tags) -> str:
    key = (measurement, tags)
    text = _series.get(key)
    if text is None:
        name = _end(measurement.translate(_MEASUREMENT_ESCAPES))
        if name.startswith("#"):
            name = "_" + name[1:]
        pairs = [f",{_encode_name(tag)}={_encode_name(value)}" for tag, value in tags if value]
        text = name + "".join(pairs)
        if len(_series) >= _CACHE_LIMIT:
            _series.clear()
        _series[key] = text
    return text


@lru_cache(maxsize=8192)
def _encode_key(text: str) -> str:
    # In a field's name a backslash takes whatever follows with it, so none may stand there.
    return _BACKSLASH_BEFORE_SPECIAL.sub("/", text).translate(_NAME_ESCAPES)


def _encode_name(text: str) -> str:
    return _end(text.translate(_NAME_ESCAPES))


def _end(text: str) -> str:
    """``text`` without a backslash at its end, which would escape what follows it."""
    kept = text.rstrip("\\")
    return kept + "/" * (len(text) - len(kept))


def _encode_value(value: Value) -> str:
    if isinstance(value, str):
        return f'"{value.translate(_TEXT_ESCAPES)}"'
    return repr(float(value))


def _excerpt(line: bytes, limit_characters: int = 200) -> str:
    text = line[: limit_characters * 4].decode("utf-8", "replace").strip()
    return text if len(text) <= limit_characters else text[: limit_characters - 1] + "\u2026"
