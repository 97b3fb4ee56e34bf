"""Readings of one measurement as columns, and the same as Samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from collectors.sample import Sample, Tags, Value

# Columns that are tags wherever they appear; every other column is a field.
TAG_COLUMNS: dict[str, tuple[str, ...]] = {
    "gpu": ("gpu", "node", "uuid"),
    "ib_port": ("device", "node", "port"),
    "ib_plane": ("device", "node", "plane", "port"),
    "fabric_port": ("guid", "peer_node", "port"),
    "bmc": ("kind", "node", "sensor"),
    "host": ("node",),
    "disk": ("device", "node"),
    "pcie": ("address", "node"),
    "event": ("code", "kind", "node"),
    "source": ("node", "source"),
    "slurm_node": ("node",),
    "slurm_event": ("code", "kind", "node"),
    "risk": ("component", "node"),
    "decision": ("action", "node"),
}


@dataclass(frozen=True)
class Chunk:
    """Readings i of one measurement: ``tags[which[i]]`` at ``times_ns[i]``.

    ``fields`` are float arrays with NaN for "not read", ``texts`` lists with "" for it.
    """

    measurement: str
    tags: Sequence[Tags]
    which: NDArray[np.int64]
    times_ns: NDArray[np.int64]
    fields: Mapping[str, NDArray[np.float64]]
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.times_ns)

    def samples(self) -> Iterator[Sample]:
        """The readings one by one; a reading without any field is left out."""
        names = list(self.fields)
        count = len(self)
        block = (
            np.stack([self.fields[name] for name in names], axis=1)
            if names
            else np.empty((count, 0))
        )
        whole = np.asarray((~np.isnan(block)).all(axis=1)).tolist()
        rows = zip(self.which.tolist(), self.times_ns.tolist(), block.tolist(), strict=True)
        for i, (which, time_ns, values) in enumerate(rows):
            fields: dict[str, Value] = dict(zip(names, values, strict=True))
            if not whole[i]:
                fields = {name: value for name, value in fields.items() if value == value}
            for name, column in self.texts.items():
                if column[i]:
                    fields[name] = column[i]
            if fields:
                yield Sample(self.measurement, self.tags[which], fields, time_ns)

    def without(self, names: Sequence[str]) -> Chunk:
        """The same without some fields."""
        return Chunk(
            self.measurement,
            self.tags,
            self.which,
            self.times_ns,
            {name: values for name, values in self.fields.items() if name not in names},
            {name: values for name, values in self.texts.items() if name not in names},
        )
