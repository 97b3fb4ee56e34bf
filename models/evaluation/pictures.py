"""Plots of the report as inline SVG: axes with numbers on both sides, one colour a scorer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT, EDGE = 440, 280, 64
COLOURS = ("#888", "#c2571a", "#4d8b31", "#8a4f9e", "#7a6a00", "#a33", "#0b6e99", "#088", "#c5a")
LEAST_SHOWN = 1e-5  # on log scales


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each scorer, the same in every picture."""
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}


def legend(names: Sequence[str]) -> str:
    """All colours with their names."""
    chips = "".join(
        f"<span><i style='background:{colour}'></i>{escape(name)}</span>"
        for name, colour in colours(names).items()
    )
    return f"<p class='legend'>{chips}</p>"


def point(x: float, y: float) -> tuple[float, float]:
    """From the unit square to the picture."""
    return EDGE + x * (WIDTH - 14 - EDGE), HEIGHT - EDGE - y * (HEIGHT - EDGE - 26)


def axes(
    title: str, x_name: str, y_name: str, x_ticks: Sequence[str], y_ticks: Sequence[str]
) -> str:
    """Frame, title, names and tick marks; ticks are spaced evenly."""
    (left, bottom), (right, top) = point(0, 0), point(1, 1)
    inside = (
        f"<text x='{WIDTH / 2}' y='15' text-anchor='middle' class='title'>{escape(title)}</text>"
        f"<path d='M{left} {top}V{bottom}H{right}' fill='none' stroke='#888'/>"
        f"<text x='{WIDTH / 2}' y='{HEIGHT - 8}' text-anchor='middle'>{escape(x_name)}</text>"
        f"<text x='12' y='{HEIGHT / 2}' transform='rotate(-90 12 {HEIGHT / 2})' "
        f"text-anchor='middle'>{escape(y_name)}</text>"
    )
    for index, tick in enumerate(x_ticks):
        x, _ = point(index / max(1, len(x_ticks) - 1), 0)
        anchor = "end" if 0 < index == len(x_ticks) - 1 else "middle"  # else it is cut off
        inside += (
            f"<text x='{x:.0f}' y='{bottom + 14}' text-anchor='{anchor}'>{escape(tick)}</text>"
        )
    for index, tick in enumerate(y_ticks):
        _, y = point(0, index / max(1, len(y_ticks) - 1))
        inside += (
            f"<path d='M{left} {y:.1f}H{right}' stroke='#eee'/>"
            f"<text x='{left - 4}' y='{y + 4:.1f}' text-anchor='end'>{escape(tick)}</text>"
        )
    return inside


def svg(inside: str, width: int = WIDTH, height: int = HEIGHT) -> str:
    """A picture of its own."""
    return f"<svg viewBox='0 0 {width} {height}' width='{width}' height='{height}'>{inside}</svg>"


TENTHS = ("0", "0.2", "0.4", "0.6", "0.8", "1")


