"""What the watch knew, brought back after a restart: the checkpoint, and what the store has since.

The checkpoint (daemon/checkpoint.py) is written about once a minute. Everything that was
acknowledged after it is in the store, so a head that was killed reads that stretch again. Readings
and events that were in the checkpoint already are recognised by the watch itself (same entity, same
time) and change nothing. Events that came late, out of an agent's spool, happened before that
stretch: they are found by the order in which they came.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog

from collectors.events import event
from collectors.sample import Sample
from daemon.checkpoint import FEATURES_FILE, WATCH_FILE
from daemon.clock import NANOSECONDS
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError
from daemon.store.events import Event
from daemon.store.reader import Reader
from daemon.store.tables import tags_of
from models.watch import Watch

log = structlog.get_logger("tocsin.recovery")

# Readings may reach the store a little before or after the moment the checkpoint names.
OVERLAP_NS = 120 * NANOSECONDS
# Without a checkpoint: facts latch for days, so events are read far back; readings only fill
# the short horizons again, which some hours do, and no more of them than a start may wait for.
EVENTS_BACK_NS = 30 * 86_400 * NANOSECONDS
READINGS_BACK_NS = 6 * 3_600 * NANOSECONDS
READINGS_LIMIT = 500_000  # about 40 s of work

# At each moment these come first: an inventory must be known before a kernel line.
_FIRST = ("event", "slurm_event", "source", "host")
_STEP_NS = 900 * NANOSECONDS
_ROWS_AT_ONCE = 4096
_RATE_NS = 300 * NANOSECONDS


@dataclass(frozen=True, slots=True)
class Restored:
    """How the watch came back: from when on the store was read, and how many samples."""

    checkpoint: bool
    since_ns: int
    samples: int


def restore(
    directory: Path,
    watch: Watch,
    store: Store,
    now_ns: int,
    returned_ns: Mapping[str, int] | None = None,
) -> Restored:
    """Brings ``watch`` to what it was, from the checkpoint and the store.

    ``returned_ns``: when each node last came back into service, by the ledger: what was certain
    before is spent, also where a kill came before the watch had heard of it.
    """
    saved_ns, shown_id = _load(directory, watch)
    names = [*_FIRST, *sorted(watch.measurements - set(_FIRST))]
    if saved_ns is None:
        since_ns = now_ns - _affordable_ns(store, names, now_ns)
        events_ns = now_ns - EVENTS_BACK_NS
    else:
        since_ns = events_ns = min(saved_ns, now_ns) - OVERLAP_NS
    count = 0
    unusable: list[str] = []
    spent = [(at_ns, node) for node, at_ns in (returned_ns or {}).items() if at_ns >= events_ns]
    spent.sort(reverse=True)
    late = [] if shown_id is None else store.event_table.late(shown_id, events_ns)
    pieces = _history(store, names, events_ns, since_ns, now_ns)
    for samples in chain([list(map(_sample_of, late))], pieces):
        for sample in samples:
            while spent and spent[-1][0] < sample.time_ns:
                at_ns, node = spent.pop()
                watch.clear(node, at_ns)
            try:
                watch.ingest([sample], sample.time_ns)
            except Exception as error:
                # A reading that one node sent must not keep the head of all nodes from starting.
                unusable.append(f"{sample.measurement} of {sample.tag('node')}: {error!r}"[:300])
        count += len(samples)
    for at_ns, node in reversed(spent):
        watch.clear(node, at_ns)
    # A checkpoint may have been written while the clock ran ahead.
    watch.nothing_later(now_ns)
    if unusable:
        log.error("history_not_usable", samples=len(unusable), first=unusable[0])
    return Restored(saved_ns is not None, since_ns, count)


def _affordable_ns(store: Reader, names: Sequence[str], now_ns: int) -> int:
    """How far back READINGS_LIMIT readings reach, by what the last minutes brought."""
    lately = 1
    for name in names:
        lately += int(_read(store, name, now_ns - _RATE_NS, now_ns).num_rows)
    return min(READINGS_BACK_NS, _RATE_NS * READINGS_LIMIT // lately)


def _load(directory: Path, watch: Watch) -> tuple[int | None, int | None]:
    """When the checkpoint was written, and the id of an event up to which all are in it."""
    try:
        words = json.loads((directory / WATCH_FILE).read_bytes())
        if words["format"] != 1:
            raise ValueError(f"format {words['format']}")
        features = (directory / FEATURES_FILE).read_bytes()
        watch.features.load(features)
        watch.load(words["watch"])
        shown_id = words.get("shown_id")  # an older version tells none
        return int(words["time_ns"]), None if shown_id is None else int(shown_id)
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("checkpoint_not_usable", directory=str(directory), why=str(error))
        return None, None


def _sample_of(one: Event) -> Sample:
    return event(
        one.node, one.kind, one.code, one.time_ns, text=one.text, severity=one.severity,
        device=one.device, pid=one.pid, process=one.process,
    )  # fmt: skip


def _history(
    store: Reader, names: Sequence[str], events_ns: int, since_ns: int, now_ns: int
) -> Iterator[list[Sample]]:
    """Stored samples in order of time, in pieces: events from ``events_ns`` on, all else later."""
    end_ns = now_ns + OVERLAP_NS
    for start_ns, until_ns, wanted in (
        (events_ns, since_ns, [name for name in names if name in ("event", "slurm_event")]),
        (since_ns, end_ns, names),
    ):
        step_ns = _STEP_NS if wanted is names else 86_400 * NANOSECONDS
        for piece_ns in range(start_ns, until_ns, step_ns):
            piece: list[Sample] = []
            for name in wanted:
                table = _read(store, name, piece_ns, min(piece_ns + step_ns, until_ns))
                piece.extend(rows_of(name, table))
            piece.sort(key=lambda sample: sample.time_ns)  # stable: ``names`` breaks ties
            yield piece


def _read(store: Reader, name: str, start_ns: int, end_ns: int) -> Any:
    """A damaged file costs the head what stands in it, and never its start."""
    try:
        return store.read(name, start_ns, end_ns)
    except StoreUnavailableError as error:
        log.warning("history_not_readable", measurement=name, why=str(error))
        return pa.table({})


def rows_of(measurement: str, table: Any) -> Iterator[Sample]:
    """The rows of one table of the store as samples: absent stays absent.

    Some thousand at a time: as objects, all values of all columns would be gigabytes.
    """
    for start in range(0, table.num_rows, _ROWS_AT_ONCE):
        yield from _some_rows(measurement, table.slice(start, _ROWS_AT_ONCE))


def _some_rows(measurement: str, table: Any) -> Iterator[Sample]:
    tag_names = sorted(tags_of(table.schema))
    times = table.column("time").cast("int64").to_pylist()
    tags = [table.column(name).to_pylist() for name in tag_names]
    fields = [name for name in table.column_names if name != "time" and name not in tag_names]
    columns = [table.column(name).to_pylist() for name in fields]
    for row, time_ns in enumerate(times):
        kept = tuple(
            (name, value[row]) for name, value in zip(tag_names, tags, strict=True) if value[row]
        )
        values = {
            name: column[row]
            for name, column in zip(fields, columns, strict=True)
            if column[row] is not None
        }
        yield Sample(measurement, kept, values, time_ns)
