"""The report for a sceptical operator: one HTML page, pictures as inline SVG, nothing loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from models.evaluation import pictures
from models.evaluation.alarms import Alarm
from models.evaluation.evaluate import Evaluation
from models.evaluation.events import Target
from models.evaluation.operating import WORTH_BUDGET
from models.horizons import label
from models.telemetry.truth import iso

MOST_ROWS = 400  # of events, and of false alarms; what is left out is said
HOUR_NS = 3.6e12

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1120px;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .6em;text-align:right;
border-bottom:1px solid #ddd;vertical-align:top}th:first-child,td:first-child{text-align:left}
th.left{text-align:left}td.words{text-align:left;color:#555;max-width:26em}
svg{background:#fcfcfc;border:1px solid #ddd;margin:.4em}text{font:11px system-ui,sans-serif}
.title{font-weight:600}.on{color:#267326}.off{color:#a33}small{color:#666}
tr.ours td{background:#eef6fa}.legend span{margin-right:1.2em;white-space:nowrap}
.legend i{display:inline-block;width:1.4em;height:.7em;margin-right:.35em}
.scroll{max-height:36em;overflow:auto;border:1px solid #ddd;display:inline-block}
"""

_WORDS = {
    "never": "drains nothing: what anything else has to beat",
    "xid-table": "what NVIDIA's XID table calls a fault of the hardware, once it is there",
    "static-thresholds": "fixed limits on temperature, errors and links, as DCGM's health watches",
    "history-28d": "nodes that failed in the last 28 days, the most often first",
    "sibling-z": "GPUs hotter than their siblings at like power",
    "rival": "XID table, 28-day history and siblings together, no learning",
    "learned": "tocsin's learned model: gradient-boosted trees, calibrated",
    "logistic": "logistic regression on the same features",
    "isolation-forest": "tells what is unusual, knows no failures",
}


def html(evaluation: Evaluation) -> str:
    """The whole page."""
    result = evaluation.result
    scorers, budgets = result["scorers"], _budgets(result)
    middle = budgets[len(budgets) // 2]
    failures = max(1, result["failures_in_test"])
    share = result["predictable_in_test"] / failures
    hours = result["horizon_seconds"] / 3600
    names = list(scorers)
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>tocsin evaluation</title>",
        f"<style>{_STYLE}</style>",
        f"<h1>Evaluation on {escape(result['telemetry'])}</h1>",
        _facts(result),
        "<h2>What it was worth</h2>",
        _worth(result),
        "<h2>At a budget of false drains</h2>",
        *(_table(result, budget) for budget in budgets),
        f"<h2>By class of fault, at {escape(middle)} per 1000 node-days</h2>",
        _classes(result, middle),
        "<h2>How much is told</h2>",
        pictures.legend(names),
        pictures.recall_at_budgets(scorers, budgets, share),
        pictures.trade_off(scorers, budgets, share),
        pictures.precision_recall(scorers, budgets),
        "<h2>How early</h2>",
        pictures.legend(names),
        pictures.leads(scorers, middle, hours),
        "<h2>Is a probability what it says?</h2>",
        "<p>A mark on the dashed line is right: of the looks at which 1 % was said, 1 % were "
        "followed by a failure. Lines show what chance explains. Below 0.001 % is drawn at the "
        "edge.</p>",
        *_reliability(scorers),
        *_horizons(result),
        f"<h2>Each failure, at {escape(middle)} per 1000 node-days</h2>",
        _timeline(evaluation, middle),
        f"<h2>Each false alarm of {escape(_ours(names))}</h2>",
        _false(evaluation, _ours(names), middle),
    ]
    return "\n".join(parts) + "\n</html>\n"


def _ours(names: Sequence[str]) -> str:
    return "learned" if "learned" in names else "rival"


def _budgets(result: dict[str, Any]) -> list[str]:
    first = next(iter(result["scorers"].values()))
    return list(first["budgets"])


