"""An operator's word: approve, deny, resume, prove, lock, unlock, verdict, breaker.

The head learns the user from the socket's peer credentials, never from the command line.
"""

from __future__ import annotations

import argparse
import json
from typing import Any
from urllib.parse import quote

from daemon.cli.client import HeadAway, HeadRefused, ask, complain, name, socket_path

EXAMPLES = {
    "approve": "  tocsin approve 9f2c          drain the node of case 9f2c",
    "deny": "  tocsin deny 9f2c             leave the node of case 9f2c in service",
    "resume": "  tocsin resume gpu-0017       lift tocsin's own drain; others' drains are refused",
    "prove": "  tocsin prove gpu-0017        test it; policy.proof says by what, and what follows",
    "lock": "  tocsin lock gpu-0017         no drain by tocsin until: tocsin unlock gpu-0017",
    "unlock": "  tocsin unlock gpu-0017       let tocsin judge it again",
    "verdict": "  tocsin verdict 9f2c true     the drain of case 9f2c was right",
    "breaker": "  tocsin breaker               is it open?\n"
    "  tocsin breaker close         let drains through again",
}


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of the operator's verbs."""
    parser.epilog = "example:\n" + EXAMPLES[verb]
    if verb in ("approve", "deny"):
        parser.add_argument(
            "subject", type=name, metavar="ID", help="the case, as the reason shows it"
        )
    elif verb == "verdict":
        parser.add_argument(
            "subject", type=name, metavar="ID", help="the case, as the reason shows it"
        )
        parser.add_argument("right", choices=["true", "false"], help="was it right?")
    elif verb == "breaker":
        parser.add_argument("word", nargs="?", choices=["show", "close"], default="show")
    else:
        parser.add_argument(
            "subject", type=name, metavar="NODE", help="the node, as Slurm names it"
        )
    parser.add_argument(
        "--socket", help="the head's socket (default: TOCSIN_SOCKET, else the packaged one)"
    )
    parser.add_argument("--json", action="store_true", help="the answer as JSON")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Says the word to the head and prints its answer."""
    try:
        answer = _say(arguments, verb)
    except (HeadAway, HeadRefused) as error:
        return complain(error)
    print(json.dumps(answer) if arguments.json else answer.get("text", answer))
    return 0


def _say(arguments: argparse.Namespace, verb: str) -> Any:
    path = socket_path(arguments.socket)
    if verb == "breaker":
        if arguments.word == "close":
            return ask(path, "/api/v1/breaker/close", method="POST", body={})
        fleet = ask(path, "/api/v1/status")
        state = "open: no drains" if fleet["breaker_open"] else "closed"
        return {
            "open": fleet["breaker_open"],
            "text": f"breaker {state} {fleet['breaker_text']}".strip(),
        }
    body: dict[str, Any] = {}
    if verb == "verdict":
        body = {"right": arguments.right == "true"}
    return ask(
        path, f"/api/v1/{verb}/{quote(arguments.subject, safe='')}", method="POST", body=body
    )
