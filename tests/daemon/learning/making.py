"""Small learned models, made in a second: the risk of a node rises with its load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from models.artifact import save
from models.drift import histograms
from models.features import features
from models.fitting import train_kind
from models.learned import LearnedRisk
from models.looks import Examples

HOUR_NS = 3_600_000_000_000


def examples(count: int = 600, seed: int = 1) -> Examples:
    """Nodes whose load is 0 to 100; those above 90 fail."""
    rng = np.random.default_rng(seed)
    names = tuple(one.name for one in features("node"))
    x = np.full((count, len(names)), np.nan, np.float32)
    load = rng.uniform(0, 100, count)
    x[:, names.index("load.now")] = load
    y = (load > 90).astype(np.float64)
    times = np.sort(rng.integers(0, 1000, count)) * HOUR_NS
    nodes = tuple(f"n{i % 50}" for i in range(count))
    return Examples(
        "node", names, x, y, np.ones(count), times, nodes, np.where(y > 0, times, 0),
        causes=np.where(y > 0, 0, -1),
    )  # fmt: skip


def make_model(path: Path, name: str = "learned-a", gate: str = "off", **facts: Any) -> LearnedRisk:
    """Trains one and saves it to ``path``."""
    some = examples()
    kind = train_kind(some)
    model = LearnedRisk(86_400.0, {"node": kind}, name)
    model.facts = {
        "gate": {"learned": gate, "why": "judged by a test"},
        "threshold": 0.3,
        "alarms_per_1000_node_days": 1.0,
        "histograms": {"node": histograms(some, kind.names)},
        "trained_on": [{"end": "2026-11-01T00:00:00.000Z", "end_ns": 5}],
        "judged": {
            "challenger": {
                "early": 6, "failures": 10, "false_per_1000_node_days": 1.5, "net_gpu_hours": 96.0,
            }
        },
        **facts,
    }  # fmt: skip
    save(model, path)
    return model
