"""One request to slurmrestd and its answer. Fails closed: any entry in ``errors`` is a failure."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from collectors.sample import clip
from collectors.slurm.faults import trouble_of_text
from daemon.slurm.adapter import SlurmError, SlurmRefused, SlurmUnavailable, SlurmUnknownOutcome

# 10,000 nodes are about 25 MB.
ANSWER_LIMIT_BYTES = 256 * 1024 * 1024
TOKEN_LIMIT_BYTES = 8192
_PIECE_BYTES = 1 << 20


class RestError(SlurmError):
    """slurmrestd answered, and its ``errors`` are not empty. Something may have been done."""


class RestClient:
    """Talks to one slurmrestd with a JWT. A connection a request; every call ends in time."""

    def __init__(
        self,
        url: str,
        user: str,
        token_file: Path | None,
        deadline_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._where = parts.netloc
        self._user = user
        self._token_file = token_file
        self._deadline_seconds = deadline_seconds
        self._monotonic = monotonic

    def get(self, path: str) -> dict[str, Any]:
        """The JSON of ``path``. Raises SlurmUnavailable, SlurmRefused or RestError."""
        return self._ask("GET", path, b"")

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The same for a write; SlurmUnknownOutcome where it was sent and no answer came."""
        return self._ask("POST", path, json.dumps(body).encode())

    def _ask(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        end = self._monotonic() + self._deadline_seconds
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._where, timeout=self._deadline_seconds)
        headers = self._headers()
        try:
            connection.connect()
        except OSError as error:
            raise SlurmUnavailable(
                f"slurmrestd at {self._where} cannot be reached: {error}", "stopped"
            ) from error
        try:
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            raw = self._body(response, connection, end)
        except (OSError, http.client.HTTPException) as error:
            words = f"slurmrestd does not answer {method} {path}: {type(error).__name__} {error}"
            if method == "GET":
                raise SlurmUnavailable(words, "hung") from error
            raise SlurmUnknownOutcome(words, "hung") from error
        finally:
            connection.close()
        return _checked(response.status, raw, path)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._user:
            headers["X-SLURM-USER-NAME"] = self._user
        if self._token_file is not None:
            try:
                with self._token_file.open("rb") as stream:
                    token = stream.read(TOKEN_LIMIT_BYTES).decode("ascii", "replace").strip()
            except OSError as error:
                raise SlurmUnavailable(
                    f"{self._token_file} cannot be read: {error.strerror}", "authentication"
                ) from error
            token = token.removeprefix("SLURM_JWT=")
            if not token or not token.isprintable() or " " in token:
                raise SlurmUnavailable(f"{self._token_file} holds no token", "authentication")
            headers["X-SLURM-USER-TOKEN"] = token
        return headers

    def _body(
        self, response: http.client.HTTPResponse, connection: http.client.HTTPConnection, end: float
    ) -> bytes:
        pieces = bytearray()
        while True:
            left = end - self._monotonic()
            if left <= 0:
                raise TimeoutError("the deadline passed")
            with contextlib.suppress(AttributeError):
                connection.sock.settimeout(left)
            piece = response.read1(_PIECE_BYTES)
            if not piece:
                return bytes(pieces)
            pieces += piece
            if len(pieces) > ANSWER_LIMIT_BYTES:
                raise http.client.HTTPException("the answer is too long")


def _checked(status: int, raw: bytes, path: str) -> dict[str, Any]:
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError):
        answer = None
    told = errors_of(answer)
    # "Protocol authentication error" is another thing: slurmctld's answer could not be read.
    if status in (401, 403) or "authentication fail" in told.lower() or "jwt" in told.lower():
        text = f"slurmrestd refuses the token ({status}): {told}"
        raise SlurmUnavailable(text, "authentication", not_sent=True)
    if "permission denied" in told.lower() or "Invalid user id" in told:
        raise SlurmRefused(f"Slurm refuses this user: {told}", "refused")
    if not isinstance(answer, dict):
        words = clip(raw[:200].decode("utf-8", "replace"), 200)
        raise RestError(f"slurmrestd gives no JSON for {path} ({status}): {words}", "garbage")
    # All that 22.05, and (with status 511) 25.11, say of a bad token or one that ran out.
    if told.startswith("Unspecified error") or "Protocol authentication error" in told:
        told += ": is the token valid?"
    if told or status >= 400:
        kind = trouble_of_text(told, "slurmrestd").kind
        raise RestError(f"slurmrestd says for {path} ({status}): {told}", kind)
    return answer


def errors_of(answer: Any) -> str:
    """What stands in an answer's ``errors``, in words; empty where nothing does.

    >>> errors_of({"errors": [{"error": "Invalid node name specified", "error_number": 2018}]})
    'Invalid node name specified'
    """
    errors = answer.get("errors") if isinstance(answer, dict) else None
    if not errors:
        return ""
    if not isinstance(errors, list):
        return clip(str(errors), 300)
    words = []
    for one in errors[:5]:
        if isinstance(one, dict):
            text = " ".join(str(one[key]) for key in ("error", "description") if one.get(key))
            words.append(text or json.dumps(one))
        else:
            words.append(str(one))
    return clip("; ".join(words), 300)
