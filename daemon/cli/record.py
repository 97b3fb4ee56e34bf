"""``tocsin record``: what tocsin's own drains came to over the last 30 days."""

from __future__ import annotations

import argparse
import json
from typing import Any

from daemon.cli.client import HeadAway, HeadRefused, ask, complain, socket_path

EXAMPLE = """examples:
  tocsin record
  tocsin record --json | jq .wrong_per_1000_node_days

A drain is wrong when a person called it so (tocsin verdict ID false); what nobody judged is never
counted as right. Learned models have a board of their own: tocsin model scoreboard."""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin record``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument(
        "--socket", help="the head's socket (default: TOCSIN_SOCKET, else the packaged one)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Asks the head and prints."""
    del verb
    try:
        found = ask(socket_path(arguments.socket), "/api/v1/record")
    except (HeadAway, HeadRefused) as error:
        return complain(error)
    print(json.dumps(found) if arguments.json else "\n".join(lines(found)))
    return 0


def lines(found: dict[str, Any]) -> list[str]:
    """The record as people read it."""
    rate = found.get("wrong_per_1000_node_days")
    unjudged = int(found["unjudged"])
    worst = ""
    if rate is not None and unjudged:
        most = 1000 * (found["wrong"] + unjudged) / found["node_days"]
        worst = f"; {most:.2f} if all that nobody judged were wrong"
    out = [
        f"last {found['days']} days, {found['node_days']:.1f} node-days watched, now in "
        f"{found['mode']} mode",
        f"drains   {found['drains']:.0f}: {found['right']:.0f} called right, "
        f"{found['wrong']:.0f} called wrong, {unjudged} not judged (tocsin verdict ID true|false)",
        f"shadow   {found['shadow_drains']:.0f} held back by shadow mode, "
        f"{found['shadow_wrong']:.0f} of them called wrong",
        "false    " + ("-" if rate is None else f"{rate:.2f} per 1000 node-days{worst}"),
    ]
    if "reaction_median_seconds" in found:
        out.append(
            f"reaction median {found['reaction_median_seconds']:.1f} s, longest "
            f"{found['reaction_longest_seconds']:.1f} s, from the fault's own time to the drain"
        )
    out += [
        f"out      {found['out_gpu_hours']:.1f} GPU-hours out of service by its drains, "
        f"{found['out_wrong_gpu_hours']:.1f} of them for drains called wrong",
        f"saved    about {found['saved_gpu_hours']:.1f} GPU-hours (reckoned by policy.cost, for "
        "drains called right)",
    ]
    return out
