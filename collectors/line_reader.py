"""The exact reader of one line of line protocol, for the lines that are not plain.

Every rule here was asked of InfluxDB 1.6.7 itself. Where it is odd, so are we: in names
and tags a character counts as escaped when the one before it is a backslash, whatever
stands before that; in fields a backslash takes the next character with it. We accept
more in two places: a line may end in CRLF and an integer in ``u``. We accept less in
four, where it guesses: nothing may follow the closing quote of a text, a tag's value may
not begin with ``=``, two backslashes may not stand before the ``=`` of a field, and a field
must have a name (it takes `` <tab>=1`` for one without, though not ``  =1``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from collectors.sample import Sample, Tags, Value

TAGS_LIMIT = 32
FIELDS_LIMIT = 1024

_TIME_LOW_NS = -(2**63) + 2
_TIME_HIGH_NS = 2**63 - 2

_TEXT = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_KEY = r"(?:[^\\=,\s]|[^\S \n]|\\.)+"
_FIELD = re.compile(rf"({_KEY})(?<!\\)=({_TEXT}|[^\",\s][^,\s]*)(?=[, ]|\Z)", re.S)
_FIELD_IN_BODY = re.compile(rf"{_KEY}(?<!\\)=(?:{_TEXT}|[^\", \n][^, \n]*)".encode(), re.S)
_SERIES_IN_BODY = re.compile(rb"[^\n]*?(?<!\\) [ \t\0]*")
_SPACE = re.compile(r"(?<!\\) ")
_COMMA = re.compile(r"(?<!\\),")
_EQUALS = re.compile(r"(?<!\\)=")
_CLOSED = re.compile(_TEXT, re.S)
_NUMBER = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_INTEGER = re.compile(r"-?[0-9]{1,20}[iu]")
_TIME = re.compile(r"-?[0-9]{1,20}")
_NAME_ESCAPE = re.compile(r"\\([,= ])")
_KEY_ESCAPE = re.compile(r'\\([,= "])')
_TEXT_ESCAPE = re.compile(r'\\(["\\])')

_BOOLEANS = {
    **dict.fromkeys(("t", "T", "true", "True", "TRUE"), 1.0),
    **dict.fromkeys(("f", "F", "false", "False", "FALSE"), 0.0),
}


class LineError(ValueError):
    """A line that says nothing we can keep. The text says what is wrong with it."""


def fold_lines(body: bytes, limit_bytes: int) -> Iterator[tuple[int, bytes]]:
    """(number, line) of ``body``, where a quoted text may hold line breaks.

    A text that does not end within ``limit_bytes`` is no text: its line ends at the line
    break, so that one open quote costs one line and not all that follow.
    """
    number, start = 1, 0
    while start <= len(body):
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        if body.find(b'"', start, end) >= 0:
            folded = _end_of_line(body, start)
            if end < folded <= start + limit_bytes:
                end = folded
        line = body[start:end]
        yield number, line
        number += 1 + line.count(b"\n")
        start = end + 1


def _end_of_line(body: bytes, start: int) -> int:
    """Where the line that begins at ``start`` ends when texts may hold line breaks."""
    series = _SERIES_IN_BODY.match(body, start)
    position = series.end() if series else start
    while found := _FIELD_IN_BODY.match(body, position):
        position = found.end()
        if body[position : position + 1] != b",":
            break
        position += 1
    end = body.find(b"\n", position)
    return len(body) if end < 0 else end


def read_line(line: bytes, default_time_ns: int, unit_ns: int) -> Sample | None:
    """The sample of one line, or None for an empty line or comment. Raises LineError."""
    text = line.decode("utf-8", "replace").lstrip(" \t\0").rstrip("\r")
    if not text.strip(" ") or text.startswith("#"):
        return None
    gap = _SPACE.search(text)
    if gap is None:
        raise LineError("missing fields")
    measurement, tags = read_series(text[: gap.start()])
    fields, rest = _fields(text[gap.end() :].lstrip(" \t\0"))
    return Sample(measurement, tags, fields, _time(rest.strip(" \t\0"), default_time_ns, unit_ns))


def read_series(text: str) -> tuple[str, Tags]:
    """Measurement and tags from what stands before the fields. Raises LineError."""
    name, *pairs = _COMMA.split(text)
    if not name:
        raise LineError("missing measurement")
    if len(pairs) > TAGS_LIMIT:
        raise LineError(f"more than {TAGS_LIMIT} tags")
    tags: dict[str, str] = {}
    for pair in pairs:
        words = _EQUALS.split(pair)
        if not words[0]:
            raise LineError("missing tag key")
        if len(words) == 1 or not words[1]:
            raise LineError("missing tag value")
        if len(words) > 2:
            raise LineError("invalid tag format")
        key = _NAME_ESCAPE.sub(r"\1", words[0])
        if key in tags:
            raise LineError("duplicate tags")
        if key == "time":
            raise LineError('a tag may not be called "time"')
        tags[key] = _NAME_ESCAPE.sub(r"\1", words[1])
    return _NAME_ESCAPE.sub(r"\1", name), tuple(sorted(tags.items()))


def _fields(text: str) -> tuple[dict[str, Value], str]:
    """The fields at the beginning of ``text``, and what follows them."""
    fields: dict[str, Value] = {}
    position = 0
    while True:
        found = _FIELD.match(text, position)
        if found is None:
            raise LineError(_field_fault(text[position:]))
        key = _KEY_ESCAPE.sub(r"\1", found[1])
        # InfluxDB drops a field called "time"; so do we. A name given twice: the last one.
        value = _value(found[2])
        if isinstance(fields.get(key, value), str) is not isinstance(value, str):
            raise LineError(f"field type conflict: {key[:40]}")
        if key != "time":
            fields[key] = value
        position = found.end()
        if text[position : position + 1] != ",":
            break
        position += 1
        if len(fields) >= FIELDS_LIMIT:
            raise LineError(f"more than {FIELDS_LIMIT} fields")
    if not fields:
        raise LineError("missing fields")
    return fields, text[position:]


def _field_fault(text: str) -> str:
    key, equals, value = text.partition("=")
    if not equals:
        return "invalid field format"
    if not key:
        return "missing field key"
    if not value or value[0] in ", ":
        return "missing field value"
    if value[0] != '"':
        return "invalid field format"
    return "text after the closing quote" if _CLOSED.match(value) else "unbalanced quotes"


def _value(text: str) -> Value:
    if text[0] == '"':
        return _TEXT_ESCAPE.sub(r"\1", text[1:-1])
    if _NUMBER.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise LineError(f"number out of range: {text[:40]}")
        return number
    if _INTEGER.fullmatch(text):
        whole = int(text[:-1])
        low, high = (-(2**63), 2**63 - 1) if text[-1] == "i" else (0, 2**64 - 1)
        if not low <= whole <= high:
            raise LineError(f"integer out of range: {text}")
        return float(whole)
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    raise LineError(f"invalid number: {text[:40]}")


def _time(text: str, default_time_ns: int, unit_ns: int) -> int:
    if not text:
        return default_time_ns
    if not _TIME.fullmatch(text):
        raise LineError(f"bad timestamp: {text[:40]}")
    time_ns = int(text) * unit_ns
    if not _TIME_LOW_NS <= time_ns <= _TIME_HIGH_NS:
        raise LineError("time outside range")
    return time_ns
