"""Samples as the bytes of one spool frame, and back as columns.

Samples of one measurement with the same field names form a group: an array of times, one of
numbers (row by row) and the tags. A frame needs no other frame to be read, so a damaged one
costs itself only. Packing takes about a microsecond a sample and 20 ns a number.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from collectors.lines import TIME_HIGH_NS, TIME_LOW_NS
from collectors.sample import Sample, Tags

_VERSION = 1
_WORD, _ROW = "\x1f", "\x1e"
_CLEAN = str.maketrans({_WORD: " ", _ROW: " "})
_SMALL_BYTES = 512  # below this compression gains nothing

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("the spool's format is little-endian")


@dataclass(slots=True)
class _Group:
    names: tuple[str, ...]
    text: tuple[bool, ...]
    times: array[int] = field(default_factory=lambda: array("q"))
    numbers: array[float] = field(default_factory=lambda: array("d"))
    texts: list[list[str]] = field(default_factory=list)
    tags: list[Tags] = field(default_factory=list)


@dataclass(slots=True)
class Packer:
    """Collects samples for one frame."""

    samples: int = 0
    values: int = 0
    size_bytes: int = 0
    marks: list[tuple[str, str, int]] = field(default_factory=list)
    events: list[Sample] = field(default_factory=list)
    _groups: dict[tuple[str, tuple[str, ...], tuple[bool, ...]], _Group] = field(
        default_factory=dict
    )

    def __bool__(self) -> bool:
        return bool(self.samples or self.marks)

    def add(self, samples: Iterable[Sample]) -> None:
        """Adds ``samples``. Raises for one that cannot be packed; those before it are in.

        A group whose columns were not equally long would cost the rows of every other sender.
        """
        groups = self._groups
        # Samples of one layout come one after another: their group is looked up once.
        measurement = ""
        names: tuple[str, ...] | None = None
        group = _Group((), ())
        for sample in samples:
            if not TIME_LOW_NS <= sample.time_ns <= TIME_HIGH_NS:
                raise ValueError(f"{sample.measurement}: no store holds the time {sample.time_ns}")
            last, names = names, tuple(sample.fields)
            if names != last or sample.measurement != measurement:
                measurement = sample.measurement
                key = (measurement, names, ())
                group = groups.get(key) or groups.setdefault(key, _Group(names, ()))
            into = group
            try:  # all of them or none; from a list in half the time
                into.numbers.fromlist(list(sample.fields.values()))  # type: ignore[arg-type]
            except (TypeError, OverflowError):
                into = self._with_text(sample, names)
            into.times.append(sample.time_ns)
            into.tags.append(sample.tags)
            self.samples += 1
            self.values += len(names)
            self.size_bytes += 8 * len(names) + 64
            if measurement == "event":
                self.events.append(sample)

    def _with_text(self, sample: Sample, names: tuple[str, ...]) -> _Group:
        text = tuple(isinstance(value, str) for value in sample.fields.values())
        key = (sample.measurement, names, text)
        numbers = array("d", [v for v in sample.fields.values() if not isinstance(v, str)])
        texts = [value for value in sample.fields.values() if isinstance(value, str)]
        group = self._groups.get(key)
        if group is None:
            group = self._groups.setdefault(key, _Group(names, text))
        group.numbers.extend(numbers)
        group.texts.append(texts)
        self.size_bytes += sum(map(len, texts))
        return group

    def payload(self) -> bytes:
        """The bytes of the frame."""
        parts: list[bytes] = []
        heads: list[dict[str, Any]] = []
        low, high = 2**63 - 1, -(2**63)
        for (measurement, names, text), group in self._groups.items():
            if not group.times:
                continue  # met only with text
            low, high = min(low, *group.times), max(high, *group.times)
            pieces = [
                group.times.tobytes(),
                group.numbers.tobytes(),
                _ROW.join(map(_words, group.tags)).encode("utf-8", "replace"),
                _json(group.texts) if group.texts else b"",
            ]
            parts.extend(pieces)
            heads.append(
                {
                    "m": measurement,
                    "names": names,
                    "text": text,
                    "rows": len(group.times),
                    "bytes": [len(piece) for piece in pieces],
                }
            )
        body = b"".join(parts)
        head: dict[str, Any] = {"v": _VERSION, "groups": heads, "marks": self.marks}
        if heads:
            head |= {"from": low, "to": high}
        if len(body) >= _SMALL_BYTES:
            head["raw"] = len(body)
            body = pa.compress(body, codec="zstd", asbytes=True)
        head_bytes = _json(head)
        return len(head_bytes).to_bytes(4, "little") + head_bytes + body


def _json(value: object) -> bytes:
    """Half a surrogate pair (from a file that is no UTF-8) would stop every later reader."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace")


