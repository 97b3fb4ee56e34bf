"""History alone, on LANL's ten years of node failures: does it rank the next day's failures?

    python -m models.evaluation.lanl LA-UR-05-7318-failure-data-1996-2005.csv.xz

The failures of a system go through the live feature engine as Slurm would tell them; each
day all nodes are ranked. Judged on the second half of each system's time (the rival's
table was measured on the first half of systems 18, 19 and 20). A node fails the next day,
or the next 7 days, or it does not; no telemetry exists, so nothing but history is judged.

Baselines: how often the node failed in its whole known life, and in the last 28 days as a
plain count.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from collectors.sample import sample
from models.features import FeatureEngine
from models.features.arrays import Floats
from models.rival import Rival
from models.telemetry.unpack import open_bytes

DAY_NS = 86_400_000_000_000
SYSTEMS = ("8", "18", "19", "20")
TOP_SHARE = 0.02


@dataclass(frozen=True)
class System:
    """One system: failures of each node, in ns from the first failure's day on."""

    name: str
    nodes: int
    failures: list[tuple[int, int]]  # (time_ns, node), sorted
    days: int


def read(path: Path) -> dict[str, System]:
    """The systems of the file. Times are local and without zone; only differences count."""
    rows: dict[str, list[tuple[datetime, int, int]]] = {}
    with open_bytes(path) as file:
        for row in csv.DictReader(io.TextIOWrapper(file, errors="replace")):
            if row["System"] in SYSTEMS:
                at = datetime.strptime(row["Prob Started"], "%m/%d/%Y %H:%M").replace(tzinfo=UTC)
                rows.setdefault(row["System"], []).append(
                    (at, int(row["nodenumz"]), int(row["nodes"]))
                )
    found = {}
    for name, events in rows.items():
        events.sort()
        first = events[0][0].replace(hour=0, minute=0)
        failures = [(int((at - first).total_seconds()) * 10**9, node) for at, node, _ in events]
        days = (events[-1][0] - first).days
        found[name] = System(name, events[0][2], failures, days)
    return found


def judge(system: System) -> dict[str, object]:
    """AUC and precision at the top 2 % of nodes, each day of the second half."""
    engine = FeatureEngine()
    names = [f"n{i}" for i in range(system.nodes)]
    # Every node is known from the first day on, with no failure.
    start = [sample("host", 1, {"load_1m": 0.0}, node=name) for name in names]
    engine.observe(start, 1)
    rival = Rival()
    per_node: list[list[int]] = [[] for _ in names]
    scores: dict[str, list[Floats]] = {"tocsin": [], "last-28-days": [], "whole-life": []}
    days: list[int] = []
    position = 0
    for day in range(1, system.days - 7):
        now_ns = day * DAY_NS
        while position < len(system.failures) and system.failures[position][0] <= now_ns:
            at_ns, node = system.failures[position]
            fields = {"before": "IDLE", "after": "DOWN", "reason": "Not responding"}
            engine.observe(
                [sample("slurm_event", at_ns, fields, node=names[node], kind="state", code="down")],
                at_ns,
            )
            per_node[node].append(at_ns)
            position += 1
        # The engine leaves out what it has not heard of for two weeks; keep the nodes known.
        if day % 7 == 0:
            engine.observe(
                [sample("host", now_ns, {"load_1m": 0.0}, node=name) for name in names], now_ns
            )
        if day < system.days // 2:
            continue
        listed, p = rival.nodes(engine.frame(now_ns, ("node",)))
        place = {name: i for i, name in enumerate(listed)}
        order = np.array([place[name] for name in names])
        days.append(day)
        scores["tocsin"].append(p[order])
        recent = [sum(at > now_ns - 28 * DAY_NS for at in times) for times in per_node]
        scores["last-28-days"].append(np.array(recent, float))
        scores["whole-life"].append(np.array([len(times) for times in per_node], float))
    result: dict[str, object] = {
        "nodes": system.nodes,
        "days_judged": len(days),
        "failures_per_1000_node_days": round(
            1000 * len(system.failures) / system.nodes / system.days, 2
        ),
    }
    for horizon in (1, 7):
        result[f"within_{horizon}d"] = _figures(system, days, scores, horizon)
    return result


def _figures(
    system: System, days: list[int], scores: dict[str, list[Floats]], horizon: int
) -> dict[str, object]:
    failed = np.zeros((system.days + 8, system.nodes), bool)
    for at_ns, node in system.failures:
        failed[at_ns // DAY_NS, node] = True
    y = np.stack([failed[day : day + horizon].any(axis=0) for day in days])
    found: dict[str, object] = {"prevalence": round(float(y.mean()), 5)}
    for name, lists in scores.items():
        matrix = np.stack(lists)
        top = max(1, round(TOP_SHARE * system.nodes))
        # Ties are broken by node number, for every scorer alike.
        best = np.argsort(-matrix, axis=1, kind="stable")[:, :top]
        hits = np.take_along_axis(y, best, axis=1)
        entry = {
            "auc": round(float(roc_auc_score(y.ravel(), matrix.ravel())), 4),
            "precision_top_2pct": round(float(hits.mean()), 4),
            "share_of_failures_in_top_2pct": round(float(hits.sum() / y.sum()), 4),
        }
        if name == "tocsin" and horizon == 1:
            entry["mean_said"] = round(float(matrix.mean()), 5)
            reference = float(y.mean()) * (1 - float(y.mean()))
            entry["brier_skill"] = round(1 - float(((matrix - y) ** 2).mean()) / reference, 4)
        found[name] = entry
    return found


if __name__ == "__main__":
    systems = read(Path(sys.argv[1]))
    figures = {name: judge(systems[name]) for name in SYSTEMS if name in systems}
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
