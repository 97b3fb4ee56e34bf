"""What the tests of the embedded store share."""

from __future__ import annotations

from typing import Any

from collectors.sample import Sample, sample
from daemon.store.embedded import Store
from daemon.store.parts import HOUR_NS
from daemon.store.reader import Reader
from daemon.store.tables import to_rows

START_NS = 1_780_000_000_000_000_000 // HOUR_NS * HOUR_NS
END_NS = START_NS + 100 * HOUR_NS


def gpu(node: str, index: int, second: int, **fields: float) -> Sample:
    return sample(
        "gpu",
        START_NS + second * 10**9,
        fields,
        node=node,
        gpu=str(index),
        uuid=f"GPU-{node}-{index}",
    )


def rows(reader: Reader, measurement: str = "gpu", **more: Any) -> list[dict[str, Any]]:
    table = reader.read(measurement, START_NS - 100 * HOUR_NS, END_NS, **more)
    return [
        {"time": (row["time_ns"] - START_NS) / 1e9}
        | {k: v for k, v in row.items() if k != "time_ns"}
        for row in to_rows(table)
    ]


def keep(store: Store, *samples: Sample) -> None:
    store.append(samples)
    store.commit()
