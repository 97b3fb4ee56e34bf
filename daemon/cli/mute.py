"""``tocsin mute``, ``unmute``: alerts that people know of are sent to nobody for some hours."""

from __future__ import annotations

import argparse
import json
from urllib.parse import quote

from daemon.cli.client import HeadAway, HeadRefused, ask, complain, name, socket_path

EXAMPLES = {
    "mute": """examples:
  tocsin mute                                what is muted, by whom, until when
  tocsin mute gpu-0017 --hours 8 --because "fan on order"
  tocsin mute 9f2c                           the alert of one case, for four hours
  tocsin mute heat                           all alerts of one code

Mail and webhook keep quiet; status, page and journal show the alert all the same, and what tocsin
does about it does not change (that would be: tocsin lock).""",
    "unmute": """example:
  tocsin unmute gpu-0017                     what goes on there is sent now""",
}
_WHAT = "a node, a case's id, a code (heat), or the guard of a grouped alert (caps, breaker)"


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin mute`` and ``unmute``."""
    parser.epilog = EXAMPLES[verb]
    optional = "?" if verb == "mute" else None
    parser.add_argument("target", nargs=optional, type=name, metavar="WHAT", help=_WHAT)
    if verb == "mute":
        parser.add_argument("--hours", type=float, default=4.0, help="for how long (default: 4)")
        parser.add_argument("--because", default="", metavar="TEXT", help="why, for the others")
    parser.add_argument(
        "--socket", help="the head's socket (default: TOCSIN_SOCKET, else the packaged one)"
    )
    parser.add_argument("--json", action="store_true", help="the answer as JSON")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Says the word to the head, or lists what is muted."""
    path = socket_path(arguments.socket)
    try:
        if arguments.target is None:
            rows = ask(path, "/api/v1/mutes")["mutes"]
            print(json.dumps(rows) if arguments.json else table(rows))
            return 0
        said = {"hours": arguments.hours, "text": arguments.because} if verb == "mute" else {}
        where = f"/api/v1/{verb}/{quote(arguments.target, safe='')}"
        answer = ask(path, where, method="POST", body=said)
    except (HeadAway, HeadRefused) as error:
        return complain(error)
    print(json.dumps(answer) if arguments.json else answer["text"])
    return 0


def table(rows: list[dict[str, str]]) -> str:
    """One line a mute, the next to end first."""
    if not rows:
        return "nothing is muted"
    width = max(len(row["target"]) for row in rows)
    return "\n".join(
        f"{row['target']:<{width}}  until {row['until'][:16]}Z, by {row['user']}"
        + (f": {row['text']}" if row["text"] else "")
        for row in rows
    )
