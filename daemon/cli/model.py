"""``tocsin model``: which learned model scores, what it would have done, and which should."""

from __future__ import annotations

import argparse
import json
from typing import Any
from urllib.parse import quote

from daemon.cli.client import HeadAway, HeadRefused, ask, complain, name, socket_path

EXAMPLES = """examples:
  tocsin model                         which model scores, and how it fares
  tocsin model list                    the models of this site, and how they were judged
  tocsin model promote learned-20261130
  tocsin model rollback                what scored before scores again
  tocsin model scoreboard --json       what it would have drained, day by day
  tocsin model retrain                 train now, and not only at night

Promoting lets a model score; it drains nothing that policy does not let it (policy.risk_mode), and
nothing at all while its gate is off. Every word is recorded with your name."""

WORDS = ("show", "list", "promote", "rollback", "scoreboard", "retrain")


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin model``."""
    del verb
    parser.epilog = EXAMPLES
    parser.add_argument("word", nargs="?", choices=WORDS, default="show")
    parser.add_argument("name", nargs="?", type=name, metavar="MODEL", help="with promote")
    parser.add_argument(
        "--socket", help="the head's socket (default: TOCSIN_SOCKET, else the packaged one)"
    )
    parser.add_argument("--json", action="store_true", help="the answer as JSON")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Asks the head and prints."""
    del verb
    word = arguments.word
    if (word == "promote") != (arguments.name is not None):
        needed = "needs a model's name" if word == "promote" else "takes no name"
        print(f"tocsin: model {word} {needed} (tocsin model list shows them)")
        return 2
    path = socket_path(arguments.socket)
    try:
        if word in ("promote", "rollback", "retrain"):
            target = f"/api/v1/model/{word}"
            if arguments.name:
                target += f"/{quote(arguments.name, safe='')}"
            found = ask(path, target, method="POST", body={})
        else:
            found = ask(path, "/api/v1/model")
    except (HeadAway, HeadRefused) as error:
        return complain(error)
    if arguments.json:
        print(json.dumps(_part(found, word)))
    else:
        print("\n".join(lines(found, word)))
    return 0


def _part(found: Any, word: str) -> Any:
    return (
        found[{"list": "models", "scoreboard": "scoreboard"}[word]]
        if word
        in (
            "list",
            "scoreboard",
        )
        else found
    )


def lines(found: dict[str, Any], word: str) -> list[str]:
    """The answer as people read it."""
    if "text" in found:
        return [found["text"]]
    if word == "list":
        return _listed(found["models"])
    if word == "scoreboard":
        return _board(found["scoreboard"])
    out = [f"model    {found['words']}"]
    if found["threshold"] is not None:
        out.append(
            f"         within its budget of false drains from a probability of "
            f"{found['threshold']:.4f} on (policy.risk_threshold decides what drains)"
        )
    out.append(f"training {found['night']}")
    out.append(f"drift    {found['drift'] or 'none seen'}")
    board = found["scoreboard"]
    out += [
        f"board    {one['day']} {one['model']}: {one['drains']} drains, done or not "
        f"({one['hits']} right, {one['wrong']} wrong, {one['open']} open, "
        f"{one['unknown']} unknown); missed {one['missed']} of {one['failures']} failures"
        for one in board
        if one["day"] == board[0]["day"]
    ]
    return out


def _listed(models: list[dict[str, Any]]) -> list[str]:
    if not models:
        return ["no model was trained here yet"]
    out = ["  MODEL                 GATE  TOLD      FALSE/1000 ND  NET GPU-H  TRAINED UNTIL"]
    for one in models:
        mark = "*" if one["promoted"] else " "
        if one["fault"]:
            out.append(f"{mark} {one['name']:<21} {one['fault']}")
            continue
        told = f"{one['early']}/{one['failures']}" if one["failures"] is not None else "-"
        out.append(
            f"{mark} {one['name']:<21} {'on' if one['gate'] else 'off':<5} {told:<9} "
            f"{_cell(one['false_per_1000_node_days'], '.2f'):<14} "
            f"{_cell(one['net_gpu_hours'], '.0f'):<10} {one['trained_until'][:16]}"
        )
        if one["why"]:
            out.append(f"    {one['why']}")
    return [*out, "* scores now"]


def _lead(one: dict[str, Any]) -> str:
    """How long before, where anything was foretold. Days of earlier versions do not say."""
    seconds = one.get("lead_median_seconds") or 0.0
    return f"{seconds / 3600:.1f} h" if seconds else "-"


def _board(days: list[dict[str, Any]]) -> list[str]:
    if not days:
        return ["no scoreboard yet: it is made once a day"]
    out = [
        "DAY         MODEL                  DRAINS  RIGHT  WRONG  OPEN  UNKNOWN    LEAD  "
        "MISSED/FAILURES"
    ]
    out += [
        f"{one['day']}  {one['model']:<21}  {one['drains']:>6}  {one['hits']:>5}  "
        f"{one['wrong']:>5}  {one['open']:>4}  {one['unknown']:>7}  "
        f"{_lead(one):>6}  {one['missed']}/{one['failures']}"
        for one in days
    ]
    return out


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
