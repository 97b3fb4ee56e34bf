"""Tells systemd that a service is ready, alive or ending (sd_notify(3)).

Nothing happens when the service was not started by systemd: NOTIFY_SOCKET is then unset.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends READY, WATCHDOG, STATUS and STOPPING to the socket that systemd handed over."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._watchdog_usec = _whole(environment.get("WATCHDOG_USEC", ""))
        pid = environment.get("WATCHDOG_PID", "")
        if pid and pid != str(os.getpid()):
            self._watchdog_usec = 0

    @property
    def watchdog_seconds(self) -> float:
        """How often WATCHDOG=1 must come at the latest; 0 when systemd does not ask for it."""
        return self._watchdog_usec / 1e6

    def ready(self, status: str = "") -> None:
        """The service answers now."""
        self._send("READY=1" + (f"\nSTATUS={status}" if status else ""))

    def status(self, text: str) -> None:
        """One line for ``systemctl status``."""
        self._send(f"STATUS={text}")

    def alive(self) -> None:
        """The watchdog's sign of life."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The service is ending as it should."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as wire:
                wire.connect(address)
                wire.sendall(message.encode())
        except OSError:
            # A notice that cannot be given must never end the service it speaks for.
            return


def _whole(text: str) -> int:
    return int(text) if text.isdigit() else 0