def _facts(result: dict[str, Any]) -> str:
    gate, costs, reaction = result["gate"], result["costs"], result["reaction"]
    notes = "".join(f"<li>{escape(note)}</li>" for note in result["notes"])
    known = (
        f"of which {result['predictable_in_test']} have a precursor in the readings"
        if result["truth"] == "truth.csv"
        else "of which nobody knows how many could be foreseen"
    )
    told = f"Events told {reaction['told_by_events']} of {reaction['of']} failures once they struck"
    if "delay_seconds_p50" in reaction:
        half, most = (max(1.0, reaction[f"delay_seconds_{one}"]) for one in ("p50", "p95"))
        told += f", half of them within {half:.0f} s and 95 % within {most:.0f} s"
    return (
        f"<p><b>{result['nodes']} nodes, {result['days']} days.</b> Judged on "
        f"{result['test_days']} days ({result['test_node_days']} node-days) with "
        f"{result['failures_in_test']} failures, {known}. What failed when: "
        f"{escape(result['truth'])}. Thresholds were set on {escape(result['thresholds'])}, never "
        "on what is judged.</p>"
        f"<p>An alarm is <b>right</b> when a part of that node fails within "
        f"{result['horizon_seconds'] / 3600:g} h, <b>early</b> when that is 15 minutes ahead or "
        "more, and <b>false</b> otherwise, also when the part fails a day later. After an alarm "
        "the node is out of service and cannot alarm again.</p>"
        f"<p>Costs, assumed: a failure loses {costs['job_gpus']:g} GPUs x "
        f"{costs['lost_hours']:g} h; a false drain takes {costs['node_gpus']:g} GPUs for "
        f"{costs['drained_hours']:g} h. They decide the sign of <i>net GPU-hours</i>.</p>"
        f"<p>Reaction, apart from any prediction: {escape(told)}. "
        f"{result['fleet_events_set_aside']} fleet events were set aside.</p>"
        f"<p>Learned model: <b class='{escape(gate['learned'])}'>{escape(gate['learned'])}</b>. "
        f"{escape(gate['why'])}.</p><ul>{notes}</ul>"
    )


def _number(value: Any, digits: int = 3) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}g}" if isinstance(value, float) else escape(str(value))


def _range(pair: Sequence[float] | None, digits: int = 3) -> str:
    if not pair:
        return ""
    return f" <small>[{_number(pair[0], digits)}, {_number(pair[1], digits)}]</small>"


def _row(name: str, cells: Sequence[str]) -> str:
    mark = " class='ours'" if name == "learned" else ""
    return f"<tr{mark}><td>{escape(name)}</td>{''.join(cells)}</tr>"


def _worth(result: dict[str, Any]) -> str:
    rows = []
    for name, entry in result["scorers"].items():
        at = entry["worth"]
        never = at["threshold"] is None
        rows.append(
            _row(
                name,
                [
                    f"<td class='words'>{escape(_WORDS.get(name, ''))}</td>",
                    f"<td>{'never drains' if never else _number(at['threshold'])}</td>",
                    f"<td>{at['early']}</td><td>{at['false']}</td>",
                    f"<td>{at['false_but_failed_within_7d']}</td>",
                    f"<td>{_number(at['false_per_1000_node_days'])}</td>",
                    f"<td>{_number(at['net_gpu_hours'], 5)}"
                    f"{_range(at.get('net_gpu_hours_95'), 5)}</td>",
                ],
            )
        )
    return (
        "<p>Each scorer at the threshold that won it most GPU-hours on the tuning time, within "
        f"{WORTH_BUDGET:g} false drains per 1000 node-days there. A scorer that won nothing there "
        "drains nothing here. In brackets: 95 %, nodes drawn again.</p>"
        "<table><tr><th>scorer</th><th class='left'>what it is</th>"
        "<th>threshold</th><th>told early</th>"
        "<th>false</th><th>of the false:<br>failed in 7 days</th><th>false/1000<br>node-days</th>"
        f"<th>net GPU-hours</th></tr>{''.join(rows)}</table>"
    )


