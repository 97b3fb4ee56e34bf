"""``tocsin evaluate``: judges a risk model, with its rivals beside it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daemon.cli.places import left_in, unwritable

EXAMPLE = """examples:
  tocsin evaluate --telemetry /tmp/fleet --report /tmp/report.html
  tocsin evaluate --telemetry DIR --model /tmp/model --json

Without --model one is trained on the first 40 % of the time and judged on the last. The report is
one page with its plots inside."""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin evaluate``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument("--telemetry", type=Path, required=True, metavar="DIR")
    parser.add_argument("--model", type=Path, metavar="MODEL")
    parser.add_argument("--without", action="append", default=[], metavar="MEASUREMENT[:FIELD]")
    parser.add_argument("--report", type=Path, metavar="FILE.html")
    parser.add_argument("--step", type=float, default=600.0, metavar="SECONDS",
                        help="how often all nodes are scored")  # fmt: skip
    parser.add_argument("--dask", metavar="ADDRESS",
                        help="spread the work by nodes over this Dask scheduler")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="everything as JSON")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Evaluates and prints."""
    del verb
    from daemon.logs import to_standard_error

    to_standard_error()
    from models.artifact import ModelRefused, load
    from models.evaluation import evaluate
    from models.evaluation.report import html
    from models.parts import SpreadError, spread
    from models.telemetry import Telemetry
    from models.telemetry.chunk import TAG_COLUMNS

    if arguments.report and (problem := unwritable(arguments.report)):
        print(f"tocsin: --report: {problem}", file=sys.stderr)
        return 2
    try:
        model = load(arguments.model) if arguments.model else None
        telemetry = Telemetry(arguments.telemetry, arguments.without)
        for line in left_in(arguments.without, TAG_COLUMNS):
            print(line, file=sys.stderr)
        with spread(arguments.dask) as over:
            found = evaluate(telemetry, model=model, step_ns=int(arguments.step * 1e9), over=over)
        if arguments.report:
            arguments.report.write_text(html(found), encoding="utf-8")
    except (OSError, ValueError, ModelRefused, SpreadError) as error:
        print(f"tocsin: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(found.result, default=str))
    else:
        print("\n".join(words(found.result)))
        if arguments.report:
            print(f"report: {arguments.report}", file=sys.stderr)
    return 0


def words(result: Mapping[str, Any]) -> list[str]:
    """What was found, for people: one line a scorer, then the gate and what to know."""
    known = result["truth"] == "truth.csv"
    precursor = f", {result['predictable_in_test']} with a precursor" if known else ""
    out = [
        f"{result['nodes']} nodes, judged on {result['test_node_days']:.0f} node-days; "
        f"{result['failures_in_test']} failures{precursor}",
        "where each is worth most within its budget of false drains:",
        "SCORER             EARLY  FALSE  NET GPU-H  AUPRC",
    ]
    for name, entry in result["scorers"].items():
        worth, auprc = entry["worth"], entry["auprc"]
        out.append(
            f"{name:<17}  {worth['early']:>5}  {worth['false']:>5}  "
            f"{worth['net_gpu_hours']:>9.0f}  {'-' if auprc is None else format(auprc, '.3f'):>5}"
        )
    gate = result["gate"]
    out.append(f"gate: {gate['learned']} ({gate['why']})")
    return out + [f"note: {note}" for note in result["notes"]]
