"""``tocsin simulate``: a scenario as a telemetry directory with truth.csv."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from models.simulate.fleet import Fleet
from models.simulate.readings import Table
from models.simulate.scenario import Scenario, load
from models.telemetry.truth import write_truth
from models.telemetry.writer import TelemetryWriter

SECOND_NS = 1_000_000_000
SLOW_SECONDS = 300.0  # fabric and BMC are swept less often than GPUs are read

# Simulated time starts here unless the caller says otherwise: 2025-01-06 00:00 UTC, a Monday.
START_NS = 1_736_121_600 * SECOND_NS


def write_simulation(
    directory: Path,
    *,
    nodes: int,
    days: float,
    seed: int,
    cadence_seconds: float = 60.0,
    scenario: Scenario | None = None,
    start_ns: int = START_NS,
    progress: Callable[[float], None] | None = None,
) -> Fleet:
    """Writes ``days`` of ``nodes`` nodes, read each ``cadence_seconds``, into ``directory``.

    Returns the fleet at its end (its truth is already written). Streams: memory does not
    depend on ``days``.
    """
    scenario = scenario or load()
    fleet = Fleet(nodes, seed=seed, start_ns=start_ns, scenario=scenario, operator=True)
    steps = int(days * 86400 / cadence_seconds)
    slow_every = max(1, round(SLOW_SECONDS / cadence_seconds))
    with TelemetryWriter(directory) as writer:
        for step in range(1, steps + 1):
            now_ns = start_ns + int(step * cadence_seconds * SECOND_NS)
            tables, events = fleet.tables(now_ns, slow=step % slow_every == 0)
            for table in tables:
                write_table(writer, table)
            writer.samples(events)
            if progress and step % 100 == 0:
                progress(step / steps)
    write_truth(directory / "truth.csv", fleet.truth())
    described = {
        "nodes": nodes,
        "gpus": fleet.gpus,
        "days": days,
        "seed": seed,
        "cadence_seconds": cadence_seconds,
        "scenario": scenario.model_dump(mode="json"),
    }
    (directory / "scenario.json").write_text(json.dumps(described, indent=1) + "\n")
    return fleet


def write_table(writer: TelemetryWriter, table: Table) -> None:
    """Adds one table of a tick to the files."""
    rows = table.rows
    if not len(rows):
        return
    texts: dict[str, Sequence[str]] | None = None
    if table.measurement == "source":
        fault = (table.texts or {}).get("fault")
        texts = {"fault": [fault[row] if fault else "" for row in rows.tolist()]}
    writer.columns(
        table.measurement,
        table.tags,
        rows,
        np.full(len(rows), table.time_ns, np.int64),
        {name: np.asarray(values[rows], np.float64) for name, values in table.fields.items()},
        texts,
    )
