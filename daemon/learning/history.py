"""The store as a history to learn from: what a telemetry directory gives, without a copy of it.

Only what features and labels look at is read, a few hours at a time, so that memory depends
neither on the length of the history nor much on the size of the fleet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from daemon.store.parts import DAY_NS, HOUR_NS
from daemon.store.reader import Reader
from daemon.store.tables import empty_table, tags_of, unify
from models.features.catalogue import CATALOGUE
from models.telemetry import Chunk, Telemetry
from models.telemetry.reader import to_chunk

EVENTS = ("event", "slurm_event")
# About so many rows of the largest table are held at once.
ROWS_AT_ONCE = 2_000_000
_GPU_ROWS_AN_HOUR = 8 * 360  # of one node, at the agent's shortest usual period


class StoreHistory(Telemetry):
    """The last ``days`` of the store in ``directory``, of at most ``nodes_max`` nodes.

    Raises FileNotFoundError when the store holds nothing to learn from.
    """

    def __init__(self, directory: Path, *, end_ns: int, days: float, nodes_max: int) -> None:
        self.reader = Reader(directory)
        self.directory = directory
        self.without = ()
        self._fields = wanted_fields()
        held = set(self.reader.measurements())
        self._held = tuple(name for name in self._fields if name in held)
        if not set(self._held) - set(EVENTS):
            raise FileNotFoundError(f"store {directory} holds no readings to learn from")
        # An imported history may have ended long ago: its last days are learned from all the same.
        self.end_ns = min(end_ns, max((high - 1 for _, high in self._spans()), default=end_ns))
        self.begin_ns = self.end_ns - int(days * DAY_NS)
        first_ns, last_ns = self.span_ns()
        names = self._node_names(first_ns, last_ns)
        self.all_nodes = len(names)
        self.names = sampled(names, nodes_max)
        self.nodes = frozenset(self.names)
        per_hour = max(1, len(self.names)) * _GPU_ROWS_AN_HOUR
        self.read_ns = max(1, min(24, ROWS_AT_ONCE // per_hour)) * HOUR_NS

    @property
    def measurements(self) -> tuple[str, ...]:
        """What there is."""
        return self._held

    def span_ns(self) -> tuple[int, int]:
        """Time of the first and the last reading, to the hour of the store's files."""
        known = self._spans()
        if not known:
            raise FileNotFoundError(f"store {self.directory} holds no readings to learn from")
        low = max(min(span[0] for span in known), self.begin_ns)
        high = min(max(span[1] for span in known) - 1, self.end_ns)
        if low >= high:
            raise FileNotFoundError(f"store {self.directory} holds no readings of this time")
        return low, high

    def _spans(self) -> list[tuple[int, int]]:
        """First and last time of each table of readings."""
        spans = [self.reader.span_ns(name) for name in self._held if name not in EVENTS]
        return [span for span in spans if span is not None]

    def chunk(self, measurement: str, begin_ns: int, end_ns: int) -> Chunk:
        """All readings of a measurement with begin <= time < end, sorted by time."""
        low, high = max(begin_ns, self.begin_ns), min(end_ns, self.end_ns + 1)
        tags = {"node": self.names} if len(self.names) < self.all_nodes else None
        fields = self._fields[measurement]
        step = DAY_NS if measurement in EVENTS else max(HOUR_NS, high - low)
        tables = list(self.reader.hours(measurement, low, high, tags, fields, step_ns=step))
        if measurement == "event":
            known: set[Any] = set()
            tables = [first_inventories(table, known) for table in tables]
        table = unify(tables) if tables else empty_table()
        return to_chunk(measurement, table.sort_by("time"))

    def _node_names(self, first_ns: int, last_ns: int) -> list[str]:
        """The nodes of the last day that holds any, by whatever table names them first."""
        for name in ("host", "gpu", "source"):
            if name not in self._held:
                continue
            span = self.reader.span_ns(name)
            end_ns = min(span[1], last_ns + 1) if span else last_ns + 1
            begin_ns = max(first_ns, end_ns - DAY_NS)
            found: set[str] = set()
            for table in self.reader.hours(name, begin_ns, end_ns, fields=[]):
                column = table.column("node").cast(pa.string())
                found.update(one for one in pc.unique(column).to_pylist() if one)
            if found:
                return sorted(found)
        return []


def wanted_fields() -> dict[str, list[str] | None]:
    """The fields of each measurement that features or labels look at; None: all of them."""
    found: dict[str, dict[str, None]] = {}
    for spec in CATALOGUE:
        for stream in spec.streams:
            names = found.setdefault(stream.measurement, {})
            names.update(dict.fromkeys(one.field for one in stream.gauges))
            names.update(dict.fromkeys(one.over for one in stream.gauges if one.over))
            names.update(dict.fromkeys(one.field for one in stream.counters))
    return {**{name: list(fields) for name, fields in found.items()}, **dict.fromkeys(EVENTS)}


def sampled(names: Collection[str], most: int) -> list[str]:
    """``names``, or ``most`` of them by the order of a hash: the same ones each night."""
    if len(names) <= most:
        return sorted(names)
    order = sorted(names, key=lambda name: hashlib.blake2s(name.encode()).digest())
    return sorted(order[:most])


def first_inventories(table: pa.Table, known: set[Any]) -> pa.Table:
    """``table`` without the inventories that repeat each hour what is ``known`` already."""
    if "kind" not in tags_of(table.schema) or not table.num_rows:
        return table
    is_inventory = pc.equal(table.column("kind").cast(pa.string()), "inventory").fill_null(False)
    rows = pc.indices_nonzero(is_inventory).to_pylist()
    if not rows:
        return table
    columns = [
        table.column(name).cast(pa.string()).take(pa.array(rows)).to_pylist()
        for name in ("node", "device", "text")
        if name in table.column_names
    ]
    repeated = set()
    for row, key in zip(rows, zip(*columns, strict=True), strict=True):
        if key in known:
            repeated.add(row)
        known.add(key)
    keep = [row not in repeated for row in range(table.num_rows)]
    return table.filter(pa.array(keep))
