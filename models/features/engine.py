"""The engine: samples in, features out, at fixed memory per entity.

``observe`` only sorts samples into queues; they are worked off in large vectorised steps
when a queue is long or a frame is asked for. How calls are cut does not change a bit of
the result, so long as all readings of a node at one time come in one call (an agent sends
them so). Readings older than the newest one of their entity are counted and left out, unless a
clock was set back (models/features/setback.py).
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, BinaryIO

import numpy as np

from collectors.sample import Sample, Tags
from models.features import checkpoint
from models.features.arrays import Floats, Rows, Times
from models.features.catalogue import CATALOGUE
from models.features.frame import FeatureFrame, KindFrame
from models.features.heard import HeardEvents
from models.features.matrix import matrix
from models.features.registry import features
from models.features.setback import AHEAD_NS, set_right
from models.features.spec import DAY
from models.features.table import EntityTable, StreamState
from models.runs import Run, runs_of
from models.voices import Entity

# Samples that wait between two frames: so few that they and what is reckoned of them still lie in
# the processor's caches (with 20,000 the same work took a quarter more), and memory is bounded.
QUEUE_LIMIT = 5_000
STALE_NS = int(14 * DAY * 1e9)  # an entity not heard for so long is left out of frames
NAMED_PARTS_LIMIT = 128  # of a kind and node
LEAST_PARTS = 3  # with fewer, the middle one is no measure of what is usual

_INVENTORY = re.compile(r"\bgpu=(\d+)")
_DISK = re.compile(r"nvme\d+(?=n\d|$)")
_PCI = re.compile(r"^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?$")


class FeatureEngine:
    """Features of every entity that samples speak of. Not thread-safe: one caller."""

    def __init__(self) -> None:
        self.tables = {spec.kind: EntityTable(spec) for spec in CATALOGUE}
        self._streams: dict[str, list[tuple[EntityTable, StreamState]]] = {}
        for table in self.tables.values():
            for state in table.streams.values():
                self._streams.setdefault(state.stream.measurement, []).append((table, state))
        self._queue: dict[str, list[tuple[Sequence[Sample], int]]] = {}
        self._queued = 0
        self._now_ns: int | None = None  # the head's clock when it was last told
        self.late_readings = 0
        self.repeated_events = 0
        self.gpu_at: dict[tuple[str, str], str] = {}  # (node, PCI address) -> device
        self._heard = HeardEvents()

    @property
    def measurements(self) -> frozenset[str]:
        """The measurements that feed any entity."""
        return frozenset(self._streams)

    # Samples in ------------------------------------------------------------------------

    def observe(self, samples: Sequence[Sample], arrival_ns: int) -> None:
        """Takes readings and events of any measurement; what is not ours is passed over."""
        self.observe_runs(runs_of(samples), arrival_ns)

    def observe_runs(self, runs: Iterable[Run], arrival_ns: int) -> None:
        """The same of samples that are cut into runs already."""
        held: list[Run] = []
        for run in runs:
            streams = self._streams.get(run.measurement)
            if streams is not None:
                for table, state in streams:
                    known = state.row_of
                    for one in run.samples:
                        if one.tags not in known:
                            table.resolve(state, one.tags, self.flush)
                held.append(run)
            elif run.measurement == "event":
                for one in run.samples:
                    self._event(one)
            elif run.measurement == "slurm_event":
                for one in run.samples:
                    self._slurm_event(one)
        # Only now: a part that was replaced has what waits worked off, of earlier writes alone.
        for run in held:
            self._queue.setdefault(run.measurement, []).append((run.samples, arrival_ns))
            self._queued += len(run.samples)
        if self._queued >= QUEUE_LIMIT:
            self.flush()

    def observe_columns(
        self,
        measurement: str,
        tags: Sequence[Tags],
        which: Rows,
        times_ns: Times,
        fields: Mapping[str, Floats],
    ) -> None:
        """The same for a columnar history: reading i has tags[which[i]], times_ns[i], ...

        Arrival is taken as the reading's own time, for a history does not know it. A part
        that is replaced within one call keeps its old history; call it day by day.
        """
        self.flush()
        for table, state in self._streams.get(measurement, []):
            row_of = np.array([table.resolve(state, one, _nothing) for one in tags], np.int64)
            x = np.full((len(which), len(state.fields)), np.nan)
            for index, name in enumerate(state.fields):
                if name in fields:
                    x[:, index] = fields[name]
            self._update(table, state, row_of[which], times_ns, times_ns, x)

    def flush(self) -> None:
        """Works off the queues."""
        queue, self._queue, self._queued = self._queue, {}, 0
        for name, batches in queue.items():
            samples = [one for batch, _ in batches for one in batch]
            arrivals = np.repeat(
                np.array([at for _, at in batches], np.int64), [len(batch) for batch, _ in batches]
            )
            times = np.array([one.time_ns for one in samples], np.int64)
            tags = [one.tags for one in samples]
            fields = [one.fields for one in samples]
            for table, state in self._streams[name]:
                found = map(state.row_of.get, tags, repeat(-1))
                rows = np.fromiter(found, np.int64, len(tags))
                set_right(table, state, rows, times, arrivals)
                self._update(table, state, rows, times, arrivals, matrix(fields, state.fields))

    def nothing_later(self, now_ns: int) -> None:
        """It is ``now_ns`` on the head's clock. Where that was set back, or was ahead before this
        engine was restored, what is kept of later than now happened by now: else nothing would be
        heard until the clock has come so far again."""
        if self._now_ns is None or now_ns < self._now_ns - AHEAD_NS:
            self.flush()
            for table in self.tables.values():
                table.arrays.set_back(slice(0, len(table)), now_ns, now_ns + AHEAD_NS)
        self._now_ns = now_ns

    def _update(
        self,
        table: EntityTable,
        state: StreamState,
        rows: Rows,
        times: Times,
        arrivals: Times,
        x: Floats,
    ) -> None:
        """Cuts readings into slices (one node, one time) and applies them in order of time."""
        ours = rows >= 0
        if not ours.any():  # none of these readings is kept: there may be no row at all yet
            return
        late = ours & (times <= state.last_ns(np.maximum(rows, 0)))
        self.late_readings += int(late.sum())
        ours &= ~late
        if not ours.all():
            rows, times, arrivals, x = rows[ours], times[ours], arrivals[ours], x[ours]
        if not len(rows):
            return
        nodes = table.node_rows[rows]
        order = np.lexsort((np.arange(len(rows)), rows, times, nodes))
        nodes, slot, when = nodes[order], rows[order], times[order]
        fresh = np.ones(len(order), bool)  # not a second reading of the same row and time
        fresh[1:] = (slot[1:] != slot[:-1]) | (when[1:] != when[:-1])
        new_node = np.ones(len(order), bool)
        new_node[1:] = nodes[1:] != nodes[:-1]
        new_slice = new_node.copy()
        new_slice[1:] |= when[1:] != when[:-1]
        number = np.cumsum(new_slice) - 1
        first_of_node = np.maximum.accumulate(np.where(new_node, number, 0))
        rank = number - first_of_node
        for index in range(int(rank.max()) + 1):
            picked = order[(rank == index) & fresh]
            table.update(state, rows[picked], times[picked], arrivals[picked], x[picked])

    # Events in -------------------------------------------------------------------------

    def _event(self, one: Sample) -> None:
        node, kind, code = one.tag("node"), one.tag("kind"), one.tag("code")
        if not node:
            return
        device = one.text("device")
        if kind == "inventory":
            found = _INVENTORY.search(one.text("text"))
            if code == "gpu" and found:
                self.gpu_at[node, address(device)] = f"gpu{int(found.group(1))}"
            elif code == "replaced" and not device:
                self._begin_anew(node)
            return
        if self._is_repeat(one):
            return
        if kind == "gpu_lost":
            code = "lost"
        self._count(Entity("node", node), kind, code, one.time_ns)
        gpu = device if device.startswith("gpu") else self.gpu_at.get((node, address(device)))
        if gpu:
            self._count(Entity("gpu", node, gpu), kind, code, one.time_ns)
        for part in parts_of_event(node, kind, device):
            self._count(part, kind, code, one.time_ns)

    def _begin_anew(self, node: str) -> None:
        """Another machine stands under this name: what is kept of the old one is not its own.

        A GPU's row began anew by itself, when its UUID changed.
        """
        self.flush()
        for kind, table in self.tables.items():
            number = table.nodes.get(node)
            if number is None or kind == "gpu":
                continue
            for row, owner in enumerate(table.node_of):
                if owner == number:
                    table.arrays.reset(row)

    def _slurm_event(self, one: Sample) -> None:
        node = one.tag("node")
        if not node or self._is_repeat(one):
            return
        found = slurm_failure(one)
        if found:
            self._count(Entity("node", node), *found, one.time_ns)

    def _count(self, entity: Entity, kind: str, code: str, time_ns: int) -> None:
        table = self.tables[entity.kind]
        if entity not in table.rows and table.parts[entity.node] >= NAMED_PARTS_LIMIT:
            return  # an event may name any part: names without end take no memory without end
        table.happenings.add(table.row(entity), kind, code, time_ns)

    def _is_repeat(self, one: Sample) -> bool:
        """Whether this very event was heard before (a spool sends again what was sent)."""
        repeated = self._heard.is_repeat(one)
        self.repeated_events += repeated
        return repeated

    # Features out ----------------------------------------------------------------------

    def frame(
        self,
        now_ns: int,
        kinds: Sequence[str] | None = None,
        names: Mapping[str, Collection[str]] | None = None,
    ) -> FeatureFrame:
        """The features of all entities at ``now_ns``, of all kinds that have any.

        ``names`` keeps only the named features of each kind, at a fraction of the cost. Asking
        changes nothing: two frames at one time are equal, and a frame leaves no trace in later
        ones.
        """
        self.flush()
        wanted = [name for name in self.tables if kinds is None or name in kinds]
        chosen = {
            kind: tuple(
                one.name for one in features(kind) if names is None or one.name in names[kind]
            )
            for kind in wanted
            if names is None or kind in names
        }
        needed = needed_own(chosen)
        own = {name: dict(self.tables[name].features(now_ns, needed[name])) for name in needed}
        result = {}
        for name, columns in chosen.items():
            table = self.tables[name]
            if len(table):
                result[name] = self._kind_frame(table, own, now_ns, columns)
        return FeatureFrame(now_ns, result)

    def _kind_frame(
        self,
        table: EntityTable,
        own: dict[str, dict[str, Floats]],
        now_ns: int,
        names: tuple[str, ...],
    ) -> KindFrame:
        spec = table.spec
        columns = dict(own[spec.kind])
        node_names = list(table.nodes)
        inherited = [one for one in spec.inherit if f"node.{one}" in names]
        if inherited:
            rows_of = self.tables["node"].rows
            rows = np.array([rows_of.get(Entity("node", name), -1) for name in node_names])
            for name in inherited:
                columns[f"node.{name}"] = _looked_up(own["node"][name], rows)[table.node_rows]
        for kind in spec.gather:
            columns |= self._gathered(table, kind, own.get(kind, {}), names)
        for kind in spec.stand_out:
            columns |= self._stood_out(table, kind, own.get(kind, {}), names)
        alive = table.heard_since(now_ns - STALE_NS)
        whole = len(alive) == len(table)
        # Column by column in memory: written so, and binned so by the models.
        values = np.empty((len(alive), len(names)), np.float32, order="F")
        for index, name in enumerate(names):
            values[:, index] = columns[name] if whole else columns[name][alive]
        entities = table.entities if whole else [table.entities[i] for i in alive.tolist()]
        return KindFrame(
            spec.kind,
            list(entities),
            names,
            values,
            tuple(node_names),
            table.node_rows[alive],
        )

    def _gathered(
        self, table: EntityTable, kind: str, own: dict[str, Floats], wanted: tuple[str, ...]
    ) -> dict[str, Floats]:
        """The largest value among a node's parts of a kind, for each gathered feature."""
        parts = self.tables[kind]
        columns: dict[str, Floats] = {}
        gathered = [one for one in table.spec.gather[kind] if f"{kind}_max.{one}" in wanted]
        if not gathered:
            return columns
        names = [entity.node for entity in table.entities]
        rows = np.array([parts.nodes.get(name, -1) for name in names], np.int64)
        for name in gathered:
            worst = np.full(len(parts.nodes), -np.inf)
            if len(parts):
                values = own[name]
                np.maximum.at(worst, parts.node_rows, np.where(np.isnan(values), -np.inf, values))
            worst[np.isinf(worst)] = np.nan
            columns[f"{kind}_max.{name}"] = _looked_up(worst, rows)
        return columns

    def _stood_out(
        self, table: EntityTable, kind: str, own: dict[str, Floats], wanted: tuple[str, ...]
    ) -> dict[str, Floats]:
        """How far the largest of a node's parts is above the middle one, for each feature."""
        parts = self.tables[kind]
        columns: dict[str, Floats] = {}
        odd_ones = [one for one in table.spec.stand_out[kind] if f"{kind}_odd.{one}" in wanted]
        if not odd_ones:
            return columns
        names = [entity.node for entity in table.entities]
        rows = np.array([parts.nodes.get(name, -1) for name in names], np.int64)
        for name in odd_ones:
            odd = np.full(len(parts.nodes), np.nan)
            if len(parts):
                there = parts.siblings >= 0
                values = np.where(there, own[name][np.maximum(parts.siblings, 0)], np.nan)
                enough = (~np.isnan(values)).sum(axis=1) >= LEAST_PARTS
                known = values[enough]
                odd[enough] = np.nanmax(known, axis=1) - np.nanmedian(known, axis=1)
            columns[f"{kind}_odd.{name}"] = _looked_up(odd, rows)
        return columns

    # Checkpoint ------------------------------------------------------------------------

    def dump(self) -> bytes:
        """The whole state, exactly; see models/features/checkpoint.py for the format."""
        file = io.BytesIO()
        self.write(file)
        return file.getvalue()

    def write(self, file: BinaryIO) -> None:
        """Writes what :meth:`dump` gives to ``file``, without a second copy in memory."""
        checkpoint.Writer().write(self._picture(None), file)

    def size_bytes(self) -> int:
        """How much :class:`checkpoint.Room` a copy takes now."""
        return checkpoint.size_bytes(self.tables)

    def take(self, room: checkpoint.Room) -> checkpoint.Picture:
        """A copy of the whole state, for a :class:`checkpoint.Writer` in another thread."""
        return self._picture(room)

    def _picture(self, room: checkpoint.Room | None) -> checkpoint.Picture:
        self.flush()
        where = self.gpu_at
        lists: dict[str, tuple[list[Any], ...]] = {
            "gpu_at": (
                [node for node, _ in where],
                [pci for _, pci in where],
                list(where.values()),
            ),
            "known_events": (list(self._heard),),
        }
        counts = {"late_readings": self.late_readings, "repeated_events": self.repeated_events}
        return checkpoint.picture(self.tables, lists, counts, room)

    def load(self, saved: bytes) -> None:
        """Takes back what :meth:`dump` gave. Raises ValueError when it does not fit."""
        fresh = FeatureEngine()
        extra = checkpoint.load(saved, fresh.tables)
        fresh.gpu_at = {(node, pci): device for node, pci, device in extra["gpu_at"]}
        fresh._heard.load(
            (tuple((name, value) for name, value in tags), time_ns)
            for tags, time_ns in extra["known_events"]
        )
        fresh.late_readings = int(extra["late_readings"])
        fresh.repeated_events = int(extra["repeated_events"])
        self.__dict__ = fresh.__dict__


