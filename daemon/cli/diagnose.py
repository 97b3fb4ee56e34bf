"""``tocsin diagnose ib NODE``: what is wrong with a node's InfiniBand, and where.

On the head, both ends of every link are read over the fabric; on the node itself, its own end,
IPoIB and the kernel log are read as well. Nothing is changed and no counter is reset.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from time import sleep

from collectors.ib.fabric import SubnetSettings
from daemon.config import DEFAULT_FILE, Config, HeadSection
from daemon.ib_evidence import Reach, gather
from daemon.settings import load
from models.diagnosis import diagnose, report_lines

EXAMPLES = """examples:
  tocsin diagnose ib gpu-0017              both ends of its links, over the fabric
  tocsin diagnose ib gpu-0017 --seconds 60 watch its counters for a minute

Exit code 0: nothing is wrong; 1: something is; 3: nothing could be looked at."""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin diagnose``."""
    del verb
    parser.epilog = EXAMPLES
    parser.add_argument("what", choices=["ib"], help="ib: InfiniBand")
    parser.add_argument("node", metavar="NODE", help="the node, as Slurm names it")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to watch counters")
    parser.add_argument(
        "--config",
        type=Path,
        help=f"of the head: its subnets and cabling (default: {DEFAULT_FILE}, if it is there)",
    )
    parser.add_argument("--adapter", help="adapter of this machine to ask through")
    parser.add_argument("--port", type=int, default=0, help="its port")
    parser.add_argument("--description", help="pattern of node descriptions, as the head's")
    parser.add_argument("--state-dir", type=Path, help="where the head remembers the cabling")
    parser.add_argument("--root", type=Path, default=Path("/"), help=argparse.SUPPRESS)
    parser.add_argument("--local", action="store_true", help="NODE is this machine")
    parser.add_argument("--no-fabric", action="store_true", help="do not ask the fabric")
    parser.add_argument("--json", action="store_true", help="the report as JSON")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Looks, judges, prints."""
    del verb
    reach = reach_of(arguments, head_section(arguments.config))
    try:
        report = diagnose(gather(arguments.node, reach, sleep, time.time_ns))
    except ValueError as error:
        print(f"tocsin: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(dataclasses.asdict(report)))
    else:
        print("\n".join(report_lines(report)))
    if report.healthy is None:
        return 3
    return 0 if report.healthy else 1


def head_section(file: Path | None) -> HeadSection:
    """What the head is told; the defaults where nobody named a file and there is none."""
    if file is None and not DEFAULT_FILE.exists():
        return HeadSection()
    return load(Config, file or DEFAULT_FILE).head


def reach_of(arguments: argparse.Namespace, head: HeadSection) -> Reach:
    """The options of the command line over those of the head's configuration."""
    fabric = head.sources.fabric
    subnets = fabric.subnets
    if arguments.adapter is not None:
        subnets = (SubnetSettings(adapter=arguments.adapter, port=arguments.port),)
    return Reach(
        seconds=max(0.0, min(arguments.seconds, 3600.0)),
        subnets=subnets,
        description=(
            fabric.node_description if arguments.description is None else arguments.description
        ),
        # The head gives each of its sources a folder of its own, named like the source.
        state_dir=arguments.state_dir or head.state_dir / "fabric",
        root=arguments.root,
        local=arguments.local,
        fabric=not arguments.no_fabric,
    )
