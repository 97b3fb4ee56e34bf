"""Sends alerts to one URL: as JSON that says all, or as a chat service reads it.

The URL is a secret (it often carries a token): it comes from a file and never appears in a log
or an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp

from daemon.alerts.outbox import Message, Outbox, Outcome, Post, SendOptions, WayError

_URL_LIMIT_BYTES = 4096
# Chat services cut or refuse longer texts.
_CHAT_CHARACTERS = 3000

Form = Literal["json", "slack"]


class WebhookError(WayError):
    """The webhook cannot be used as configured. Never holds the URL."""


def read_url(file: Path) -> str:
    """The URL in ``file``: one line, http or https. Raises WebhookError without quoting it."""
    try:
        with file.open("rb") as handle:
            raw = handle.read(_URL_LIMIT_BYTES + 1)
        url = raw.decode("ascii").strip()
    except OSError as error:
        raise WebhookError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise WebhookError(f"{file} holds no URL") from None
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        whole = False
    if not whole or len(raw) > _URL_LIMIT_BYTES or any(c.isspace() for c in url):
        raise WebhookError(f"{file} must hold one http:// or https:// URL and nothing else")
    return url


def chat(message: Message) -> dict[str, Any]:
    """``message`` as Slack's incoming webhooks want it; Mattermost, Rocket.Chat, Google Chat and
    Teams read the same. The three characters that are markup there are escaped.
    """
    text = str(message.get("text", ""))
    if len(text) > _CHAT_CHARACTERS:
        text = text[: _CHAT_CHARACTERS - 4] + " ..."
    for raw, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(raw, escaped)
    return {"text": text}


class Webhook(Outbox):
    """Posts each message to one URL."""

    name = "webhook"

    def __init__(
        self,
        url: str,
        options: SendOptions | None = None,
        *,
        monotonic: Callable[[], float],
        form: Form = "json",
        **handed_in: Any,
    ) -> None:
        super().__init__(options, monotonic=monotonic, **handed_in)
        self._url = url
        self._form = form

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Post]:
        timeout = aiohttp.ClientTimeout(total=self.options.deadline_seconds)
        async with aiohttp.ClientSession(timeout=timeout) as session:

            async def post(message: Message) -> Outcome:
                return await self._post(session, message)

            yield post

    async def _post(self, session: aiohttp.ClientSession, message: Message) -> Outcome:
        body = chat(message) if self._form == "slack" else message
        try:
            # Redirects are not followed: an alert goes where the operator sent it.
            async with session.post(self._url, json=body, allow_redirects=False) as answer:
                if answer.status < 300:
                    return "", False, 0.0
                again = answer.status in (408, 425, 429) or answer.status >= 500
                return f"HTTP {answer.status}", again, _seconds(answer.headers.get("Retry-After"))
        except TimeoutError:
            return "no answer in time", True, 0.0
        except (aiohttp.ClientError, OSError) as error:
            # The error's own text may quote the URL.
            return type(error).__name__, True, 0.0


def _seconds(header: str | None) -> float:
    """Retry-After in seconds; a date or nonsense counts as nothing."""
    return float(header) if header and header.isascii() and header.isdigit() else 0.0
