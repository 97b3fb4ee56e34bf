"""sd_notify(3) over a real datagram socket: what systemd would hear."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.notify import Notifier


@pytest.fixture(params=["file", "abstract"])
def ear(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """What systemd listens on, and its name as NOTIFY_SOCKET says it."""
    name = str(tmp_path / "notify")
    if request.param == "abstract":
        name = f"@tocsin-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        made.settimeout(5)
        yield made, name


def test_systemd_hears_each_word(ear: tuple[socket.socket, str]) -> None:
    heard, name = ear
    notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "60000000"})
    assert notifier.watchdog_seconds == 60.0
    for speak, expected in (
        (lambda: notifier.ready("shadow mode, 3 nodes"), "READY=1\nSTATUS=shadow mode, 3 nodes"),
        (notifier.alive, "WATCHDOG=1"),
        (lambda: notifier.status("stands by"), "STATUS=stands by"),
        (notifier.stopping, "STOPPING=1"),
    ):
        speak()
        assert heard.recv(4096).decode() == expected


def test_a_watchdog_for_another_process_is_not_ours() -> None:
    for pid, seconds in ((os.getpid(), 1.0), (os.getpid() + 1, 0.0)):
        notifier = Notifier({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(pid)})
        assert notifier.watchdog_seconds == seconds


@pytest.mark.parametrize("usec", ["", "soon", "-5", "1e6"])
def test_a_strange_watchdog_period_is_none(usec: str) -> None:
    assert Notifier({"WATCHDOG_USEC": usec}).watchdog_seconds == 0.0


def test_a_socket_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).alive()
    Notifier({}).ready()