def _table(result: dict[str, Any], budget: str) -> str:
    rows = []
    for name, entry in result["scorers"].items():
        at = entry["budgets"][budget]
        recall = at["recall"]
        false = at["false_per_1000_node_days"] or 0.0
        broke = " <b class='off'>over</b>" if false > float(budget) else ""
        rows.append(
            _row(
                name,
                [
                    f"<td>{at['early']}</td>",
                    f"<td>{_number(recall['15min'])}{_range(at.get('recall_15min_95'))}</td>",
                    f"<td>{_number(recall['1h'])}</td><td>{_number(recall['6h'])}</td>",
                    f"<td>{_number(at['recall_of_predictable'])}</td>",
                    f"<td>{at['false']}</td>",
                    f"<td>{_number(at['false_per_1000_node_days'])}{broke}</td>",
                    f"<td>{_number(at['precision'])}</td>",
                    f"<td>{_number(at['net_gpu_hours'], 5)}"
                    f"{_range(at.get('net_gpu_hours_95'), 5)}</td>",
                    f"<td>{_number(entry['auprc'])}</td>",
                    f"<td>{_number(entry.get('brier_skill'))}</td>",
                ],
            )
        )
    prevalence = next(iter(result["scorers"].values()))["prevalence"]
    return (
        f"<h3>Threshold for {escape(budget)} per 1000 node-days</h3><table><tr><th>scorer</th>"
        "<th>told early</th><th>of all failures,<br>lead 15 min</th><th>1 h</th><th>6 h</th>"
        "<th>of those with<br>a precursor</th><th>false</th><th>false/1000<br>node-days</th>"
        "<th>precision</th><th>net GPU-hours</th>"
        f"<th>AUPRC<br><small>chance {prevalence:.2g}</small></th><th>Brier<br>skill</th></tr>"
        f"{''.join(rows)}</table>"
    )


def _classes(result: dict[str, Any], budget: str) -> str:
    names = list(result["scorers"])
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = []
    for fault_class, count in result["by_class"].items():
        cells = []
        for name in names:
            told = result["scorers"][name]["budgets"][budget]["recall_by_class"]
            early = told.get(fault_class, "0/0").partition("/")[0]
            cells.append(f"<td>{'-' if early == '0' else early}</td>")
        rows.append(f"<tr><td>{escape(fault_class)}</td><td>{count}</td>{''.join(cells)}</tr>")
    return (
        f"<table><tr><th>class</th><th>failures</th>{head}</tr>{''.join(rows)}</table>"
        "<p><small>How many of each were told 15 minutes ahead or more; - is none.</small></p>"
    )


def _reliability(scorers: Mapping[str, Any]) -> list[str]:
    colour = pictures.colours(list(scorers))
    return [
        pictures.reliability(name, entry["reliability"], colour[name])
        for name, entry in scorers.items()
        if entry.get("reliability") and name != "never"
    ]


def _horizons(result: Mapping[str, Any]) -> list[str]:
    """The learned model within each of its horizons, its own among them."""
    within = {label(result["horizon_seconds"]): result["scorers"].get("learned")}
    within |= result["horizons"]
    judged = {name: one for name, one in within.items() if one and one.get("reliability")}
    if len(judged) < 2:
        return []
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{_number(one['mean_probability'])}</td>"
        f"<td>{_number(one['prevalence'])}</td><td>{_number(one['brier_skill'])}</td>"
        f"<td>{_number(one['auprc'])}</td></tr>"
        for name, one in judged.items()
    )
    colour = pictures.colours(list(result["scorers"]))["learned"]
    return [
        "<h3>The learned model at each horizon</h3>",
        "<p>Alarms are judged by its own horizon. Brier skill: 1 is certain and right, 0 is no "
        "better than to say the usual rate each time, below 0 is worse than that.</p>",
        "<table><tr><th>within</th><th>said on average</th><th>happened</th><th>Brier skill</th>"
        f"<th>AUPRC</th></tr>{rows}</table>",
        *(
            pictures.reliability(f"learned, within {name}", one["reliability"], colour)
            for name, one in judged.items()
            if name in result["horizons"]
        ),
    ]


def _judged(evaluation: Evaluation) -> list[Target]:
    """The failures of the judged time, by onset."""
    last_ns = int(evaluation.record.times_ns[-1]) - int(evaluation.result["horizon_seconds"] * 1e9)
    first_ns = last_ns - int(evaluation.result["test_days"] * 86400e9) - int(HOUR_NS)
    targets = sorted(evaluation.record.targets, key=lambda one: one.onset_ns)
    return [one for one in targets if first_ns <= one.onset_ns <= last_ns]


