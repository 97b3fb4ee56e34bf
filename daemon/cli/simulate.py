"""``tocsin simulate``: a telemetry directory of a simulated fleet, with its truth."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from daemon.cli.places import unwritable

EXAMPLE = """example:
  tocsin simulate --out /tmp/fleet --nodes 100 --days 14 --seed 1
  tocsin replay --telemetry /tmp/fleet --out /tmp/decisions.jsonl

Writes the same tables that real sources write (gpu.parquet, event.parquet ...), truth.csv with
every fault, and scenario.json with every parameter. The same seed gives the same fleet."""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin simulate``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--days", type=float, default=14.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cadence", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--scenario", type=Path, metavar="FILE", help="default: the shipped one")
    parser.add_argument("--force", action="store_true", help="replace what is in DIR")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Simulates and writes."""
    del verb
    from pydantic import ValidationError

    from models.simulate import load
    from models.simulate.write import write_simulation

    problem = _problem(arguments)
    if problem:
        print(f"tocsin: {problem}", file=sys.stderr)
        return 2
    try:
        scenario = load(arguments.scenario) if arguments.scenario else load()
    except (OSError, ValueError, ValidationError) as error:
        print(f"tocsin: {arguments.scenario}: {error}", file=sys.stderr)
        return 2
    try:
        if arguments.force and arguments.out.exists():
            shutil.rmtree(arguments.out)
        arguments.out.mkdir(parents=True, exist_ok=True)
        fleet = write_simulation(
            arguments.out,
            nodes=arguments.nodes,
            days=arguments.days,
            seed=arguments.seed,
            cadence_seconds=arguments.cadence,
            scenario=scenario,
            progress=_progress if sys.stderr.isatty() else None,
        )
    except OSError as error:
        print(f"tocsin: {arguments.out} cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    print(
        f"{arguments.out}: {arguments.nodes} nodes, {arguments.days:g} days, "
        f"{len(fleet.truth())} faults in truth.csv"
    )
    return 0


def _problem(arguments: argparse.Namespace) -> str:
    if not 1 <= arguments.nodes <= 100_000:
        return "--nodes must be 1 to 100000"
    if not 0 < arguments.days <= 3660:
        return "--days must be more than 0 and at most 3660"
    if not 1 <= arguments.cadence <= 3600:
        return "--cadence must be 1 to 3600 seconds"
    out: Path = arguments.out
    if problem := unwritable(out, folder=True):
        return problem
    if out.exists() and any(out.iterdir()):
        if not arguments.force:
            return f"{out} is not empty; name another folder or add --force"
        if not (out / "scenario.json").exists():
            return f"{out} holds something that is no simulation; it is not replaced"
    return ""


def _progress(share: float) -> None:
    end = "\n" if share >= 1 else ""
    print(f"\rsimulated {share * 100:5.1f} %", end=end, file=sys.stderr, flush=True)
