"""Asks the running head over its unix socket: plain HTTP, JSON both ways."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEFAULT_SOCKET = "/run/tocsin/tocsin.sock"
TIMEOUT_SECONDS = 30.0
ANSWER_LIMIT_BYTES = 64 * 1024 * 1024


class HeadAway(Exception):
    """No head answers. The text says which socket was tried and what to do."""


class HeadRefused(Exception):
    """The head answered with an error; the text is its own."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_SECONDS)
        self.sock.connect(self._path)


def socket_path(given: str | None) -> str:
    """The socket to ask: ``--socket``, else TOCSIN_SOCKET, else the packaged one."""
    return given or os.environ.get("TOCSIN_SOCKET", "") or DEFAULT_SOCKET


def ask(
    path: str, target: str, *, method: str = "GET", body: Mapping[str, Any] | None = None
) -> Any:
    """The head's JSON answer to ``target``; raises HeadAway or HeadRefused."""
    connection = _UnixConnection(path)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    payload = json.dumps(body) if body is not None else None
    try:
        connection.request(method, target, payload, headers)
        response = connection.getresponse()
        raw = response.read(ANSWER_LIMIT_BYTES)
    except FileNotFoundError as error:
        raise HeadAway(
            f"no head listens at {path}: is tocsin.service running? "
            "(systemctl status tocsin; another socket: --socket PATH)"
        ) from error
    except PermissionError as error:
        raise HeadAway(
            f"{path} may not be opened by user {Path(f'/proc/{os.getpid()}').owner()}: "
            "operators belong to the group that owns the socket"
        ) from error
    except TimeoutError as error:
        raise HeadAway(f"the head at {path} did not answer in {TIMEOUT_SECONDS:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise HeadAway(f"the head at {path} does not answer: {error}") from error
    finally:
        connection.close()
    try:
        answer = json.loads(raw)
    except ValueError as error:
        if response.status >= 400:
            raise HeadRefused(f"the head refused the question (HTTP {response.status})") from error
        raise HeadAway(f"{path} answered something that is no JSON: is it tocsin's?") from error
    if response.status >= 400:
        text = answer.get("error") or answer.get("message") if isinstance(answer, dict) else None
        raise HeadRefused(str(text or f"HTTP {response.status}"))
    return answer


def name(text: str) -> str:
    """An argument that must be a node's name or a case's id; ValueError says what is wrong."""
    if not text or len(text) > 255:
        raise ValueError("a name has 1 to 255 characters")
    return text


def complain(error: Exception) -> int:
    """Prints why, and gives the exit code: 3 when no head answers, 1 when it refused."""
    print(f"tocsin: {error}", file=sys.stderr)
    return 3 if isinstance(error, HeadAway) else 1
