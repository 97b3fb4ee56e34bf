"""What the engine hands to a risk model: entities, names, values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from models.features.arrays import Floats, Rows
from models.voices import Entity


@dataclass(frozen=True)
class KindFrame:
    """Features of all entities of one kind: ``values`` [entities, names], NaN = missing.

    ``node_rows`` [entities] numbers the node of each entity in ``nodes``.
    """

    kind: str
    entities: list[Entity]
    names: tuple[str, ...]
    values: Floats
    nodes: tuple[str, ...]
    node_rows: Rows

    @cached_property
    def positions(self) -> dict[str, int]:
        """Column of each feature name."""
        return {name: index for index, name in enumerate(self.names)}

    def picked(self, rows: Rows) -> KindFrame:
        """The entities of ``rows`` alone, and their nodes alone."""
        numbers, node_rows = np.unique(self.node_rows[rows], return_inverse=True)
        return KindFrame(
            self.kind,
            [self.entities[row] for row in rows.tolist()],
            self.names,
            self.values[rows],
            tuple(self.nodes[number] for number in numbers.tolist()),
            node_rows,
        )

    def column(self, name: str) -> Floats:
        """One feature for all entities."""
        return np.asarray(self.values[:, self.positions[name]])


@dataclass(frozen=True)
class FeatureFrame:
    """All kinds at one moment. ``of(kind)`` is what models use; ``entities``, ``names`` and
    ``values`` show the same as one wide table (NaN where a kind has no such feature)."""

    time_ns: int
    kinds: Mapping[str, KindFrame] = field(default_factory=dict)

    def of(self, kind: str) -> KindFrame | None:
        """The entities of one kind, None when there are none."""
        return self.kinds.get(kind)

    def of_nodes(self, chosen: Collection[str]) -> FeatureFrame:
        """The entities of some nodes alone."""
        found = {}
        for kind, part in self.kinds.items():
            ours = np.array([name in chosen for name in part.nodes], bool)
            rows = np.flatnonzero(ours[part.node_rows])
            if len(rows):
                found[kind] = part.picked(rows)
        return FeatureFrame(self.time_ns, found)

    @cached_property
    def entities(self) -> list[Entity]:
        """All entities, kind by kind."""
        return [entity for frame in self.kinds.values() for entity in frame.entities]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All feature names, each once."""
        return tuple(dict.fromkeys(name for frame in self.kinds.values() for name in frame.names))

    @cached_property
    def values(self) -> Floats:
        """One wide table [entities, names]."""
        column = {name: index for index, name in enumerate(self.names)}
        wide = np.full((len(self.entities), len(self.names)), np.nan, np.float32)
        row = 0
        for frame in self.kinds.values():
            columns = [column[name] for name in frame.names]
            wide[row : row + len(frame.entities), columns] = frame.values
            row += len(frame.entities)
        return wide

    def about(self, entity: Entity) -> dict[str, float]:
        """The features of one entity that are not missing; empty when it is unknown."""
        frame = self.of(entity.kind)
        if frame is None or entity not in frame.entities:
            return {}
        row = frame.values[frame.entities.index(entity)].tolist()
        return {
            name: value
            for name, value in zip(frame.names, row, strict=True)
            if value == value  # not NaN
        }
