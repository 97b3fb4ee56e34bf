"""``tocsin explain NODE-or-ID``: one decision rebuilt, or why a node is not drained."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any
from urllib.parse import quote

from daemon.cli.client import HeadAway, HeadRefused, ask, complain, name, socket_path

EXAMPLE = """examples:
  tocsin explain 9f2c        the id that sinfo -R shows
  tocsin explain 9f2c --ticket   the text of a ticket to the vendor
  tocsin explain gpu-0017    why that node is, or is not, drained"""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin explain``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument("subject", type=name, metavar="NODE-or-ID")
    parser.add_argument(
        "--socket", help="the head's socket (default: TOCSIN_SOCKET, else the packaged one)"
    )
    parser.add_argument("--ticket", action="store_true", help="only the text of a ticket")
    parser.add_argument("--json", action="store_true", help="as JSON, with every input")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Asks the head and prints."""
    del verb
    target = f"/api/v1/explain/{quote(arguments.subject, safe='')}"
    try:
        explanation = ask(socket_path(arguments.socket), target)
    except (HeadAway, HeadRefused) as error:
        return complain(error)
    if arguments.ticket and not arguments.json:
        ticket = explanation.get("ticket") or []
        if not ticket:
            say = "there is no ticket for it: tickets are for certain faults of a GPU, by case id"
            print(f"tocsin: {arguments.subject}: {say}", file=sys.stderr)
            return 1
        print("\n".join(ticket))
        return 0
    print(json.dumps(explanation) if arguments.json else "\n".join(lines(explanation)))
    return 0


def lines(explanation: dict[str, Any]) -> list[str]:
    """The explanation as people read it: what, why, guards, evidence, timeline."""
    out = [explanation["title"], *explanation["sentences"]]
    _part(out, "signals", [_signal(signal) for signal in explanation["signals"]])
    _part(out, "guards", [_guard(guard) for guard in explanation["guards"]])
    _part(out, "evidence", list(explanation["evidence"]))
    _part(out, "timeline (UTC)", [_entry(entry) for entry in explanation["timeline"]])
    _part(out, "similar nodes", list(explanation["similar"]))
    _part(out, "ticket", list(explanation.get("ticket") or ()))
    return out


def _part(out: list[str], title: str, rows: list[str]) -> None:
    if rows:
        out.extend(["", title, *(f"  {row}" for row in rows)])


def _signal(signal: dict[str, Any]) -> str:
    value = signal["value"]
    shown = f"{value:g}" if isinstance(value, float | int) else str(value)
    limit = signal["threshold"]
    against = f" (limit {limit:g})" if isinstance(limit, float | int) else ""
    text = f": {signal['text']}" if signal["text"] else ""
    return f"{signal['name']} = {shown}{against}{text}"


def _guard(guard: dict[str, Any]) -> str:
    mark = "pass" if guard["passed"] else "NO  "
    return f"{mark}  {guard['guard']}: {guard['text']}"


def _entry(entry: dict[str, Any]) -> str:
    words = [entry["time"], entry["kind"], entry["device"], entry["text"]]
    by = f" (by {entry['user']})" if entry["user"] else ""
    return "  ".join(word for word in words if word) + by
