"""``tocsin train``: fits a risk model to telemetry directories, or to a head's own store."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from daemon.cli.places import unwritable

EXAMPLE = """examples:
  tocsin simulate --out /tmp/fleet --nodes 400 --days 60 --seed 1
  tocsin train --telemetry /tmp/fleet --out /tmp/model
  tocsin evaluate --telemetry /tmp/other --model /tmp/model
  tocsin train --store /var/lib/tocsin/store --out /tmp/learned-1   what the head does at night

Labels come from the events alone, operators' verdicts among them; a truth.csv is never looked at.
The model is a folder with model.skops and manifest.json; a model that does not fit this version is
refused with the reason.

With --store the model is trained on the first part of the time and judged on the last, beside the
rival and --champion; the answer says whether it is better. Only reads the store, so it may run
beside the head; a large fleet is learned from by --nodes-max of its nodes."""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin train``."""
    del verb
    parser.epilog = EXAMPLE
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--telemetry", type=Path, action="append", metavar="DIR")
    source.add_argument("--store", type=Path, metavar="DIR", help="a head's embedded store")
    parser.add_argument("--out", type=Path, required=True, metavar="MODEL")
    parser.add_argument("--horizon", type=float, default=86_400.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dask", metavar="ADDRESS",
                        help="spread --telemetry by nodes over this Dask scheduler")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="the manifest's facts as JSON")
    site = parser.add_argument_group("with --store")
    site.add_argument("--champion", type=Path, metavar="MODEL", help="what it must be better than")
    site.add_argument("--days", type=float, default=90.0, help="how much history")
    site.add_argument("--nodes-max", type=int, default=1000)
    site.add_argument("--failures-min", type=int, default=0, help="fewer: it is not tried")
    site.add_argument("--budget", type=float, default=2.0,
                      help="false drains per 1000 node-days")  # fmt: skip
    site.add_argument("--nice", type=int, default=0)
    site.add_argument("--memory-bytes", type=int, default=0, help="0: no limit")
    site.add_argument("--with-parent", action="store_true", help="end when the parent has ended")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Trains and saves."""
    del verb
    from daemon.logs import to_standard_error

    to_standard_error()
    if not 60 <= arguments.horizon <= 30 * 86_400:
        print("tocsin: --horizon must be 60 s to 30 d", file=sys.stderr)
        return 2
    if problem := unwritable(arguments.out, folder=True):
        print(f"tocsin: --out: {problem}", file=sys.stderr)
        return 2
    if arguments.store is not None:
        return _on_site(arguments)
    from models.fitting import TooFewFailures
    from models.parts import SpreadError, spread
    from models.training import train_model

    try:
        with spread(arguments.dask) as over:
            _, facts = train_model(
                arguments.telemetry,
                arguments.out,
                horizon_seconds=arguments.horizon,
                seed=arguments.seed,
                over=over,
            )
    except (OSError, ValueError, TooFewFailures, SpreadError) as error:
        print(f"tocsin: {error}", file=sys.stderr)
        return 1
    print(json.dumps(facts, default=str, indent=None if arguments.json else 1))
    return 0


def _on_site(arguments: argparse.Namespace) -> int:
    """Trains on a store and judges; the last line of the answer is JSON."""
    from daemon.learning.training import Bounds, bind

    if arguments.dask:
        print("tocsin: --dask takes --telemetry; tocsin export makes one", file=sys.stderr)
        return 2
    bind(Bounds(arguments.nice, arguments.memory_bytes, arguments.with_parent))
    try:
        return _learn(arguments)
    except MemoryError:
        print(
            f"tocsin: {arguments.memory_bytes} bytes of memory were not enough: raise "
            "learning.memory_bytes, or lower learning.nodes_max",
            file=sys.stderr,
        )
        return 1


def _learn(arguments: argparse.Namespace) -> int:
    # Imported within the bounds: loading them takes memory as well.
    from daemon.learning.history import StoreHistory
    from daemon.store.errors import StoreUnavailableError
    from models.artifact import ModelRefused, load
    from models.promotion import Rules
    from models.site import SiteOptions, learn

    asked = SiteOptions(
        horizon_seconds=arguments.horizon,
        seed=arguments.seed,
        failures_min=arguments.failures_min,
        rules=Rules(budget=arguments.budget),
    )
    try:
        champion = load(arguments.champion) if arguments.champion else None
        history = StoreHistory(
            arguments.store,
            end_ns=time.time_ns(),
            days=arguments.days,
            nodes_max=arguments.nodes_max,
        )
        name = arguments.out.name
        found = learn(history, arguments.out, name, champion=champion, options=asked)
    except (OSError, ValueError, ModelRefused, StoreUnavailableError) as error:
        print(f"tocsin: {error}", file=sys.stderr)
        return 1
    plain = found.plain()
    if not arguments.json:
        print(f"{found.state}: {found.why}")
        plain = {"promote": plain["promote"], "gate": plain["gate"]}
    print(json.dumps(plain))
    return 0
