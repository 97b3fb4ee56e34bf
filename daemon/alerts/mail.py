"""Sends alerts as e-mail: plain text over SMTP, one letter for each notice.

All letters of one alert answer the first one, so that mail programs show them together. The
password comes from a file, and goes over TLS only (or to this machine).
"""

from __future__ import annotations

import asyncio
import re
import smtplib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from email.message import EmailMessage
from email.utils import formatdate
from hashlib import blake2s
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from daemon.alerts.outbox import Message, Outbox, Outcome, Post, SendOptions, WayError
from daemon.settings import Section

_SUBJECT_CHARACTERS = 150
_PASSWORD_LIMIT_BYTES = 4096
# Codes with which a server says that the letter itself will never do.
_NEVER = range(500, 600)
# Wrong passwords and missing rights are mended by people: worth asking again.
_MENDED = frozenset({530, 534, 535, 538})

_ADDRESS = re.compile(r"[!-;=?A-~]{1,64}@[A-Za-z0-9.-]{1,189}")


class MailError(WayError):
    """Mail cannot be sent as configured. Never holds the password."""


class MailOptions(Section):
    """Section ``[alerts.mail]``: alerts as e-mail, switched on by ``to``."""

    to: tuple[str, ...] = ()
    sender: str = ""  # default: tocsin@ and the head's host name
    server: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    port: int = Field(default=25, ge=1, le=65535)
    # starttls (mostly port 587) and tls (465) check the server's certificate.
    tls: Literal["none", "starttls", "tls"] = "none"
    ca_file: Path | None = None
    user: str = ""
    password_file: Path | None = None
    least_severity: int = Field(default=2, ge=0, le=3)  # 0 info, 1 warning, 2 error, 3 critical
    deadline_seconds: float = Field(default=10.0, gt=0, le=120)

    @field_validator("to", "sender")
    @classmethod
    def _addresses(cls, value: tuple[str, ...] | str) -> tuple[str, ...] | str:
        for one in value if isinstance(value, tuple) else filter(None, [value]):
            if not _ADDRESS.fullmatch(one):
                raise ValueError("must be an address such as ops@example.org, and nothing else")
        return value


def letter(message: Message, sender: str, to: tuple[str, ...]) -> EmailMessage:
    """``message`` (a notice's body) as a letter; nothing in it can make a header."""
    said = EmailMessage()
    severity, cluster = message.get("severity", ""), message.get("cluster", "")
    event = {"changed": "changed: ", "resolved": "resolved: "}.get(str(message.get("event")), "")
    title = re.sub(r"[^ -~]+", " ", f"[{cluster} {severity}] {event}{message.get('title', '')}")
    if len(title) > _SUBJECT_CHARACTERS:
        title = title[: _SUBJECT_CHARACTERS - 4] + " ..."
    said["Subject"] = title
    said["From"] = sender
    said["To"] = ", ".join(to)
    said["Date"] = formatdate(usegmt=True)
    domain = sender.rpartition("@")[2]
    said["Message-ID"] = f"<{_word(message.get('id'))}.tocsin@{domain}>"
    thread = blake2s(f"{message.get('key')} {message.get('since')}".encode(), digest_size=8)
    said["References"] = f"<{thread.hexdigest()}.tocsin@{domain}>"
    said["Auto-Submitted"] = "auto-generated"
    nodes = [str(one) for one in message.get("nodes", ())]
    lines = [str(message.get("text", "")), "", f"since {message.get('since')}"]
    if len(nodes) > 1:
        lines.append(f"nodes: {' '.join(nodes)}")
    said.set_content("\n".join(lines))
    return said


class Mail(Outbox):
    """One SMTP session a letter: alerts are rare, and a session that idles is ended anyway."""

    name = "mail"

    def __init__(
        self, mail: MailOptions, options: SendOptions, *, monotonic: Callable[[], float],
        **handed_in: Any,
    ) -> None:  # fmt: skip
        super().__init__(options, monotonic=monotonic, **handed_in)
        self._mail = mail
        self._sender = mail.sender or f"tocsin@{socket.gethostname()}"
        self._password = _password(mail)
        self._tls = _context(mail)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Post]:
        yield self._post

    async def _post(self, message: Message) -> Outcome:
        session = _Session(self._mail, self._tls, self._password)
        said = letter(message, self._sender, self._mail.to)
        work = asyncio.create_task(asyncio.to_thread(session.send, said))
        try:
            # smtplib bounds each answer; a server that drips has the whole bounded as well.
            # (Not wait_for: in 3.11 that loses a cancellation in the moment of the answer.)
            async with asyncio.timeout(2 * self._mail.deadline_seconds):
                return await asyncio.shield(work)
        except TimeoutError:
            session.cut()
            await asyncio.wait([work], timeout=self._mail.deadline_seconds)
            return "no answer in time", True, 0.0
        except asyncio.CancelledError:  # the head ends, and waits for its threads
            session.cut()
            raise


