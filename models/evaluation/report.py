"""The report for a sceptical operator: one HTML page, pictures as inline SVG, nothing loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from models.evaluation.evaluate import Evaluation
from models.telemetry.truth import iso

WIDTH, HEIGHT, EDGE = 420, 260, 44
COLOURS = ("#0b6e99", "#c2571a", "#4d8b31", "#8a4f9e", "#7a6a00", "#a33", "#456", "#088", "#c5a")

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .7em;text-align:right;
border-bottom:1px solid #ddd}th:first-child,td:first-child{text-align:left}
svg{background:#fafafa;border:1px solid #ddd;margin:.5em}text{font:11px system-ui,sans-serif}
.yes{color:#267326}.no{color:#a33}small{color:#666}
"""


def html(evaluation: Evaluation) -> str:
    """The whole page."""
    result = evaluation.result
    parts = [
        "<!doctype html><meta charset='utf-8'><title>tocsin evaluation</title>",
        f"<style>{_STYLE}</style>",
        f"<h1>Evaluation on {escape(result['telemetry'])}</h1>",
        _facts(result),
        "<h2>At a budget of false drains</h2>",
        *(_table(result, budget) for budget in _budgets(result)),
        "<h2>Recall against false drains</h2>",
        _recall_plot(result),
        "<h2>Is a probability what it says?</h2>",
        _reliability_plots(result),
        "<h2>How early</h2>",
        _lead_plot(result),
        "<h2>Each failure</h2>",
        _timeline(evaluation),
    ]
    return "\n".join(parts) + "\n"


def _budgets(result: dict[str, Any]) -> list[str]:
    first = next(iter(result["scorers"].values()))
    return list(first["budgets"])


def _facts(result: dict[str, Any]) -> str:
    gate = result["gate"]
    notes = "".join(f"<li>{escape(note)}</li>" for note in result["notes"])
    reaction = ", ".join(f"{key} {value}" for key, value in result["reaction"].items())
    return (
        f"<p>{result['nodes']} nodes, {result['days']} days; judged on the last "
        f"{result['test_days']} days ({result['test_node_days']} node-days), "
        f"{result['failures_in_test']} failures, of which {result['predictable_in_test']} are "
        f"known to have a precursor. Truth: {escape(result['truth'])}. Thresholds were set on "
        f"earlier time. Horizon {result['horizon_seconds'] / 3600:g} h.</p>"
        f"<p>Reaction (events after the onset): {escape(reaction)}.</p>"
        f"<p>Learned model: <b>{escape(gate['learned'])}</b>. {escape(gate['why'])}.</p>"
        f"<ul>{notes}</ul>"
    )


def _number(value: Any, digits: int = 3) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}g}" if isinstance(value, float) else escape(str(value))


def _table(result: dict[str, Any], budget: str) -> str:
    rows = []
    for name, entry in result["scorers"].items():
        at = entry["budgets"][budget]
        low, high = at.get("recall_15min_95") or (None, None)
        recall = at["recall"]
        rows.append(
            f"<tr><td>{escape(name)}</td><td>{at['early']}</td>"
            f"<td>{_number(recall['15min'])} <small>[{_number(low)}, {_number(high)}]</small></td>"
            f"<td>{_number(recall['1h'])}</td><td>{_number(recall['6h'])}</td>"
            f"<td>{_number(at['recall_of_predictable'])}</td>"
            f"<td>{at['false']}</td><td>{_number(at['false_per_1000_node_days'])}</td>"
            f"<td>{_number(at['precision'])}</td><td>{_number(at['net_gpu_hours'], 5)}</td>"
            f"<td>{_number(entry['auprc'])}</td><td>{_number(entry.get('brier_skill'))}</td></tr>"
        )
    return (
        f"<h3>{escape(budget)} per 1000 node-days</h3><table><tr><th>scorer</th><th>early</th>"
        "<th>recall, lead 15 min</th><th>1 h</th><th>6 h</th><th>of predictable</th>"
        "<th>false</th><th>false/1000 nd</th><th>precision</th><th>net GPU-h</th>"
        f"<th>AUPRC</th><th>Brier skill</th></tr>{''.join(rows)}</table>"
    )


def _axes(title: str, x_name: str, y_name: str, x_ticks: Sequence[str]) -> str:
    right, bottom = WIDTH - 10, HEIGHT - EDGE
    ticks = "".join(
        f"<text x='{EDGE + i * (right - EDGE) / max(1, len(x_ticks) - 1):.0f}' "
        f"y='{bottom + 14}' text-anchor='middle'>{escape(tick)}</text>"
        for i, tick in enumerate(x_ticks)
    )
    return (
        f"<text x='{WIDTH / 2}' y='14' text-anchor='middle'>{escape(title)}</text>"
        f"<path d='M{EDGE} 24V{bottom}H{right}' fill='none' stroke='#888'/>{ticks}"
        f"<text x='{WIDTH / 2}' y='{HEIGHT - 8}' text-anchor='middle'>{escape(x_name)}</text>"
        f"<text x='12' y='{HEIGHT / 2}' transform='rotate(-90 12 {HEIGHT / 2})' "
        f"text-anchor='middle'>{escape(y_name)}</text>"
    )