def _timeline(evaluation: Evaluation, budget: str) -> str:
    """Every failure of the judged time: a mark for each alarm before it, by hours ahead."""
    result = evaluation.result
    names = list(result["scorers"])
    colour = pictures.colours(names)
    first: dict[int, dict[str, Alarm]] = {}
    for name in names:
        for alarm in evaluation.alarms.get((name, float(budget)), []):
            if alarm.target is not None:
                held = first.setdefault(id(alarm.target), {})
                if name not in held or alarm.lead_ns > held[name].lead_ns:
                    held[name] = alarm
    judged = _judged(evaluation)
    shown, hours = judged[:MOST_ROWS], result["horizon_seconds"] / 3600
    rows = "".join(_event(one, first.get(id(one), {}), colour, hours) for one in shown)
    more = (
        f"<p>{len(judged) - len(shown)} more are not shown.</p>" if len(judged) > len(shown) else ""
    )
    known = any(one.predictable is not None for one in judged)
    return (
        pictures.legend(names)
        + "<p>Left to right: the last hours before the failure; a mark is the first alarm that "
        "was right. "
        + ("<b>yes</b> in the fourth column: it had a precursor. " if known else "")
        + "An empty line was not foreseen by anybody.</p><div class='scroll'><table>"
        f"<tr><th>onset (UTC)</th><th>node</th><th>class</th><th>precursor</th>"
        f"<th>{hours:g} h before ... onset</th><th>told ahead</th></tr>{rows}</table></div>{more}"
    )


def _event(one: Target, told: Mapping[str, Alarm], colour: Mapping[str, str], hours: float) -> str:
    width = 300
    marks = f"<path d='M4 9H{width - 4}' stroke='#ccc'/><path d='M{width - 4} 2V16' stroke='#b00'/>"
    words: list[str] = []
    for index, (name, alarm) in enumerate(told.items()):
        ahead = alarm.lead_ns / HOUR_NS
        x = 4 + (width - 8) * (1 - min(ahead / hours, 1.0))
        marks += (
            f"<circle cx='{x:.1f}' cy='{9 + (index % 3 - 1) * 3}' r='4' fill='{colour[name]}'>"
            f"<title>{escape(name)}: {ahead:.1f} h ahead</title></circle>"
        )
        if name == "learned":
            words.insert(0, f"<b>{ahead:.1f} h</b>")
        else:
            words.append(f"{escape(name)} {ahead:.1f} h")
    known = {True: "yes", False: "no", None: "?"}[one.predictable]
    return (
        f"<tr><td>{iso(one.onset_ns)[:16]}</td><td>{escape(one.node)}</td>"
        f"<td>{escape(one.fault_class)}</td><td>{known}</td>"
        f"<td>{pictures.svg(marks, width, 18)}</td>"
        f"<td class='words'><small>{', '.join(words)}</small></td></tr>"
    )


def _false(evaluation: Evaluation, name: str, budget: str) -> str:
    """Every false alarm of one scorer, and what came of that node."""
    whole = evaluation.record
    onsets = whole.onsets()
    rows = []
    false = [one for one in evaluation.alarms.get((name, float(budget)), []) if one.target is None]
    for one in sorted(false, key=lambda one: one.time_ns)[:MOST_ROWS]:
        later = [t for t in onsets.get(one.node, ()) if t.onset_ns > one.time_ns]
        then = "no failure after it"
        if later:
            days = (later[0].onset_ns - one.time_ns) / 86400e9
            then = f"{escape(later[0].fault_class)} {days:.1f} days later"
        step = int(whole.times_ns.searchsorted(one.time_ns))
        said = float(whole.scores[name][step, one.node])
        rows.append(
            f"<tr><td>{iso(one.time_ns)[:16]}</td><td>{escape(whole.nodes[one.node])}</td>"
            f"<td>{said:.3g}</td><td class='words'>{then}</td></tr>"
        )
    more = f"<p>{len(false) - MOST_ROWS} more.</p>" if len(false) > MOST_ROWS else ""
    if not rows:
        return "<p>None.</p>"
    return (
        "<div class='scroll'><table><tr><th>time (UTC)</th><th>node</th><th>score</th>"
        f"<th>what came</th></tr>{''.join(rows)}</table></div>{more}"
    )