class _Plain(smtplib.SMTP):
    """Not connected yet, so that it can be cut, and knows the name that a certificate must show."""

    def __init__(self, host: str, seconds: float) -> None:
        super().__init__(timeout=seconds)
        self._host = host


class _Tls(smtplib.SMTP_SSL):
    """The same, with TLS from the first byte."""

    def __init__(self, host: str, seconds: float, context: ssl.SSLContext | None) -> None:
        super().__init__(timeout=seconds, context=context)
        self._host = host


class _Session:
    """One letter to one server, in a thread."""

    def __init__(self, mail: MailOptions, tls: ssl.SSLContext | None, password: str) -> None:
        self._mail, self._tls, self._password = mail, tls, password
        self._server: smtplib.SMTP | None = None

    def send(self, said: EmailMessage) -> Outcome:
        """Hands the letter over; never raises."""
        try:
            return self._send(said)
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _ in error.recipients.values()]
            return f"SMTP {min(codes)}", any(code not in _NEVER for code in codes), 0.0
        except smtplib.SMTPResponseException as error:
            code = error.smtp_code
            return f"SMTP {code}", code not in _NEVER or code in _MENDED, 0.0
        except TimeoutError:
            return "no answer in time", True, 0.0
        except (smtplib.SMTPException, OSError, ValueError) as error:
            # The error's own text may quote what was sent.
            return type(error).__name__, True, 0.0

    def cut(self) -> None:
        """Ends the connection under the thread that waits for it."""
        held = self._server.sock if self._server is not None else None
        if held is not None:
            with suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)

    def _send(self, said: EmailMessage) -> Outcome:
        mail, seconds = self._mail, self._mail.deadline_seconds
        server: smtplib.SMTP = (
            _Tls(mail.server, seconds, self._tls)
            if mail.tls == "tls"
            else _Plain(mail.server, seconds)
        )
        self._server = server
        with server:
            server.connect(mail.server, mail.port)
            if mail.tls == "starttls":
                server.starttls(context=self._tls)
            if mail.user:
                server.login(mail.user, self._password)
            refused = server.send_message(said)
        # Somebody has it: whoever was refused is said, and not a reason to send it twice.
        return ("", False, 0.0) if len(refused) < len(mail.to) else ("nobody took it", False, 0.0)


def _word(text: object) -> str:
    return re.sub(r"[^0-9A-Za-z]", "", str(text))[:64] or "none"


def _password(mail: MailOptions) -> str:
    if mail.password_file is None:
        if mail.user:
            raise MailError("alerts.mail.password_file is required: alerts.mail.user is set")
        return ""
    try:
        with mail.password_file.open("rb") as handle:
            raw = handle.read(_PASSWORD_LIMIT_BYTES + 1)
        password = raw.decode().strip()
    except OSError as error:
        raise MailError(f"{mail.password_file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise MailError(f"{mail.password_file} holds no password") from None
    if not password or len(raw) > _PASSWORD_LIMIT_BYTES or "\n" in password:
        raise MailError(f"{mail.password_file} must hold one password and nothing else")
    if not mail.user:
        raise MailError("alerts.mail.user is required: alerts.mail.password_file is set")
    if mail.tls == "none" and mail.server not in ("127.0.0.1", "::1", "localhost"):
        raise MailError("alerts.mail.tls must be starttls or tls: a password would go in the clear")
    return password


def _context(mail: MailOptions) -> ssl.SSLContext | None:
    if mail.tls == "none":
        return None
    try:
        return ssl.create_default_context(cafile=mail.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise MailError(f"alerts.mail.ca_file cannot be used: {error.strerror or error}") from None
