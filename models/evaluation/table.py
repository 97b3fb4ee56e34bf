"""Judged cases as a page shows them: ``python -m models.evaluation.table OUT [SVG [CASE]]``.

OUT is the folder of ``models.evaluation.held_out``. Prints a Markdown table of every scorer for the
usual case, and one line for each other case that has been judged; writes the picture of CASE (the
usual one) to SVG. Nothing is reckoned here: the figures are those of the JSON files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.evaluation import pictures
from models.evaluation.held_out import CASES
from models.horizons import label

USUAL = "usual"
NEXT = ("static-thresholds", "logistic")  # shown beside the learned model for every case
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#222}.title{font-weight:600}"
    "svg{font-family:system-ui,sans-serif}"
)


def read(out: Path) -> dict[str, Any]:
    """The cases in ``out`` that have been judged, in the order of CASES."""
    return {
        name: json.loads((out / f"{name}.json").read_text())
        for name in CASES
        if (out / f"{name}.json").exists()
    }


def scorers_table(result: Mapping[str, Any]) -> str:
    """Every scorer on one case."""
    foreseeable = result["predictable_in_test"]
    chance = next(iter(result["scorers"].values()))["prevalence"]
    rows = [
        "| scorer | set for 1: early, with a precursor | false/1000 node-days | set for 2: early, "
        "with a precursor | false/1000 node-days | set for 5: early, with a precursor | false/1000 "
        "node-days | at most worth: early / false | net GPU-hours (95 %) | "
        f"AUPRC (chance {chance:.3f}) |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, entry in result["scorers"].items():
        cells = [f"**{name}**" if name == "learned" else name]
        for budget in entry["budgets"].values():
            cells += [_early(budget, foreseeable), f"{budget['false_per_1000_node_days']:.2f}"]
        worth = entry["worth"]
        low, high = worth["net_gpu_hours_95"]
        cells += [
            f"{worth['early']} / {worth['false']}",
            f"{worth['net_gpu_hours']:.0f} ({low:.0f}, {high:.0f})",
            "-" if entry["auprc"] is None else f"{entry['auprc']:.3f}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def cases_table(cases: Mapping[str, Any]) -> str:
    """One line a case: the learned model beside NEXT, thresholds set for 2, and what it said."""
    rows = [
        "| case | node-days | failures, with a precursor | learned: early (with a precursor) at "
        "false/1000 node-days | "
        + " | ".join(NEXT)
        + " | AUPRC: learned / logistic / chance | said / happened within a day | "
        "Brier skill 1 h, 24 h, 7 d | gate |",
        "|" + "---|" * (8 + len(NEXT)),
    ]
    for name, result in cases.items():
        scorers = result["scorers"]
        learned = scorers["learned"]
        shown = [_at_two(scorers[one], result) for one in ("learned", *NEXT)]
        skills = [
            _skill(result["horizons"].get("1h")),
            _skill(learned),
            _skill(result["horizons"].get("7d")),
        ]
        auprc = [learned["auprc"], scorers["logistic"]["auprc"], learned["prevalence"]]
        cells = [
            name,
            f"{result['test_node_days']:.0f}",
            f"{result['failures_in_test']}, {result['predictable_in_test']}",
            f"**{shown[0]}**",
            *shown[1:],
            " / ".join("-" if one is None else f"{one:.3f}" for one in auprc),
            f"{100 * learned['mean_probability']:.2f} % / {100 * learned['prevalence']:.2f} %",
            ", ".join(skills),
            result["gate"]["learned"],
        ]
        rows.append(f"| {' | '.join(cells)} |")
    whole = [one for name, one in cases.items() if not CASES[name].without]
    if len(whole) > 1:
        rows.append(_together(whole))
    return "\n".join(rows)


def _together(results: Sequence[Mapping[str, Any]]) -> str:
    """One line of the sums over all cases of one model."""
    days = sum(one["test_node_days"] for one in results)
    failures, foreseeable = (
        sum(one[name] for one in results) for name in ("failures_in_test", "predictable_in_test")
    )
    cells = ["all above of one model", f"{days:.0f}", f"{failures}, {foreseeable}"]
    for scorer in ("learned", *NEXT):
        at = [one["scorers"][scorer]["budgets"]["2"] for one in results]
        told = sum(
            _foretold(some, one["predictable_in_test"])
            for some, one in zip(at, results, strict=True)
        )
        false = 1000 * sum(some["false"] for some in at) / days
        cells.append(f"**{sum(some['early'] for some in at)} ({told}) at {false:.2f}**")
    return f"| {' | '.join([*cells, *[''] * 4])} |"


def _foretold(at: Mapping[str, Any], foreseeable: int) -> int:
    return round((at["recall_of_predictable"] or 0.0) * foreseeable)


def _early(at: Mapping[str, Any], foreseeable: int) -> str:
    return f"{at['early']}, {_foretold(at, foreseeable)}"


def _at_two(entry: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    at = entry["budgets"]["2"]
    early, told = _early(at, result["predictable_in_test"]).split(", ")
    false = at["false_per_1000_node_days"]
    return f"{early} ({told}) at {false:.2f}{': over' if false > 2 else ''}"


def _skill(entry: Mapping[str, Any] | None) -> str:
    skill = entry.get("brier_skill") if entry else None
    return "-" if skill is None else f"{skill:.3f}"


def picture(result: Mapping[str, Any]) -> str:
    """An SVG of its own: what is told for how many false drains, and whether what is said is so."""
    scorers = result["scorers"]
    told = [
        name
        for name, entry in scorers.items()
        if any(one["early"] for one in entry["budgets"].values())
    ]
    share = result["predictable_in_test"] / max(1, result["failures_in_test"])
    colour = pictures.colours(list(scorers))
    parts = [pictures.trade_off(scorers, list(scorers["learned"]["budgets"]), share)]
    within = {label(result["horizon_seconds"]): scorers["learned"], **result["horizons"]}
    parts += [
        pictures.reliability(f"learned, within {name}", one["reliability"], colour["learned"])
        for name, one in within.items()
        if one.get("reliability")
    ]
    across = 2
    width = across * pictures.WIDTH
    height = -(-len(parts) // across) * pictures.HEIGHT + 24
    placed = [
        part.replace(
            "<svg ",
            f"<svg x='{at % across * pictures.WIDTH}' y='{24 + at // across * pictures.HEIGHT}' ",
            1,
        )
        for at, part in enumerate(parts)
    ]
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' "
        f"width='{width}' height='{height}'><style>{_STYLE}</style>"
        f"<rect width='{width}' height='{height}' fill='#fff'/>{_legend(told, colour)}"
        + "".join(placed)
        + "</svg>\n"
    )


def _legend(names: Sequence[str], colour: Mapping[str, str]) -> str:
    made, x = "", 16
    for name in names:
        made += f"<rect x='{x}' y='8' width='16' height='8' fill='{colour[name]}'/>"
        made += f"<text x='{x + 20}' y='16'>{name}</text>"
        x += 34 + 7 * len(name)
    return made


def page(cases: Mapping[str, Any]) -> str:
    """The Markdown of all cases in ``cases``."""
    parts = [scorers_table(cases[USUAL])] if USUAL in cases else []
    return "\n\n".join([*parts, cases_table(cases)]) + "\n"


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3, 4):
        sys.exit("usage: python -m models.evaluation.table OUT [SVG [CASE]]")
    found = read(Path(sys.argv[1]))
    if not found:
        sys.exit(f"{sys.argv[1]}: no case was judged there: python -m models.evaluation.held_out")
    sys.stdout.write(page(found))
    if len(sys.argv) > 2:
        shown = sys.argv[3] if len(sys.argv) == 4 else USUAL
        if shown not in found:
            sys.exit(f"{sys.argv[1]}: {shown} was not judged there, only {', '.join(found)}")
        Path(sys.argv[2]).write_text(picture(found[shown]))
