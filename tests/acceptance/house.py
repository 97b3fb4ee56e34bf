"""A whole tocsin for tests: one head and an agent per node, real processes over a real Slurm.

Each agent has a kernel log file and a fake-NVML state of its own, so that a test makes one
node sick by appending a line or by rewriting that state.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from daemon.cli.client import HeadAway, ask
from daemon.cli.token import add
from tests.acceptance.born import Born
from tests.collectors.fake_gpus import SOURCE
from tests.ports import free_port as free_port
from tests.testbed.slurm.cluster import Cluster, wait_for

TOKEN = "acceptance-token-of-a-node-"
XID79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."


class House:
    """Head and agents of one cluster. ``close`` ends every process and removes the folder."""

    def __init__(
        self, cluster: Cluster, libraries: Path, mode: str = "act", **sections: str
    ) -> None:
        self.cluster = cluster
        self.libraries = libraries
        self.folder = Path(tempfile.mkdtemp(prefix="tocsin-house-", dir="/tmp"))
        self.port = free_port()
        self.page = free_port()
        self.socket = self.folder / "tocsin.sock"
        self.tokens = self.folder / "tokens"
        self.processes: dict[str, Born] = {}
        for node in cluster.nodes:
            add(self.tokens, node, TOKEN + node)
            self._furnish(node)
        self.config = self.folder / "tocsin.toml"
        self.config.write_text(self._head_config(mode, sections))

    # ---- what stands where ------------------------------------------------------------

    def log_of(self, node: str) -> Path:
        """The kernel log that the node's agent reads."""
        return self.folder / node / "kern.log"

    def gpus_of(self, node: str) -> Path:
        """The node's fake-NVML state file."""
        return self.folder / node / "nvml.ini"

    def _furnish(self, node: str) -> None:
        room = self.folder / node
        room.mkdir()
        self.log_of(node).touch()
        shutil.copy(SOURCE / "h100x8.ini", self.gpus_of(node))
        token = room / "token"
        token.write_text(TOKEN + node)
        token.chmod(0o600)
        (room / "agent.toml").write_text(
            f"""
[agent]
node = "{node}"
state_dir = "{room}/state"
[agent.uplink]
head_url = "http://127.0.0.1:{self.port}"
token_file = "{token}"
batch_seconds = 1
backoff_limit_seconds = 2
urgent_backoff_limit_seconds = 1
[agent.spool]
directory = "{room}/spool"
[agent.sources.kernel_log]
backend = "file"
path = "{self.log_of(node)}"
[agent.sources.nvml]
period_seconds = 2
deadline_seconds = 5
library_folder = "{self.libraries}/lib"
[agent.sources.host]
period_seconds = 2
"""
        )

    def _head_config(self, mode: str, sections: dict[str, str]) -> str:
        return f"""
mode = "{mode}"
[head]
listen = "127.0.0.1:{self.port}"
state_dir = "{self.folder}/head"
socket = "{self.socket}"
operators_group = ""
tokens_file = "{self.tokens}"
judge_seconds = 1
checkpoint_seconds = 5
[page]
listen = "127.0.0.1:{self.page}"
[slurm]
cluster = "testbed"
conf = "{self.cluster.conf}"
period_seconds = 1
deadline_seconds = 6
{sections.get("slurm", "")}
[policy]
{sections.get("policy", "")}
[silence]
low_seconds = 6
expected_seconds = 2
{sections.get("silence", "")}
[alerts]
settle_seconds = 1
silence_settle_seconds = 1
{sections.get("alerts", "")}
"""

    # ---- processes --------------------------------------------------------------------

    def start_head(self, wait: bool = True) -> None:
        """Starts the head; with ``wait``, returns once its socket answers."""
        self._start("head", ["run", "--config", str(self.config)], {})
        if wait:
            wait_for(self.answers, "the head answers")

    def start_agent(self, node: str) -> None:
        """Starts the agent of ``node``."""
        config = self.folder / node / "agent.toml"
        more = {"FAKE_NVML_STATE": str(self.gpus_of(node))}
        self._start(node, ["agent", "--config", str(config)], more)

    def start(self) -> None:
        """Head, then all agents; returns once every node was heard."""
        self.start_head()
        for node in self.cluster.nodes:
            self.start_agent(node)
        wait_for(self.all_heard, "every agent is heard", 90)

    def all_heard(self) -> bool:
        """Whether the head has heard each node's GPUs."""
        return all(
            set(row["gpu_marks"]) <= set(".rfx") and row["gpu_marks"] for row in self.nodes()
        )

    def _start(self, name: str, arguments: list[str], more: dict[str, str]) -> None:
        env = {**self.cluster.env, **more}
        self.processes[name] = Born(arguments, env, self.folder / f"{name}.log")

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to the head or an agent and, if it ends it, waits for that."""
        process = self.processes[name]
        process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            process.wait(60)

    def alive(self, name: str) -> bool:
        """Whether the process runs."""
        return self.processes[name].poll() is None

    def words(self, name: str) -> list[dict[str, Any]]:
        """What the process logged, line by line."""
        found = []
        for line in (self.folder / f"{name}.log").read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def close(self) -> None:
        """Ends everything; keeps the folder when TOCSIN_KEEP is set."""
        for process in self.processes.values():
            process.send_group(signal.SIGCONT)
            process.send_group(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(8)
            except subprocess.TimeoutExpired:
                process.send_group(signal.SIGKILL)
                process.wait(60)
        if not os.environ.get("TOCSIN_KEEP"):
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---- questions --------------------------------------------------------------------

    def answers(self) -> bool:
        """Whether the head answers on its socket; fails with its log when it has ended."""
        if not self.alive("head"):
            raise AssertionError((self.folder / "head.log").read_text()[-4000:])
        try:
            self.ask("/api/v1/status")
        except HeadAway:
            return False
        return True

    def ask(self, target: str, body: dict[str, Any] | None = None) -> Any:
        """One question to the head, or with a body one word."""
        return ask(str(self.socket), target, method="GET" if body is None else "POST", body=body)

    def status(self) -> dict[str, Any]:
        """The fleet."""
        return dict(self.ask("/api/v1/status"))

    def nodes(self) -> list[dict[str, Any]]:
        """All nodes."""
        return list(self.ask("/api/v1/nodes")["nodes"])

    def node(self, name: str) -> dict[str, Any]:
        """One row of the nodes."""
        return next(row for row in self.nodes() if row["name"] == name)

    def decisions(self, node: str = "") -> list[dict[str, Any]]:
        """The decisions recorded so far, newest first."""
        return list(self.ask(f"/api/v1/decisions?limit=500&node={node}")["decisions"])

    def guard(self, node: str) -> str:
        """The newest guard that held a decision about the node back; "" for none."""
        return next((one["guard"] for one in self.decisions(node) if one["guard"]), "")

    def drained(self, node: str) -> bool:
        """Whether Slurm shows the node as drained or draining."""
        return "DRAIN" in self.cluster.words(node)

    def looks(self, readings: int = 3) -> None:
        """Waits until the head has read Slurm so many times more, a second apart as it judges.

        After three, at least one whole reading and one judgement began after the call: what
        has not happened by then does not happen for what was there before.
        """
        last_seconds, seen = self._read_at(), 0

        def enough() -> bool:
            nonlocal last_seconds, seen
            now_seconds = self._read_at()
            if now_seconds > last_seconds + 0.5:
                last_seconds, seen = now_seconds, seen + 1
            return seen >= readings

        wait_for(enough, f"the head reads Slurm {readings} times more")

    def _read_at(self) -> float:
        status = self.status()
        age_seconds = status["slurm"]["age_seconds"]
        now_seconds = datetime.fromisoformat(status["time"]).timestamp()
        return 0.0 if age_seconds is None else float(now_seconds - age_seconds)

    def tocsin(self, *arguments: str, login: str | None = None) -> subprocess.CompletedProcess[str]:
        """The command as an operator types it; ``login``: who logged in and became root since,
        "" for nobody that the kernel knows of.
        """
        env = {**self.cluster.env, "TOCSIN_SOCKET": str(self.socket)}
        command = [sys.executable, "-m", "daemon.cli", *arguments]
        if login is not None:
            uid = pwd.getpwnam(login).pw_uid if login else 2**32 - 1
            try:
                Path("/proc/self/loginuid").open("a").close()
            except OSError:
                pytest.skip("this kernel or container lets nobody set a login (audit)")
            become = 'echo "$1" >/proc/self/loginuid && shift && exec "$@"'
            command = ["sh", "-c", become, "sh", str(uid), *command]
        return subprocess.run(
            command,
            env=env,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    # ---- faults -----------------------------------------------------------------------

    def kernel_says(self, node: str, line: str) -> float:
        """Appends a line to the node's kernel log; the moment it was there (monotonic)."""
        with self.log_of(node).open("a") as log:
            log.write(line + "\n")
        return time.monotonic()

    def set_gpus(self, node: str, change: Callable[[str], str]) -> None:
        """Rewrites the node's GPU state in one step."""
        state = self.gpus_of(node)
        fresh = state.with_suffix(".new")
        fresh.write_text(change(state.read_text()))
        fresh.replace(state)


def post_lines(port: int, token: str, body: bytes) -> tuple[int, bytes]:
    """One write to the gateway by hand: status and answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": f"Token {token}"}
    connection.request("POST", "/api/v2/write?org=o&bucket=b&precision=ns", body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()
