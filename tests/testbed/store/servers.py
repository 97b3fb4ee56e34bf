"""Starts the stores of this folder for tests: InfluxDB 1.6.7 and VictoriaMetrics."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ports import free_port as free_port

HERE = Path(__file__).parent


class MissingServerError(Exception):
    """The server is neither installed nor can its package be fetched here."""


@dataclass
class Server:
    """One server with its data below ``directory``, started and stopped by its script."""

    directory: Path
    port: int = field(default_factory=free_port)
    script: str = ""
    program: str = ""

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """The settings of the script."""
        return {}

    def run(self, verb: str) -> None:
        """Runs the script; raises MissingServerError when the server cannot be had."""
        unpacked = list(self.directory.glob("pkg/usr/bin/*"))
        if verb == "start" and not shutil.which(self.program) and not unpacked:
            cached = os.environ.get("TOCSIN_STORE_PACKAGES", "")
            if cached and Path(cached, "pkg").is_dir():
                self.directory.mkdir(parents=True, exist_ok=True)
                (self.directory / "pkg").symlink_to(Path(cached, "pkg"))
        done = subprocess.run(
            ["bash", str(HERE / self.script), verb],
            env={**os.environ, "STORE_DIR": str(self.directory), **self.environment()},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        if verb == "start" and done.returncode != 0:
            raise MissingServerError(
                f"{self.program} is not installed here: {done.stderr.strip()[-200:]}"
            )

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        self.run("start")

    def stop(self) -> None:
        """Stops the server by the pid in its own file."""
        self.run("stop")

    def kill(self) -> None:
        """A crash: SIGKILL, and back only when the process is gone (or a zombie)."""
        (found,) = self.directory.glob("*.pid")
        pid = int(found.read_text())
        os.kill(pid, signal.SIGKILL)
        status = Path(f"/proc/{pid}/stat")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if status.read_text().rpartition(")")[2].split()[0] == "Z":
                    break
            except (FileNotFoundError, ProcessLookupError):
                break
            time.sleep(0.01)
        found.unlink()

    def ask(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """(status, body) of one request; POST when there is a body."""
        request = urllib.request.Request(self.url + path, data=body)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


@dataclass
class Influx1(Server):
    """InfluxDB 1.6.7."""

    script: str = "influxdb1.sh"
    program: str = "influxd"
    rpc_port: int = field(default_factory=free_port)

    def environment(self) -> dict[str, str]:
        return {"INFLUX_PORT": str(self.port), "INFLUX_RPC_PORT": str(self.rpc_port)}

    def create(self, database: str) -> None:
        """Makes a database."""
        self.statement(f'CREATE DATABASE "{database}"')

    def drop(self, database: str) -> None:
        """Deletes a database."""
        self.statement(f'DROP DATABASE "{database}"')

    def statement(self, text: str) -> None:
        """Runs one InfluxQL statement that changes something."""
        status, answer = self.ask("/query?" + urllib.parse.urlencode({"q": text}), b"")
        assert status == 200, answer

    def write(self, database: str, body: bytes) -> int:
        """The status of one v1 write."""
        return self.ask(f"/write?db={database}", body)[0]

    def query(self, database: str, text: str) -> Any:
        """The JSON answer of one InfluxQL query, times in nanoseconds."""
        asked = urllib.parse.urlencode({"db": database, "q": text, "epoch": "ns"})
        status, answer = self.ask("/query?" + asked)
        assert status == 200, answer
        return json.loads(answer)


@dataclass
class VictoriaMetrics(Server):
    """VictoriaMetrics 1.79, single node."""

    script: str = "victoriametrics.sh"
    program: str = "victoria-metrics"

    def environment(self) -> dict[str, str]:
        return {"VM_PORT": str(self.port)}
