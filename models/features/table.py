"""All entities of one kind: which row is whose, and the update of one time slice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator

import numpy as np

from collectors.sample import Tags
from models.features.arrays import ALL, NEVER_NS, Arrays, Columns, Floats, Rows, Times
from models.features.counters import Counters
from models.features.gauges import Gauges
from models.features.happenings import Happenings
from models.features.peers import deviation
from models.features.presence import RECENT_FIELD_NS, Presence
from models.features.spec import EntitySpec, Stream
from models.voices import Entity


class StreamState:
    """The families of one stream of one kind."""

    def __init__(self, stream: Stream, arrays: Arrays) -> None:
        self.stream = stream
        name = stream.name
        self.gauges = Gauges(arrays, f"{name}.gauge", [one.name for one in stream.gauges])
        self.peers = Gauges(arrays, f"{name}.peer", [one.name for one in stream.peers])
        self.counters = Counters(arrays, f"{name}.counter", stream.counters)
        self.presence = Presence(arrays, f"{name}.presence") if stream.presence else None
        self.arrays = arrays
        self.lively = [i for i, one in enumerate(stream.gauges) if one.lively]
        self.row_of: dict[Tags, int] = {}
        self.ahead: set[int] = set()  # rows whose last reading was ahead of the head's clock
        # What is read from a sample: gauges, their divisors, counters.
        self.fields = tuple(
            dict.fromkeys(
                [
                    *(one.field for one in stream.gauges),
                    *(one.over for one in stream.gauges if one.over),
                    *(one.field for one in stream.counters),
                ]
            )
        )
        position = {field: i for i, field in enumerate(self.fields)}
        self.gauge_columns = [position[one.field] for one in stream.gauges]
        self.over_columns = [
            (i, position[one.over]) for i, one in enumerate(stream.gauges) if one.over
        ]
        self.counter_columns = [position[one.field] for one in stream.counters]
        gauge_names = [one.name for one in stream.gauges]
        self.peer_columns = [
            (gauge_names.index(one.gauge), gauge_names.index(one.load)) for one in stream.peers
        ]

    def last_ns(self, rows: Rows) -> Times:
        """When each row was last read."""
        if self.presence is not None:
            return self.presence.last_ns(rows)
        families = (self.gauges, self.counters)
        seen = [self.arrays[f"{one.prefix}.seen_ns"][rows] for one in families]
        return np.asarray(np.concatenate(seen, axis=1).max(axis=1, initial=NEVER_NS))

    def vanished(self, rows: Rows | slice, times_ns: Times) -> Floats:
        """How many fields of each row were there within a day and are not at ``times_ns``."""
        count = np.zeros(len(times_ns))
        for family in (self.gauges, self.counters):
            seen = self.arrays[f"{family.prefix}.seen_ns"][rows]
            age = times_ns[:, None] - seen
            gone = (seen != NEVER_NS) & (age > 0) & (age <= RECENT_FIELD_NS)
            count += gone.sum(axis=1)
        return count


class EntityTable:
    """Rows of one kind. A row is an entity; a replaced part starts its row anew."""

    def __init__(self, spec: EntitySpec) -> None:
        self.spec = spec
        self.arrays = Arrays()
        self.streams = {one.name: StreamState(one, self.arrays) for one in spec.streams}
        self.happenings = Happenings(self.arrays, spec.groups)
        # A kind that only events speak of has none.
        self.main = next((one for one in self.streams.values() if one.presence is not None), None)
        self.entities: list[Entity] = []
        self.identity: list[str] = []
        self.rows: dict[Entity, int] = {}
        self.nodes: dict[str, int] = {}
        self.parts: Counter[str] = Counter()  # rows of each node
        self.node_of: list[int] = []
        self._siblings: Rows | None = None
        self._node_rows: Rows | None = None

    def __len__(self) -> int:
        return len(self.entities)

    def row(self, entity: Entity) -> int:
        """The entity's row, a new one when it is new."""
        found = self.rows.get(entity)
        if found is not None:
            return found
        row = len(self.entities)
        self.rows[entity] = row
        self.entities.append(entity)
        self.identity.append("")
        self.parts[entity.node] += 1
        self.node_of.append(self.nodes.setdefault(entity.node, len(self.nodes)))
        self.arrays.reserve(row + 1)
        self._siblings = self._node_rows = None
        return row

    def resolve(self, state: StreamState, tags: Tags, before_reset: Callable[[], None]) -> int:
        """The row that a reading with these tags belongs to, -1 for none of ours.

        ``before_reset`` is called before a replaced part's row is emptied, so that readings
        of the old part that still wait are worked off first.
        """
        row = state.row_of.get(tags)
        if row is not None:
            return row
        named = dict(tags)
        stream = state.stream
        node = named.get("node", "")
        device = "/".join(named.get(name, "") for name in stream.device_tags)
        other = stream.only is not None and named.get(stream.only[0]) != stream.only[1]
        if not node or other or (stream.device_tags and not device.strip("/")):
            state.row_of[tags] = -1
            return -1
        row = self.row(Entity(self.spec.kind, node, stream.prefix + device))
        identity = named.get(stream.identity, "") if stream.identity else ""
        if identity and identity != self.identity[row]:
            if self.identity[row]:  # another part sits there now: it has no history
                before_reset()
                self.arrays.reset(row)
                for old in [key for key, value in state.row_of.items() if value == row]:
                    del state.row_of[old]
            self.identity[row] = identity
        state.row_of[tags] = row
        return row

    @property
    def node_rows(self) -> Rows:
        """Number of the node of each row."""
        if self._node_rows is None:
            self._node_rows = np.array(self.node_of, np.int64)
        return self._node_rows

    @property
    def siblings(self) -> Rows:
        """Rows of each node, [nodes, most per node], -1 where there are fewer."""
        if self._siblings is None:
            members: list[list[int]] = [[] for _ in self.nodes]
            for row, node in enumerate(self.node_of):
                members[node].append(row)
            most = max((len(one) for one in members), default=0)
            self._siblings = np.array(
                [one + [-1] * (most - len(one)) for one in members], np.int64
            ).reshape(len(members), most)
        return self._siblings

    def update(
        self, state: StreamState, rows: Rows, times_ns: Times, arrivals_ns: Times, x: Floats
    ) -> None:
        """One reading per row; rows of one node share one time. ``x`` [n, state.fields]."""
        values = np.ascontiguousarray(x[:, state.gauge_columns])
        for gauge, over in state.over_columns:
            divisor = x[:, over]
            good = divisor > 0
            values[:, gauge] = np.where(good, values[:, gauge] / np.where(good, divisor, 1), np.nan)
        same = np.zeros(len(rows), bool)
        if state.lively and state.presence is not None:
            old = self.arrays[f"{state.gauges.prefix}.value"][rows][:, state.lively]
            new = values[:, state.lively]
            same = ((new == old) | np.isnan(new)).all(axis=1) & ~np.isnan(old).all(axis=1)
        state.gauges.update(rows, times_ns, values)
        state.counters.update(rows, times_ns, np.ascontiguousarray(x[:, state.counter_columns]))
        if state.presence is not None:
            vanished = state.vanished(rows, times_ns)
            state.presence.update(rows, times_ns, arrivals_ns, same, vanished)
        if state.stream.peers:
            self._update_peers(state, rows, times_ns)

    def _update_peers(self, state: StreamState, rows: Rows, times_ns: Times) -> None:
        nodes = np.unique(self.node_rows[rows])
        siblings = self.siblings[nodes]
        slot_row = np.maximum(siblings, 0)
        assert state.presence is not None
        slice_ns = np.zeros(len(self.nodes), np.int64)
        slice_ns[self.node_rows[rows]] = times_ns
        at_slice = slice_ns[nodes][:, None]
        seen = self.arrays[f"{state.gauges.prefix}.seen_ns"][slot_row]
        value = self.arrays[f"{state.gauges.prefix}.value"][slot_row]
        # Only what was read at this very time is compared, and frozen values are not.
        still = self.arrays[f"{state.presence.prefix}.is_lost"][slot_row] > 0
        usable = (seen == at_slice[:, :, None]) & (siblings >= 0)[:, :, None] & ~still[:, :, None]
        value = np.where(usable, value, np.nan)
        place = np.full(len(self.entities), -1, np.int64)
        place[siblings[siblings >= 0]] = np.flatnonzero((siblings >= 0).ravel())
        deviations = np.empty((len(rows), len(state.stream.peers)))
        for index, (peer, (gauge, load)) in enumerate(
            zip(state.stream.peers, state.peer_columns, strict=True)
        ):
            result = deviation(value[:, :, gauge], value[:, :, load], peer.tolerance, peer.slack)
            deviations[:, index] = result.ravel()[place[rows]]
        state.peers.update(rows, times_ns, deviations)

    def heard_since(self, time_ns: int) -> Rows:
        """The rows of which anything was heard at ``time_ns`` or later, by reading or event."""
        read_ns = self._last_ns()
        if len(read_ns) and int(read_ns.min()) >= time_ns:
            return np.arange(len(read_ns))  # as a rule: all were read of late
        return np.flatnonzero(self.heard_ns() >= time_ns)

    def heard_ns(self) -> Times:
        """When each row was last heard of, by a reading or by an event."""
        count = len(self.entities)
        newest = np.full(count, NEVER_NS, np.int64)
        for name, array in self.arrays.arrays.items():
            if name.endswith((".seen_ns", ".last_ns")):
                times = array[:count].reshape(count, -1)
                newest = np.maximum(newest, times.max(axis=1, initial=NEVER_NS))
        return newest

    def features(
        self, now_ns: int, wanted: Collection[str] | None = None
    ) -> Iterator[tuple[str, Floats]]:
        """(name, [rows]) for every own feature of this kind, in the registry's order.

        ``wanted`` names those that are needed (None: all): what has none of them is not reckoned,
        and what has some may bring more than was asked for.
        """
        count = len(self.entities)
        stems = None if wanted is None else {name.rpartition(".")[0] for name in wanted}

        def asked(own: list[str]) -> tuple[list[str], Columns]:
            """Those of a family that are needed, and which they are."""
            if stems is None or stems.issuperset(own):
                return own, ALL
            columns = [index for index, name in enumerate(own) if name in stems]
            return [own[index] for index in columns], columns

        last_ns = self._last_ns()
        for state in self.streams.values():
            newest = last_ns if state is self.main else np.full(count, NEVER_NS, np.int64)
            for family, specs in (
                (state.gauges, state.stream.gauges),
                (state.peers, state.stream.peers),
            ):
                names, columns = asked([one.name for one in specs])
                if names:
                    yield from _spread(names, family.features(count, newest, columns))
            names, columns = asked([one.name for one in state.stream.counters])
            if names:
                yield from _spread(names, state.counters.features(count, now_ns, columns))
            if state.presence is not None and asked(["presence"])[0]:
                yield from self._presence(state, state.presence, now_ns, last_ns, wanted)
        groups = [one.name for one in self.spec.groups]
        if asked(groups)[0]:
            yield from _spread(groups, self.happenings.features(count, now_ns))

    def _presence(
        self,
        state: StreamState,
        presence: Presence,
        now_ns: int,
        last_ns: Times,
        wanted: Collection[str] | None,
    ) -> Iterator[tuple[str, Floats]]:
        """The features of one stream's presence; the two that cost most only where needed."""
        vanished = newest_of_node = None
        if wanted is None or "presence.vanished_fields" in wanted:
            vanished = state.vanished(slice(0, len(last_ns)), last_ns)
        if wanted is None or "presence.behind_node_seconds" in wanted:
            node_last = np.full(len(self.nodes), NEVER_NS, np.int64)
            np.maximum.at(node_last, self.node_rows, last_ns)
            newest_of_node = node_last[self.node_rows]
        for suffix, values in presence.features(len(last_ns), now_ns, vanished, newest_of_node):
            yield f"presence.{suffix}", values

    def _last_ns(self) -> Times:
        """When each row was last read; never, where readings tell nothing of a kind."""
        count = len(self.entities)
        if self.main is None or self.main.presence is None:
            return np.full(count, NEVER_NS, np.int64)
        return self.main.presence.last_ns(slice(0, count))


def _spread(
    stems: list[str], statistics: Iterator[tuple[str, Floats]]
) -> Iterator[tuple[str, Floats]]:
    """Columns stem by stem (all statistics of one gauge side by side)."""
    kept = list(statistics)
    for index, stem in enumerate(stems):
        for suffix, values in kept:
            yield f"{stem}.{suffix}", values[:, index]