def needed_own(chosen: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """Which features each kind must reckon of its own, for the features ``chosen`` of frames.

    >>> needed_own({"gpu": ("power.now", "node.failure.days_since")})
    {'gpu': {'power.now'}, 'node': {'failure.days_since'}}
    """
    needed: dict[str, set[str]] = {}
    specs = {spec.kind: spec for spec in CATALOGUE}
    for kind, names in chosen.items():
        spec = specs[kind]
        ends = {f"{other}_{how}": other for other in specs for how in ("max", "odd")}
        needed.setdefault(kind, set())
        for name in names:
            stem, _, rest = name.partition(".")
            if stem == "node" and rest in spec.inherit:
                needed.setdefault("node", set()).add(rest)
            elif stem in ends:
                needed.setdefault(ends[stem], set()).add(rest)
            else:
                needed[kind].add(name)
    return needed


def address(text: str) -> str:
    """A PCI address as tocsin writes it: lower case, 4-digit domain, no function.

    >>> address("00000000:9B:00.0")
    '0000:9b:00'
    """
    found = _PCI.match(text.lower())
    if not found:
        return text.lower()
    domain = int(found.group(1) or "0", 16)
    return f"{domain:04x}:{found.group(2)}:{found.group(3)}"


def parts_of_event(node: str, kind: str, device: str) -> tuple[Entity, ...]:
    """The parts of ``node``, beside its GPUs, that an event speaks of.

    >>> parts_of_event("n1", "filesystem", "nvme0n1p2")
    (Entity(kind='disk', node='n1', device='nvme0'),)
    """
    if kind == "link" and device:
        return (Entity("link", node, device),)
    if kind == "sel":
        return (Entity("chassis", node),)
    if kind in ("mce", "edac"):
        memory = Entity("memory", node)
        return (memory, Entity("dimm", node, device)) if kind == "edac" and device else (memory,)
    if kind == "filesystem":
        disk = disk_of(device)
        return (Entity("disk", node, disk),) if disk else ()
    return ()


def disk_of(device: str) -> str:
    """The NVMe drive of a name that the kernel uses, empty for another's.

    >>> disk_of("nvme0n1p2"), disk_of("dm-0")
    ('nvme0', '')
    """
    found = _DISK.match(device)
    return found[0] if found else ""


def _nothing() -> None:
    """Nothing waits when a columnar history is read."""


# Reasons that slurmctld itself writes when a node failed (src/slurmctld: ping and
# registration code); anything else on a DOWN node was written by a person or a program.
_FAILED_BY_ITSELF = ("not responding", "node unexpectedly rebooted")


def slurm_failure(one: Sample) -> tuple[str, str] | None:
    """(kind, code) of a ``slurm_event`` that is a failure or a return to service, else None."""
    code = one.tag("code")
    reason = one.text("reason").lower()
    if code in ("down", "fail"):
        return ("slurm_fail", "DOWN") if reason.startswith(_FAILED_BY_ITSELF) else None
    if code in ("drain_end", "down_end"):
        after = frozenset(one.text("after").upper().split("+"))
        if not after & {"DOWN", "DRAIN", "FAIL"}:
            return "slurm_resume", "RESUME"
    return None


def _looked_up(values: Floats, rows: Rows) -> Floats:
    """values[rows], NaN where a row is -1."""
    if not len(values):
        return np.full(len(rows), np.nan)
    return np.where(rows >= 0, values[np.maximum(rows, 0)], np.nan)
