"""``tocsin replay``: a history through the real pipeline, to decisions."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from daemon.cli.places import left_in

EXAMPLE = """examples:
  tocsin replay --telemetry /tmp/fleet --out /tmp/decisions.jsonl
  tocsin replay --telemetry DIR --out - --without event        what without the kernel log?
  tocsin replay --telemetry DIR --out FILE --without gpu:ecc_uncorrected_total

One JSON line for each decision, in order of time: time, node, device, component, action (alert,
drain, hold, resume), reason, guard, probability, voice (fact, silence, risk, history). The same
history gives the same lines. Nothing outside is touched: Slurm is as the history tells it."""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin replay``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument("--telemetry", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", required=True, metavar="FILE", help="- is standard output")
    parser.add_argument("--model", type=Path, metavar="MODEL", help="a trained model beside rival")
    parser.add_argument("--config", type=Path, help="its [policy] holds (default: the defaults)")
    parser.add_argument(
        "--without", action="append", default=[], metavar="MEASUREMENT[:FIELD]",
        help="leave this out of the history",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="the summary as JSON")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Replays."""
    del verb
    from daemon.logs import to_standard_error

    to_standard_error()
    from daemon.config import Config
    from daemon.replay import run_replay, speed
    from daemon.settings import load
    from models.artifact import ModelRefused
    from models.artifact import load as load_model
    from models.risk import RiskModel
    from models.rival import Rival
    from models.telemetry import Telemetry
    from models.telemetry.chunk import TAG_COLUMNS

    config = load(Config, arguments.config) if arguments.config else Config()
    started = time.monotonic()
    try:
        models: list[RiskModel] = [Rival()]
        if arguments.model:
            models.append(load_model(arguments.model))
        telemetry = Telemetry(arguments.telemetry, arguments.without)
        for line in left_in(arguments.without, TAG_COLUMNS):
            print(line, file=sys.stderr)
        if arguments.out == "-":
            summary = run_replay(telemetry, sys.stdout, limits=config.policy, models=models)
        else:
            with open(arguments.out, "w", encoding="utf-8") as out:
                summary = run_replay(telemetry, out, limits=config.policy, models=models)
    except (OSError, ValueError, ModelRefused) as error:
        print(f"tocsin: {error}", file=sys.stderr)
        return 2
    fast = speed(summary, time.monotonic() - started)
    if arguments.json and arguments.out != "-":
        facts = {"samples": summary.samples, "decisions": summary.lines, "drains": summary.drains}
        print(json.dumps(facts | {name: round(value, 1) for name, value in fast.items()}))
    else:
        print(
            f"{summary.lines} decisions, {summary.drains} drains from {summary.samples} readings, "
            f"{fast['times_real_time']:.0f} times faster than they came",
            file=sys.stderr,
        )
    return 0
