"""``tocsin nodes``: each node with its state, risk, and what speaks against it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from daemon.cli.client import HeadAway, HeadRefused, ask, complain, socket_path
from daemon.cli.status import span

EXAMPLE = """examples:
  tocsin nodes
  tocsin nodes --speaking          only nodes that something speaks against
  tocsin nodes --json | jq '.[] | select(.risk > 0.5).name'"""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin nodes``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument("--speaking", action="store_true", help="leave the well ones out")
    parser.add_argument("--socket", help="the head's socket (default: TOCSIN_SOCKET)")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Asks the head and prints a table."""
    del verb
    try:
        rows = ask(socket_path(arguments.socket), "/api/v1/nodes")["nodes"]
    except (HeadAway, HeadRefused) as error:
        return complain(error)
    if arguments.speaking:
        rows = [row for row in rows if row["voice"] or row["owner"] or row["guard"]]
    print(json.dumps(rows) if arguments.json else table(rows))
    return 0


COLUMNS = ("NODE", "SLURM", "GPUS", "RISK", "HEARD", "VOICE", "GUARD", "REASON")


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in columns as wide as their widest cell; the reason comes last, uncut."""
    cells = [COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS) - 1)]
    lines = []
    for line in cells:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        lines.append("  ".join([*padded, line[-1]]).rstrip())
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    risk = row["risk"]
    heard = row["heard_seconds"]
    voice = " ".join(part for part in (row["voice"], row["code"], row["device"]) if part)
    return (
        row["name"],
        row["slurm_state"].lower(),
        row["gpu_marks"] or str(row["gpus"]),
        "-" if risk is None else f"{risk:.3f}",
        "never" if heard is None else span(heard),
        voice or "-",
        row["guard"] or "-",
        row["reason"],
    )
