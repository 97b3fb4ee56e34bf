"""``tocsin check`` over a real Slurm: which way is taken, why, and what is wrong by its name."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.slurm.cluster import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def check(slurm: Cluster, folder: Path, section: str, **env: str) -> tuple[int, list[Any], str]:
    """Exit code, findings and what was printed."""
    tokens = folder / "tokens"
    tokens.touch(mode=0o600)
    config = folder / "tocsin.toml"
    config.write_text(
        f'[head]\nstate_dir = "{folder}/state"\ntokens_file = "{tokens}"\n'
        f"[slurm]\ndeadline_seconds = 2\n{section}"
    )
    done = subprocess.run(
        [sys.executable, "-m", "daemon.cli", "check", "--json", "--config", str(config)],
        env={**slurm.env, **env}, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    told = json.loads(done.stdout)
    return done.returncode, told.get("findings", []), done.stdout + done.stderr


def words(findings: list[Any], name: str) -> list[str]:
    return [one["text"] for one in findings if one["name"] == name]


def test_what_is_chosen_and_why(slurm: Cluster, tmp_path: Path) -> None:
    code, found, printed = check(slurm, tmp_path, f'conf = "{slurm.conf}"')
    assert code == 0, printed
    assert words(found, "slurm") == ["4 nodes read"]
    told = words(found, "adapter cli")
    assert told[0].startswith("chosen: Slurm's own commands: they are here")
    assert any(re.search(r"slurm(-wlm)? \d+\.\d+", one) for one in told)
    assert any("slurmctld's log is read at each write" in one for one in told)


def test_a_hung_and_a_stopped_controller_have_names(slurm: Cluster, tmp_path: Path) -> None:
    slurm.freeze_controller()
    try:
        code, found, printed = check(slurm, tmp_path, "")
    finally:
        slurm.thaw_controller()
    assert code == 1
    assert any(one.startswith("hung: slurmctld does not answer") for one in _no(found)), printed
    slurm.stop_controller()
    try:
        code, found, printed = check(slurm, tmp_path, "")
    finally:
        slurm.start_controller()
    assert code == 1
    assert any(one.startswith(("stopped: ", "hung: ")) for one in _no(found)), printed


def _no(findings: list[Any]) -> list[str]:
    return [one["text"] for one in findings if not one["ok"]]


def test_a_slurm_conf_that_is_not_there(slurm: Cluster, tmp_path: Path) -> None:
    code, found, printed = check(slurm, tmp_path, "", SLURM_CONF="/nowhere/slurm.conf")
    assert code == 1
    assert any(
        one == "unconfigured: there is no /nowhere/slurm.conf: where is the cluster's slurm.conf?"
        for one in _no(found)
    ), printed
    code, found, printed = check(slurm, tmp_path, 'conf = "/nowhere/slurm.conf"')
    assert code == 2
    assert "/nowhere/slurm.conf does not exist" in printed


def _exactly(end: socket.socket, size: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < size:
        piece = end.recv(min(65536, size - len(pieces)))
        if not piece:
            raise EOFError
        pieces += piece
    return bytes(pieces)


@pytest.fixture
def strange_controller() -> Iterator[Callable[[], int]]:
    """Something at slurmctld's port that speaks another protocol.

    It takes the whole request before it answers and hangs up: what is unread at the end would
    break the client's connection, before or after it has read the answer, as chance will have it.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            with end, contextlib.suppress(OSError, EOFError):
                end.settimeout(30)
                _exactly(end, int.from_bytes(_exactly(end, 4)))
                end.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield lambda: int(listener.getsockname()[1])
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(3)


def test_a_controller_that_speaks_otherwise_is_a_skew(
    slurm: Cluster, tmp_path: Path, strange_controller: Callable[[], int]
) -> None:
    conf = tmp_path / "slurm.conf"
    port = f"SlurmctldPort={strange_controller()}"
    conf.write_text(re.sub(r"(?m)^SlurmctldPort=.*$", port, slurm.conf.read_text()))
    code, found, printed = check(slurm, tmp_path, f'conf = "{conf}"')
    assert code == 1
    assert any(
        one.startswith("version: client and slurmctld do not speak the same protocol")
        for one in _no(found)
    ), printed


def test_rest_without_an_address_and_at_a_dead_one(slurm: Cluster, tmp_path: Path) -> None:
    code, _, printed = check(slurm, tmp_path, 'adapter = "rest"')
    assert code == 2
    assert "slurm.rest_url" in printed
    code, found, printed = check(
        slurm, tmp_path, 'adapter = "rest"\nrest_url = "http://127.0.0.1:9"\njobs = false'
    )
    assert code == 1
    assert words(found, "adapter rest")[0] == "chosen: slurmrestd: slurm.adapter says so"
    assert len(_no(found)) == 2, printed
