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
  tocsin nodes --json | jq '.[] | select(.risk > 0.5).name'
  tocsin nodes --versions          who runs another driver, VBIOS, firmware or kernel than its peers
  tocsin nodes --versions --all    and what all run alike"""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin nodes``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument("--speaking", action="store_true", help="leave the well ones out")
    parser.add_argument("--versions", action="store_true", help="compare versions within models")
    parser.add_argument("--all", action="store_true", help="with --versions: what is alike, too")
    parser.add_argument(
        "--socket", help="the head's socket (default: TOCSIN_SOCKET, else the packaged one)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Asks the head and prints a table."""
    del verb
    try:
        if arguments.versions:
            return _versions(arguments)
        rows = ask(socket_path(arguments.socket), "/api/v1/nodes")["nodes"]
    except (HeadAway, HeadRefused) as error:
        return complain(error)
    if arguments.speaking:
        rows = [row for row in rows if row["voice"] or row["owner"] or row["guard"]]
    print(json.dumps(rows) if arguments.json else table(rows))
    return 0


def _versions(arguments: argparse.Namespace) -> int:
    """Prints the fleet's versions; exit code 1 where some differ from their peers."""
    groups = ask(socket_path(arguments.socket), "/api/v1/versions")["groups"]
    print(json.dumps(groups) if arguments.json else versions(groups, arguments.all))
    return 1 if any(group["others"] for group in groups) else 0


def versions(groups: list[dict[str, Any]], every: bool = False) -> str:
    """One block for each kind of version whose parts differ; with ``every``, all of them."""
    if not groups:
        return "no node has told its versions yet: agents tell them at their start and daily"
    lines = []
    for group in groups:
        if not group["others"] and not every:
            continue
        usual = f"{group['usual_parts']} of {group['parts']}"
        words = "  (declared)" if group["declared"] else ""
        words = words if group["clear"] else "  (no majority)"
        lines.append(f"{group['what']} of {group['model']}: {group['usual']} on {usual}{words}")
        for other in group["others"]:
            before = f", before {other['before']}" if other["before"] else ""
            lines.append(
                f"  {other['text']} on {other['parts']}, since {other['since'][:16]}Z{before}: "
                f"{other['nodes']}"
            )
    alike = sum(not group["others"] for group in groups)
    if not every:
        lines.append(
            f"{alike} of {len(groups)} kinds of version are as declared or alike on all peers "
            "(--all)"
        )
    return "\n".join(lines)


COLUMNS = ("NODE", "SLURM", "GPUS", "RISK", "1h / 7d", "HEARD", "VOICE", "GUARD", "REASON")


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
        _beside(row.get("outlook") or {}),
        "never" if heard is None else span(heard),
        voice or "-",
        row["guard"] or "-",
        row["reason"],
    )


def _beside(outlook: dict[str, float]) -> str:
    """The risk within an hour and within a week, where the model tells of them."""
    told = [outlook.get(name) for name in ("1h", "7d")]
    return " / ".join("-" if one is None else f"{one:.3f}" for one in told) if outlook else "-"
