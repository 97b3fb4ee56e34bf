"""``tocsin bench [NAME]``: the figures of the documentation, measured on this machine."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daemon.bench.figures import Figure

EXAMPLE = """examples:
  tocsin bench                      all of them, in a few minutes
  tocsin bench store --nodes 10000  the embedded store, and what else is installed beside it
  tocsin bench gateway --json       HTTP in, store out
  tocsin bench head --nodes 10000   the same with rules, features and judgement
  tocsin bench return --nodes 10000 all agents come back at once after an outage
  tocsin bench slurm --nodes 10000  100 drains on a slurmctld of its own (as root)
  tocsin bench slurm --adapter rest the same by slurmrestd; Slurm is the one that PATH finds first
  tocsin bench decide --nodes 10000 the decisions of a fleet that shows all the same fault
  tocsin bench score --nodes 10000  one scoring of the whole fleet, by part
  tocsin bench score --model MODEL  the same with a learned model beside the rival

Peers (InfluxDB 1, VictoriaMetrics) are measured when influxd or victoria-metrics is on PATH."""

Bench = Callable[[Path, int, int], "Iterator[Figure]"]


def _store(folder: Path, nodes: int, steps: int) -> Iterator[Figure]:
    from daemon.bench.peers import bench_peers
    from daemon.bench.store import bench_sqlite, bench_store

    yield from bench_store(folder / "store", nodes, steps)
    yield from bench_sqlite(folder / "sqlite", nodes, steps)
    yield from bench_peers(folder / "peers", nodes, steps)


def _gateway(folder: Path, nodes: int, steps: int) -> Iterator[Figure]:
    from daemon.bench.gateway import bench_gateway

    yield from bench_gateway(folder / "gateway", nodes, max(1, min(steps, 5)))


def _head(folder: Path, nodes: int, steps: int) -> Iterator[Figure]:
    from daemon.bench.head import bench_head

    yield from bench_head(folder / "head", nodes, max(1, min(steps, 4)))


def _agent(folder: Path, nodes: int, steps: int) -> Iterator[Figure]:
    from daemon.bench.agent import bench_agent

    del nodes
    yield from bench_agent(folder / "agent", max(30.0, float(steps)))


def _fabric(folder: Path, nodes: int, steps: int) -> Iterator[Figure]:
    from daemon.bench.fabric import bench_fabric

    del folder
    yield from bench_fabric(nodes, max(1, min(steps, 5)))


def _bmc(folder: Path, nodes: int, steps: int) -> Iterator[Figure]:
    from daemon.bench.bmc import bench_bmc

    del folder
    yield from bench_bmc(nodes, max(1, min(steps, 3)))


def _score(folder: Path, nodes: int, steps: int, model: Path | None = None) -> Iterator[Figure]:
    from daemon.bench.score import bench_score

    del folder
    yield from bench_score(nodes, max(2, min(steps, 4)), model)


def _decide(folder: Path, nodes: int, steps: int) -> Iterator[Figure]:
    from daemon.bench.decide import bench_decide

    yield from bench_decide(folder / "decide", nodes, max(1, min(steps, 4)))


def _return(folder: Path, nodes: int, steps: int) -> Iterator[Figure]:
    from daemon.bench.returning import bench_return

    yield from bench_return(folder / "return", nodes, max(1, min(steps, 12)))


def _slurm(
    folder: Path, nodes: int, drains: int, way: str = "cli", pyslurm_folder: Path | None = None
) -> Iterator[Figure]:
    from daemon.bench.slurm import bench_slurm

    yield from bench_slurm(folder / "slurm", nodes, drains, way, pyslurm_folder)


BENCHES: dict[str, Bench] = {
    "agent": _agent,
    "bmc": _bmc,
    "decide": _decide,
    "fabric": _fabric,
    "gateway": _gateway,
    "head": _head,
    "return": _return,
    "score": _score,
    "slurm": _slurm,
    "store": _store,
}


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin bench``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument("name", nargs="?", choices=sorted(BENCHES), metavar="NAME")
    parser.add_argument("--nodes", type=int, default=1000, help="of 8 GPUs each")
    parser.add_argument("--steps", type=int, default=20, help="readings of the whole fleet")
    parser.add_argument("--drains", type=int, default=100, help="of slurm: nodes drained at once")
    parser.add_argument(
        "--adapter",
        choices=("cli", "pyslurm", "rest"),
        default="cli",
        help="of slurm: by which way",
    )
    parser.add_argument(
        "--pyslurm", type=Path, metavar="DIR", help="of slurm: the folder that holds pyslurm"
    )
    parser.add_argument("--model", type=Path, metavar="MODEL", help="of score: a learned model")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where to write, for a while")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Measures and prints each figure as soon as it is known."""
    del verb
    from daemon.logs import to_standard_error

    to_standard_error()
    if not 1 <= arguments.nodes <= 100_000 or not 1 <= arguments.steps <= 100_000:
        print("tocsin: --nodes and --steps must be 1 to 100000", file=sys.stderr)
        return 2
    if not 1 <= arguments.drains <= 10_000:
        print("tocsin: --drains must be 1 to 10000", file=sys.stderr)
        return 2
    if arguments.folder is not None and not os.access(arguments.folder, os.W_OK | os.X_OK):
        print(f"tocsin: --folder {arguments.folder}: no folder to write in", file=sys.stderr)
        return 2
    benches = dict(BENCHES)
    benches["slurm"] = functools.partial(
        _slurm, way=arguments.adapter, pyslurm_folder=arguments.pyslurm
    )
    if arguments.model is not None:
        if arguments.name != "score":
            print("tocsin: --model belongs to score: tocsin bench score --model", file=sys.stderr)
            return 2
        from models.artifact import ModelRefused
        from models.artifact import load as load_model

        try:
            load_model(arguments.model)
        except ModelRefused as error:
            print(f"tocsin: {error}", file=sys.stderr)
            return 2
        benches["score"] = functools.partial(_score, model=arguments.model)
    if not arguments.json:
        load = os.getloadavg()[0]
        print(f"{os.cpu_count()} processors, load {load:.1f}; a busy machine measures badly")
    names = [arguments.name] if arguments.name else sorted(BENCHES)
    with contextlib.ExitStack() as stack:
        for name in names:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="tocsin-bench-", dir=arguments.folder)
            )
            times = arguments.drains if name == "slurm" else arguments.steps
            for figure in benches[name](Path(folder), arguments.nodes, times):
                print(_json(figure) if arguments.json else figure, flush=True)
    return 0


def _json(figure: Figure) -> str:
    return json.dumps(
        {"name": figure.name, "value": figure.value, "unit": figure.unit, "reach": figure.reach}
    )
