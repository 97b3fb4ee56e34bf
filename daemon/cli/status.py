"""``tocsin status``: the fleet at a glance."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from daemon.cli.client import HeadAway, HeadRefused, ask, complain, socket_path

EXAMPLE = """example:
  tocsin status
  tocsin status --json | jq .states"""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin status``."""
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
        fleet = ask(socket_path(arguments.socket), "/api/v1/status")
    except (HeadAway, HeadRefused) as error:
        return complain(error)
    if arguments.json:
        print(json.dumps(fleet))
    else:
        print("\n".join(lines(fleet)))
    return 0


def lines(fleet: dict[str, Any]) -> list[str]:
    """The status as people read it; a standby can say no more than that it stands by."""
    head = f"{fleet['cluster']}: tocsin {fleet['version']} in {fleet['mode']} mode"
    if "nodes" not in fleet:
        return [f"{head}: STANDS BY, {fleet['role_text']}"]
    slurm = fleet["slurm"]
    states = ", ".join(f"{count} {state}" for state, count in fleet["states"].items() if count)
    out = [
        f"{head}, up {span(fleet['uptime_seconds'])}",
        f"nodes    {fleet['nodes']} ({states or 'none known'}); "
        f"{fleet['gpus']} GPUs, {fleet['gpus_out_of_service']} out of service",
        f"drains   {fleet['drains_ours']} held by tocsin (at most {fleet['drains_cap']}), "
        f"{fleet['drains_last_hour']} in the last hour (at most {fleet['drains_per_hour_cap']})"
        + (f", {fleet['approvals_waiting']} wait for a yes" if fleet["approvals_waiting"] else ""),
        f"heard    {fleet['agents_heard']} agents, {fleet['coverage_ratio'] * 100:.0f} % of what "
        f"is expected, {fleet['values_per_second']:.0f} values/s",
        f"slurm    {slurm['adapter']}, {_slurm_age(slurm)} {slurm['text']}".rstrip(),
        f"store    {fleet['store']}",
        f"model    {fleet['model']}, horizon {span(fleet['horizon_seconds'])}",
    ]
    if fleet.get("role_text"):
        out.append(f"role     {fleet['role']}: {fleet['role_text']}")
    if fleet.get("learning"):
        out.append(f"learning {fleet['learning']}")
    if fleet["breaker_open"]:
        out.append(f"BREAKER  open, no drains: {fleet['breaker_text']}")
    out.extend(
        f"source   {source['name']}: up on {source['up']}, down on {source['down']}"
        + (f" ({source['fault']})" if source["fault"] else "")
        for source in fleet["sources"]
    )
    for alert in fleet["alerts"]:
        text = alert["text"].replace("\n", "\n         ")
        hush = f"\n         {alert['muted']}" if alert.get("muted") else ""
        out.append(f"ALERT    {alert['title']}: {text}{hush}")
    return out


def _slurm_age(slurm: Mapping[str, Any]) -> str:
    age = slurm["age_seconds"]
    if age is None:
        return "never read yet" if slurm["up"] else "AWAY, never read"
    return f"{'read' if slurm['up'] else 'AWAY, last read'} {span(age)} ago"


def span(seconds: float) -> str:
    """A length of time in the unit that people would say.

    >>> span(90)
    '90 s'
    >>> span(86400 * 3)
    '3.0 d'
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} d"
