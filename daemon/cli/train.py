"""``tocsin train``: fits a risk model to telemetry directories."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

EXAMPLE = """example:
  tocsin simulate --out /tmp/fleet --nodes 400 --days 60 --seed 1
  tocsin train --telemetry /tmp/fleet --out /tmp/model
  tocsin evaluate --telemetry /tmp/other --model /tmp/model

Labels come from the events alone; a truth.csv is never looked at. The model is a folder with
model.skops and manifest.json; a model that does not fit this version is refused with the reason."""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin train``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument("--telemetry", type=Path, required=True, action="append", metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="MODEL")
    parser.add_argument("--horizon", type=float, default=86_400.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the manifest's facts as JSON")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Trains and saves."""
    del verb
    from models.learned import TooFewFailures
    from models.training import train_model

    if not 60 <= arguments.horizon <= 30 * 86_400:
        print("tocsin: --horizon must be 60 s to 30 d", file=sys.stderr)
        return 2
    try:
        _, facts = train_model(
            arguments.telemetry,
            arguments.out,
            horizon_seconds=arguments.horizon,
            seed=arguments.seed,
        )
    except (OSError, ValueError, TooFewFailures) as error:
        print(f"tocsin: {error}", file=sys.stderr)
        return 1
    print(json.dumps(facts, default=str, indent=None if arguments.json else 1))
    return 0
