"""Finds the verb, parses its options, runs it, and turns errors into words and exit codes.

Exit codes: 0 done; 1 it ran and the answer is no (or something is wrong that it reports);
2 bad usage or configuration; 3 nothing could be read; 130 ended by Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence

from daemon import __version__
from daemon.settings import ConfigError

# verb -> (module below daemon.cli, what it does). Modules are imported on use, so that the
# agent never loads what only the head needs.
VERBS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "the whole head on a simulated cluster, with its page"),
    "run": ("run", "the head: receive, store, score, decide (tocsin.service)"),
    "agent": ("agent", "the agent of one compute node (tocsin-agent.service)"),
    "check": ("check", "validate the configuration; show which sources work here, and why not"),
    "status": ("status", "the fleet at a glance"),
    "nodes": ("nodes", "each node with its state, risk and newest decision"),
    "jobs": ("jobs", "what running jobs make of their GPUs, and why one is slow"),
    "explain": ("explain", "why a node was, or was not, drained"),
    "approve": ("operator", "say yes to a proposed drain"),
    "deny": ("operator", "say no to a proposed drain"),
    "resume": ("operator", "give a node that tocsin drained back to Slurm"),
    "prove": ("operator", "test a node that tocsin drained, by a job inside a reservation"),
    "lock": ("operator", "keep tocsin's hands off a node until it is unlocked"),
    "unlock": ("operator", "let tocsin judge a locked node again"),
    "verdict": ("operator", "say whether a decision was right: true or false"),
    "breaker": ("operator", "show or close the breaker that stops drains"),
    "mute": ("mute", "send nobody what is known: a node, a case or a code, for some hours"),
    "unmute": ("mute", "send again what was muted"),
    "diagnose": ("diagnose", "what is wrong with a node's InfiniBand, and where"),
    "audit": ("audit", "who hangs where in this node's PCIe tree, and what is not right"),
    "parse": ("parse", "outside text in, JSON lines out"),
    "capture": ("capture", "what this machine's tools print, without names, as a fixture"),
    "token": ("token", "make a token for an agent"),
    "simulate": ("simulate", "write a telemetry directory of a simulated fleet"),
    "record": ("record", "what its own drains came to: wrong ones, reaction, GPU-hours"),
    "model": ("model", "which learned model scores, what it would have done; promote, roll back"),
    "replay": ("replay", "history through the real pipeline, to decisions"),
    "train": ("train", "fit a risk model"),
    "evaluate": ("evaluate", "judge a risk model, with its rivals beside it"),
    "import": ("transfer", "telemetry directory into the store"),
    "export": ("transfer", "store into a telemetry directory"),
    "store": ("store", "verify, repair or describe the embedded store"),
    "query": ("query", "ask the configured InfluxDB in InfluxQL"),
    "bench": ("bench", "measure the figures of the documentation on this machine"),
}

EXAMPLES = """examples:
  tocsin demo                      watch a simulated cluster lose a GPU
  tocsin check                     is this machine's configuration sound?
  tocsin explain gpu-0017          why is that node drained, or not?
  dmesg | tocsin parse kernel-log  what does tocsin read in this log?

Each verb has its own help: tocsin VERB --help"""


def available() -> dict[str, tuple[str, str]]:
    """The verbs whose module is there."""
    return {
        verb: entry
        for verb, entry in VERBS.items()
        if importlib.util.find_spec(f"daemon.cli.{entry[0]}") is not None
    }


def _front() -> argparse.ArgumentParser:
    verbs = available()
    width = max(map(len, verbs))
    listing = "\n".join(f"  {verb:<{width}}  {text}" for verb, (_, text) in verbs.items())
    parser = argparse.ArgumentParser(
        prog="tocsin",
        usage="tocsin VERB [options]",
        description="Watches GPU nodes under Slurm, says which will fail and why, and drains "
        "them before a job is hurt.\n\nverbs:\n" + listing,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tocsin {__version__}")
    parser.add_argument("verb", choices=list(verbs), metavar="VERB", help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``tocsin`` with ``arguments`` (default: the command line) and returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    front = _front()
    if not given:
        front.print_help()
        return 2
    verb = front.parse_args(given[:1]).verb
    module = importlib.import_module(f"daemon.cli.{VERBS[verb][0]}")
    parser = argparse.ArgumentParser(
        prog=f"tocsin {verb}",
        description=VERBS[verb][1][:1].upper() + VERBS[verb][1][1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.options(parser, verb)
    try:
        return int(module.run(parser.parse_args(given[1:]), verb) or 0)
    except ConfigError as error:
        for line in error.lines():
            print(f"tocsin: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, less) has what it wanted; Python must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