def recall_at_budgets(scorers: Mapping[str, Any], budgets: Sequence[str], share: float) -> str:
    """Share of all failures that were told, at each budget; ``share`` could have been at all."""
    top = min(1.0, max(0.2, 1.5 * share))
    ticks = [f"{top * i / 4:.2f}" for i in range(5)]
    inside = axes(
        "failures told 15 min ahead or more",
        "budget: false drains per 1000 node-days on the tuning time",
        "share of all failures",
        list(budgets),
        ticks,
    )
    if share:
        (x0, y), (x1, _) = point(0, share / top), point(1, share / top)
        inside += (
            f"<path d='M{x0} {y:.1f}H{x1}' stroke='#b00' stroke-dasharray='5'/>"
            f"<text x='{x1}' y='{y - 4:.1f}' text-anchor='end' fill='#b00'>share with a "
            "precursor: no honest early warning goes above</text>"
        )
    for name, colour in colours(list(scorers)).items():
        points = [
            point(
                i / max(1, len(budgets) - 1),
                min(1.0, scorers[name]["budgets"][one]["recall"]["15min"] / top),
            )
            for i, one in enumerate(budgets)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        inside += f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>"
    return svg(inside)


def trade_off(scorers: Mapping[str, Any], budgets: Sequence[str], share: float) -> str:
    """One mark a budget: failures told early over the false drains that came of it; scorers that
    tell nothing at any budget are left out."""
    shown = {
        name: [entry["budgets"][one] for one in budgets]
        for name, entry in scorers.items()
        if any(entry["budgets"][one]["early"] for one in budgets)
    }
    most = max(
        (at["false_per_1000_node_days"] for some in shown.values() for at in some), default=1
    )
    wide = max(1, math.ceil(most))
    tall = min(1.0, max(0.2, 1.3 * share))
    inside = axes(
        "failures told 15 min ahead or more",
        "false drains per 1000 node-days, on these nodes",
        "share of all failures",
        [f"{i}" for i in range(wide + 1)],
        [f"{tall * i / 4:.2f}" for i in range(5)],
    )
    if share:
        (x0, y), (x1, _) = point(0, share / tall), point(1, share / tall)
        inside += (
            f"<path d='M{x0} {y:.1f}H{x1}' stroke='#b00' stroke-dasharray='5'/>"
            f"<text x='{x1}' y='{y - 4:.1f}' text-anchor='end' fill='#b00'>had a precursor</text>"
        )
    colour = colours(list(scorers))
    for name, some in shown.items():
        places = [
            point(at["false_per_1000_node_days"] / wide, min(1.0, at["recall"]["15min"] / tall))
            for at in some
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        inside += f"<polyline points='{path}' fill='none' stroke='{colour[name]}'/>"
        for (x, y), one in zip(places, budgets, strict=True):
            inside += (
                f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{colour[name]}'>"
                f"<title>{escape(name)} set for {escape(one)}</title></circle>"
            )
    return svg(inside)


def precision_recall(scorers: Mapping[str, Any], budgets: Sequence[str]) -> str:
    """One mark a budget: the share of alarms that were right over the share of failures told."""
    inside = axes(
        "right alarms against failures told, a mark a budget",
        "recall: share of all failures told",
        "precision: share of alarms that were right",
        TENTHS,
        TENTHS,
    )
    for name, colour in colours(list(scorers)).items():
        marks = [
            (at["recall"]["15min"], at["precision"], one)
            for one in budgets
            for at in [scorers[name]["budgets"][one]]
            if at["precision"] is not None
        ]
        places = [point(recall, precision) for recall, precision, _ in marks]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        inside += f"<polyline points='{path}' fill='none' stroke='{colour}'/>"
        for (x, y), (_, _, one) in zip(places, marks, strict=True):
            inside += (
                f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{colour}'>"
                f"<title>{escape(name)} at budget {escape(one)}</title></circle>"
            )
    return svg(inside)


def reliability(name: str, bins: Sequence[Mapping[str, float]], colour: str) -> str:
    """What was said against what happened, with the range that chance alone explains."""
    low = math.log10(LEAST_SHOWN)

    def place(value: float) -> float:
        return min(1.0, max(0.0, (math.log10(max(value, LEAST_SHOWN)) - low) / -low))

    ticks = ("0.001 %", "0.01 %", "0.1 %", "1 %", "10 %", "100 %")
    inside = axes(name, "probability said", "share that failed within the horizon", ticks, ticks)
    (x0, y0), (x1, y1) = point(0, 0), point(1, 1)
    inside += f"<path d='M{x0} {y0}L{x1} {y1}' stroke='#bbb' stroke-dasharray='4'/>"
    for one in bins:
        x, y = point(place(one["said"]), place(one["was"]))
        half = 1.96 * math.sqrt(max(one["was"] * (1 - one["was"]), 1e-12) / max(one["count"], 1))
        _, above = point(0, place(one["was"] + half))
        _, below = point(0, place(max(one["was"] - half, 0.0)))
        inside += (
            f"<path d='M{x:.1f} {above:.1f}V{below:.1f}' stroke='{colour}' stroke-width='1'/>"
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{colour}'>"
            f"<title>said {one['said']:.2g}, was {one['was']:.2g}, {one['count']:.0f} looks"
            "</title></circle>"
        )
    return svg(inside)


def leads(scorers: Mapping[str, Any], budget: str, horizon_hours: float) -> str:
    """How many failures were told at least so long before."""
    longest = max(
        (len(one["budgets"][budget]["lead_hours"]) for one in scorers.values()), default=0
    )
    most = max(4, 4 * math.ceil(longest / 4))
    inside = axes(
        f"lead at a budget of {budget}",
        "hours before the failure, at least",
        "failures told",
        [f"{horizon_hours * i / 4:g}" for i in range(5)],
        [f"{most * i // 4}" for i in range(5)],
    )
    for name, colour in colours(list(scorers)).items():
        found = sorted(scorers[name]["budgets"][budget]["lead_hours"])
        if not found:
            continue
        points = [point(0.0, len(found) / most)]
        for rank, lead in enumerate(found):
            x = min(lead / horizon_hours, 1.0)
            points += [
                point(x, (len(found) - rank) / most),
                point(x, (len(found) - rank - 1) / most),
            ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        inside += f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>"
    return svg(inside)
