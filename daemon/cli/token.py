"""``tocsin token NODE``: makes the token with which one node's agent writes to the head."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

from daemon.gate.tokens import ANY_NODE, NODE_NAME

EXAMPLE = """examples:
  (umask 077; tocsin token gpu-0017 > agent.token)      then give it to gpu-0017, mode 0640
  tocsin token '*' > relay.token           for a relay (Telegraf) that speaks for many nodes

The token is printed once. The head's file keeps only its SHA-256."""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin token``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument("node", metavar="NODE", help="Slurm's NodeName, or * for a relay")
    parser.add_argument("--tokens-file", type=Path, default=Path("/etc/tocsin/tokens"))
    parser.add_argument("--replace", action="store_true", help="drop the node's older tokens")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Adds the token's digest to the file and prints the token."""
    del verb
    node: str = arguments.node
    if node != ANY_NODE and not NODE_NAME.fullmatch(node):
        print(f"tocsin: {node!r} is no node name", file=sys.stderr)
        return 2
    token = secrets.token_urlsafe(32)
    try:
        add(arguments.tokens_file, node, token, replace=arguments.replace)
    except OSError as error:
        print(f"tocsin: {arguments.tokens_file}: {error.strerror}", file=sys.stderr)
        return 1
    print(token)
    return 0


def add(file: Path, node: str, token: str, *, replace: bool = False) -> None:
    """Writes the token's digest for ``node`` into ``file``, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file.parent):
        _add(file, node, token, replace=replace)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time, whoever else runs ``tocsin token``."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _add(file: Path, node: str, token: str, *, replace: bool) -> None:
    lines = file.read_text().splitlines() if file.exists() else []
    if replace:
        own = re.compile(rf"\s*{re.escape(node)}\s")
        lines = [line for line in lines if not own.match(line + " ")]
    lines.append(f"{node} sha256:{hashlib.sha256(token.encode()).hexdigest()}")
    fresh = file.with_name(f"{file.name}.new")
    fresh.unlink(missing_ok=True)  # left by a kill; the lock is ours
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    with os.fdopen(descriptor, "w") as out:
        out.write("\n".join(lines) + "\n")
        out.flush()
        os.fsync(out.fileno())
    known = file.stat() if file.exists() else None
    # A new file belongs to the group of its folder: the service must be able to read it.
    owner, group = (known.st_uid, known.st_gid) if known else (-1, file.parent.stat().st_gid)
    if os.geteuid() == 0:
        os.chown(fresh, owner, group)
    fresh.chmod(known.st_mode & 0o777 if known else 0o640)
    fresh.replace(file)
