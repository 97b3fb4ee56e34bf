"""Who may write: tokens, each for one node or, as ``*``, for a relay that speaks for many.

The file has one token a line, ``node token``; ``#`` begins a comment. A token may stand as
``sha256:`` and the hex digest, so that the file itself betrays nothing. In memory there
are only digests, and they are compared in constant time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

ANY_NODE = "*"
NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_FILE_LIMIT_BYTES = 16 * 1024 * 1024
_SHORTEST_TOKEN = 16


class TokensError(Exception):
    """A token file that cannot be used; the text names the line and never the token."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Digests of tokens and the node that each is for."""

    nodes: dict[bytes, str] = field(default_factory=dict)

    def node_of(self, token: str) -> str | None:
        """The node that ``token`` may write for, ``*`` for any, None for an unknown token."""
        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        node = self.nodes.get(digest)
        # The look-up is by digest, so its time tells nothing about a token; the comparison
        # is constant in time all the same, for the day when somebody changes the look-up.
        for known in (digest,) if node is not None else ():
            if hmac.compare_digest(known, digest):
                return node
        return None


def parse_tokens(text: str) -> Tokens:
    """The tokens of a file's text. Raises TokensError."""
    nodes: dict[bytes, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise TokensError(f"line {number}: must be a node's name (or *) and a token")
        node, token = words
        if node != ANY_NODE and not NODE_NAME.fullmatch(node):
            raise TokensError(f"line {number}: {node[:60]!r} is no node name")
        digest = _digest(token, number)
        if nodes.get(digest, node) != node:
            raise TokensError(f"line {number}: the same token is given to two nodes")
        nodes[digest] = node
    return Tokens(nodes)


def _digest(token: str, number: int) -> bytes:
    if token.startswith("sha256:"):
        try:
            digest = bytes.fromhex(token[7:])
        except ValueError:
            digest = b""
        if len(digest) != 32:
            raise TokensError(f"line {number}: sha256: must be followed by 64 hex digits")
        return digest
    if len(token) < _SHORTEST_TOKEN:
        raise TokensError(f"line {number}: a token has at least {_SHORTEST_TOKEN} characters")
    return hashlib.sha256(token.encode()).digest()


class TokenFile:
    """The tokens of a file, read again when the file has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault = ""
        self._stamp: tuple[int, int, int] = (0, 0, 0)
        self._tokens = Tokens()
        self.refresh(first=True)

    def refresh(self, first: bool = False) -> None:
        """Reads the file if it changed. Later faults keep the last good tokens and are said."""
        try:
            found = self.path.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp == self._stamp:
                self.fault = ""  # what was read last is back
                return
            if found.st_mode & stat.S_IRWXO:
                raise TokensError("others may read it; chmod o= it")
            if found.st_size > _FILE_LIMIT_BYTES:
                raise TokensError("is over 16 MiB")
            self._tokens = parse_tokens(self.path.read_text())
            self._stamp = stamp
            self.fault = ""
        except (OSError, UnicodeDecodeError, TokensError) as error:
            what = error.strerror if isinstance(error, OSError) else str(error)
            self.fault = f"tokens file {self.path}: {what}"
            if first:
                raise TokensError(self.fault) from error

    def node_of(self, token: str) -> str | None:
        """See :meth:`Tokens.node_of`."""
        return self._tokens.node_of(token)


def token_in(authorization: str) -> str:
    """The token of an Authorization header: ``Token``, ``Bearer`` or ``Basic`` (as password)."""
    scheme, _, rest = authorization.strip().partition(" ")
    rest = rest.strip()
    if scheme.lower() in ("token", "bearer"):
        # InfluxDB 1.8 clients say "Token user:password".
        return rest.rpartition(":")[2]
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""
