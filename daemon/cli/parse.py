"""``tocsin parse SOURCE [FILE]``: what does tocsin read in this text?"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from collectors.parsers import PARSERS, PRINTED_BY
from collectors.sample import Problem, Sample, clip

# A tool's output is kilobytes; a log can be long. Past this, the rest is said and left.
INPUT_LIMIT_BYTES = 256 * 1024 * 1024
# So much of a text in which nothing was read is shown to the other parsers.
GUESS_BYTES = 64 * 1024

EXAMPLES = """examples:
  nvidia-smi -q -x | tocsin parse nvidia-smi-xml
  tocsin parse kernel-log /var/log/kern.log --node gpu-0017

One JSON object a line: {"measurement", "tags", "fields", "time"} for what was read,
{"problem", "line"} for what was not. Exit code 0 if anything was read, 3 if nothing was."""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin parse``."""
    del verb
    rows = "\n".join(f"  {name:<18}{PRINTED_BY[name]}" for name in sorted(PARSERS))
    parser.epilog = f"sources, and what prints them:\n{rows}\n\n{EXAMPLES}"
    parser.add_argument("source", metavar="SOURCE", help="which tool's output it is")
    parser.add_argument("file", metavar="FILE", nargs="?", help="default: standard input")
    parser.add_argument("--node", default=socket.gethostname().split(".")[0], help="node name")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Reads, parses, prints."""
    del verb
    if arguments.source not in PARSERS:
        print(f"tocsin: {_no_source(arguments.source)}", file=sys.stderr)
        return 2
    try:
        if arguments.file in (None, "-"):
            if sys.stdin.isatty():
                what = PRINTED_BY[arguments.source]
                print(f"tocsin: type or paste what this prints, then Ctrl-D: {what}",
                      file=sys.stderr)  # fmt: skip
            raw = _bounded(sys.stdin.buffer)
        else:
            with open(arguments.file, "rb") as file:
                raw = _bounded(file)
    except OSError as error:
        print(f"tocsin: {arguments.file}: {error.strerror}", file=sys.stderr)
        return 2
    now_ns = time.time_ns()
    try:
        samples, problems = PARSERS[arguments.source](
            raw[:INPUT_LIMIT_BYTES], arguments.node, now_ns
        )
    except Exception as error:  # a parser's bug is told in words like any other problem
        samples, problems = [], [Problem(f"{type(error).__name__}: {error}")]
        if os.environ.get("TOCSIN_DEBUG"):
            raise
    if len(raw) > INPUT_LIMIT_BYTES:
        problems = [*problems, Problem(f"input over {INPUT_LIMIT_BYTES} bytes: the rest is left")]
    if not samples and not problems:
        problems = [Problem(f"nothing in it that {arguments.source} would print")]
    for line in _lines(samples, problems):
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
    if samples:
        return 0
    guess = looks_like(raw[:GUESS_BYTES], arguments.source)
    if guess:
        print(f"tocsin: it looks like the text of: {', '.join(guess)}", file=sys.stderr)
    return 3


def _no_source(name: str) -> str:
    """What to say of a source that there is not."""
    if Path(name).exists():
        return f"{name} is a file: give the source before it, as in: tocsin parse nvidia-smi {name}"
    near = difflib.get_close_matches(name, PARSERS, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"no source {name!r}; {hint}tocsin parse --help lists them"


def looks_like(raw: bytes, but: str) -> list[str]:
    """The sources, other than ``but``, whose parsers read most in the beginning of a text."""
    found: dict[str, int] = {}
    for name, parse in PARSERS.items():
        if name == but:
            continue
        try:
            samples, problems = parse(raw, "n", 0)
        except Exception:  # noqa: S112 - a guess; what it is asked for is told elsewhere
            continue
        if len(samples) > len(problems):
            found[name] = len(samples) - len(problems)
    most = max(found.values(), default=0)
    return [name for name, count in found.items() if count == most][:3]


def _bounded(file: BinaryIO) -> bytes:
    return file.read(INPUT_LIMIT_BYTES + 1)


def _lines(samples: list[Sample], problems: list[Problem]) -> Iterator[str]:
    for sample in samples:
        yield json.dumps(
            {
                "measurement": sample.measurement,
                "tags": dict(sample.tags),
                "fields": dict(sample.fields),
                "time": sample.time_ns,
            }
        )
    for problem in problems:
        yield json.dumps({"problem": problem.problem, "line": clip(problem.line)})