def _words(tags: Tags) -> str:
    text = _WORD.join([word for pair in tags for word in pair])
    # Two more separators than expected: somebody put one into a tag.
    if (tags and text.count(_WORD) != 2 * len(tags) - 1) or _ROW in text:
        return _WORD.join([word.translate(_CLEAN) for pair in tags for word in pair])
    return text


@dataclass(frozen=True, slots=True)
class Columns:
    """One group of one frame: n rows. ``numbers`` is [n, number fields]."""

    measurement: str
    names: tuple[str, ...]
    text: tuple[bool, ...]
    times: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.float64]
    series: Sequence[str]
    texts: list[list[str]]

    def take(self, rows: list[int]) -> Columns:
        """Some of the rows."""
        return Columns(
            self.measurement,
            self.names,
            self.text,
            self.times[rows],
            self.numbers[rows],
            [self.series[row] for row in rows],
            [self.texts[row] for row in rows] if self.texts else [],
        )


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame's head, before its body is unpacked."""

    head: dict[str, Any]
    body: bytes

    @property
    def marks(self) -> list[tuple[str, str, int]]:
        """The batches that the frame made durable: (node, instance, sequence)."""
        return [(str(n), str(i), int(s)) for n, i, s in self.head.get("marks", [])]

    @property
    def measurements(self) -> set[str]:
        """Which measurements it holds."""
        return {group["m"] for group in self.head["groups"]}

    @property
    def rows(self) -> int:
        """How many samples it holds."""
        return sum(group["rows"] for group in self.head["groups"])

    @property
    def values(self) -> int:
        """How many field values it holds."""
        return sum(group["rows"] * len(group["names"]) for group in self.head["groups"])

    def overlaps(self, start_ns: int, end_ns: int) -> bool:
        """Whether a sample may lie in [start_ns, end_ns)."""
        return bool(self.head["groups"]) and (
            self.head["from"] < end_ns and self.head["to"] >= start_ns
        )

    def columns(self, measurement: str | None = None) -> Iterator[Columns]:
        """The groups of ``measurement``, or all."""
        groups = self.head["groups"]
        if measurement is not None and all(group["m"] != measurement for group in groups):
            return
        raw = self.head.get("raw")
        body = self.body
        if raw is not None:
            body = pa.decompress(body, decompressed_size=raw, codec="zstd", asbytes=True)
        position = 0
        for group in groups:
            pieces = []
            for size in group["bytes"]:
                pieces.append(body[position : position + size])
                position += size
            if measurement is None or group["m"] == measurement:
                yield _columns(group, pieces)


def _columns(group: dict[str, Any], pieces: list[bytes]) -> Columns:
    text = tuple(group["text"]) or (False,) * len(group["names"])
    rows = group["rows"]
    return Columns(
        group["m"],
        tuple(group["names"]),
        text,
        np.frombuffer(pieces[0], np.int64),
        np.frombuffer(pieces[1], np.float64).reshape(rows, len(text) - sum(text)),
        pieces[2].decode().split(_ROW),
        json.loads(pieces[3]) if pieces[3] else [],
    )


def open_frame(payload: bytes) -> Frame:
    """The frame of a payload. Raises ValueError for one of another version, or that is at odds
    with itself: whoever reads its columns later can rely on their lengths."""
    size = int.from_bytes(payload[:4], "little")
    head = json.loads(payload[4 : 4 + size])
    if head.get("v") != _VERSION or not isinstance(head.get("groups"), list):
        raise ValueError(f"spool frame of version {head.get('v')}; this tocsin reads {_VERSION}")
    for group in head["groups"]:
        numbers = len(group["names"]) - sum(group["text"])
        if list(group["bytes"][:2]) != [8 * group["rows"], 8 * group["rows"] * numbers]:
            raise ValueError(f"spool frame whose columns of {group['m']} differ in length")
    return Frame(head, payload[4 + size :])


def split_series(series: str) -> Tags:
    """The tags of one row."""
    words = series.split(_WORD)
    return tuple(zip(words[::2], words[1::2], strict=True)) if series else ()