def _svg(inside: str, height: int = HEIGHT) -> str:
    return f"<svg width='{WIDTH}' height='{height}'>{inside}</svg>"


def _point(x: float, y: float) -> tuple[float, float]:
    """From the unit square to the picture."""
    return EDGE + x * (WIDTH - 10 - EDGE), HEIGHT - EDGE - y * (HEIGHT - EDGE - 24)


def _recall_plot(result: dict[str, Any]) -> str:
    inside = _axes("recall with a lead of 15 min", "budget (false/1000 node-days)", "recall",
                   _budgets(result))  # fmt: skip
    budgets = _budgets(result)
    for index, (name, entry) in enumerate(result["scorers"].items()):
        colour = COLOURS[index % len(COLOURS)]
        points = [
            _point(i / max(1, len(budgets) - 1), entry["budgets"][one]["recall"]["15min"])
            for i, one in enumerate(budgets)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        inside += f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>"
        inside += (
            f"<text x='{EDGE + 8}' y='{36 + 13 * index}' fill='{colour}'>{escape(name)}</text>"
        )
    return _svg(inside)


def _reliability_plots(result: dict[str, Any]) -> str:
    pictures = []
    for name, entry in result["scorers"].items():
        bins = entry.get("reliability")
        if not bins or name == "never":
            continue
        low = math.log10(1e-5)

        def place(value: float, low: float = low) -> float:
            return min(1.0, max(0.0, (math.log10(max(value, 1e-5)) - low) / -low))

        inside = _axes(
            f"{name} (log scales)", "said", "was", ["1e-5", "1e-4", "1e-3", "0.01", "0.1", "1"]
        )
        (x0, y0), (x1, y1) = _point(0, 0), _point(1, 1)
        inside += f"<path d='M{x0} {y0}L{x1} {y1}' stroke='#bbb' stroke-dasharray='4'/>"
        for one in bins:
            x, y = _point(place(one["said"]), place(one["was"]))
            radius = 2 + math.log10(max(one["count"], 1))
            inside += f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius:.1f}' fill='#0b6e99'/>"
        pictures.append(_svg(inside))
    return "".join(pictures)


def _lead_plot(result: dict[str, Any]) -> str:
    """Share of early failures with at least so much lead, at the middle budget."""
    budgets = _budgets(result)
    budget = budgets[len(budgets) // 2]
    inside = _axes(f"lead at {budget} per 1000 node-days", "lead (h)", "share of early ones",
                   ["0", "6", "12", "18", "24"])  # fmt: skip
    for index, (name, entry) in enumerate(result["scorers"].items()):
        leads = entry["budgets"][budget]["lead_hours"]
        if not leads:
            continue
        colour = COLOURS[index % len(COLOURS)]
        points = []
        for rank, lead in enumerate(leads):
            x, y = _point(min(lead / 24, 1.0), 1 - rank / len(leads))
            points.append(f"{x:.1f},{y:.1f}")
        inside += f"<polyline points='{' '.join(points)}' fill='none' stroke='{colour}'/>"
        inside += (
            f"<text x='{WIDTH - 120}' y='{36 + 13 * index}' fill='{colour}'>{escape(name)}</text>"
        )
    return _svg(inside)


def _timeline(evaluation: Evaluation) -> str:
    """Every failure of the judged time: who told it how long before."""
    result = evaluation.result
    budgets = _budgets(result)
    budget = float(budgets[len(budgets) // 2])
    names = list(result["scorers"])
    told: dict[int, dict[str, int]] = {}
    for name in names:
        for alarm in evaluation.alarms.get((name, budget), []):
            if alarm.target is not None:
                leads = told.setdefault(id(alarm.target), {})
                leads[name] = max(leads.get(name, 0), alarm.lead_ns)
    first_ns = int(evaluation.record.times_ns[-1]) - int(result["test_days"] * 86400e9)
    rows = []
    for one in sorted(evaluation.record.targets, key=lambda one: one.onset_ns):
        if one.onset_ns < first_ns:
            continue
        leads = told.get(id(one), {})
        cells = "".join(
            f"<td class='yes'>{leads[name] / 3.6e12:.1f} h</td>" if name in leads else "<td>-</td>"
            for name in names
        )
        known = {True: "yes", False: "no", None: "?"}[one.predictable]
        rows.append(
            f"<tr><td>{iso(one.onset_ns)[:16]}</td><td>{escape(one.node)}</td>"
            f"<td>{escape(one.fault_class)}</td><td>{known}</td>{cells}</tr>"
        )
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    return (
        "<table><tr><th>onset (UTC)</th><th>node</th><th>class</th><th>precursor</th>"
        f"{head}</tr>{''.join(rows)}</table>"
    )
