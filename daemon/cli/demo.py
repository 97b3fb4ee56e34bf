"""``tocsin demo``: the whole head on a simulated cluster, with its page."""

from __future__ import annotations

import argparse
import logging
import sys

from daemon.demo.run import DemoOptions, run_demo
from daemon.listen import ListenError
from daemon.logs import LEVELS, configure

EXAMPLE = """example:
  tocsin demo                       64 nodes; open the address that it prints
  tocsin demo --nodes 1000          a larger fleet
  tocsin demo --seconds 120         ends by itself

Nothing is installed and nothing outside is touched: Slurm, agents and time are simulated."""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin demo``."""
    del verb
    parser.epilog = EXAMPLE
    default = DemoOptions()
    parser.add_argument("--nodes", type=_between(1, 10_000), default=default.nodes)
    parser.add_argument(
        "--speed",
        type=_between(1, 600),
        default=int(default.speed),
        help="simulated seconds a second (default %(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="end after so many real seconds")
    parser.add_argument(
        "--port", type=_between(0, 65535), default=default.port, help="of the page; 0 takes any"
    )
    parser.add_argument(
        "--seed", type=int, default=default.seed, help="another seed, another story"
    )
    parser.add_argument("--log-level", choices=list(LEVELS), default="error")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Runs until Ctrl-C or ``--seconds``."""
    del verb
    configure("tocsin-demo", arguments.log_level)
    if arguments.log_level == "error":
        # The demo prints its alerts as lines for people.
        logging.getLogger("tocsin.alerts").setLevel(logging.CRITICAL + 1)
    chosen = DemoOptions(
        nodes=arguments.nodes,
        speed=float(arguments.speed),
        seconds=max(0.0, arguments.seconds),
        port=arguments.port,
        seed=arguments.seed,
    )
    try:
        return run_demo(chosen, _say)
    except ListenError as error:
        print(f"tocsin: {error}; another port: --port 0", file=sys.stderr)
        return 1


def _say(line: str) -> None:
    print(line, flush=True)


def _between(low: int, high: int):  # type: ignore[no-untyped-def]
    def number(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must lie between {low} and {high}")
        return value

    return number
