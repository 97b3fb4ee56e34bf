"""``tocsin demo`` as a person starts it: a process that shows a drain and ends cleanly."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
DEADLINE_SECONDS = 90.0


class Demo:
    """The demo in a process of its own, with a temporary folder of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.output = folder / "output"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "daemon.cli", "demo", "--port", "0", *arguments],
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def said(self) -> str:
        return self.output.read_text()

    def until(self, pattern: str) -> re.Match[str]:
        """Waits until the output matches."""
        end = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < end:
            if found := re.search(pattern, self.said()):
                return found
            assert self.process.poll() is None, self.said()
            time.sleep(0.05)
        raise AssertionError(f"never said {pattern}:\n{self.said()}")

    def ask(self, path: str) -> Any:
        url = self.until(r"http://127\.0\.0\.1:\d+/")[0]
        with urllib.request.urlopen(url + path, timeout=20) as answer:
            return json.load(answer)

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def folder() -> Iterator[Path]:
    # A short path: a unix socket's name has room for a hundred characters.
    with tempfile.TemporaryDirectory(prefix="td-") as made:
        yield Path(made)


@pytest.fixture
def demo(folder: Path) -> Iterator[Demo]:
    made = Demo(folder, "--nodes", "16", "--speed", "120")
    yield made
    made.end()


def test_a_person_sees_an_alert_and_a_drain_with_its_reason_and_ctrl_c_ends_it(demo: Demo) -> None:
    drain = demo.until(r"drain +(gpu-\d+) (gpu\d) +tocsin:x79 gpu\d ([0-9a-f]{4}); fell off")
    node, case = drain[1], drain[3]
    demo.until(rf"ALERT  {node} taken out of service: gpu\d fell off the bus \(x79\)")
    end = time.monotonic() + DEADLINE_SECONDS
    while not (shown := demo.ask(f"api/v1/nodes/{node}"))["node"]["reason"]:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert shown["node"]["owner"] == "tocsin"
    assert shown["node"]["reason"].startswith("tocsin:x79 gpu")
    told = demo.ask(f"api/v1/explain/{case}")
    assert told["node"] == node
    assert any("79" in line for line in told["evidence"])
    foreign = [row for row in demo.ask("api/v1/nodes")["nodes"] if row["owner"] == "other"]
    assert sorted(row["reason"] for row in foreign) == ["BIOS update", "swap PSU 2, ticket 4711"]
    field = "api/v1/series?field=temperature_celsius&minutes=60&node=" + node
    (series,) = demo.ask(field)["series"]
    assert len(series["lines"]) == 8
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(30) == 0
    assert demo.said().rstrip().endswith("demo ends; nothing is left behind")
    assert "Traceback" not in demo.said()
    assert [path.name for path in demo.folder.iterdir()] == ["output"]


def test_calm_is_not_told_as_trouble(demo: Demo) -> None:
    demo.until(r" drain ")
    before = demo.said().split(" drain ")[0]
    assert "common_cause" not in before
    assert "silent" not in before
    assert "hold" not in before.partition("as they happen")[2]


def test_it_ends_by_itself_after_its_seconds(folder: Path) -> None:
    made = Demo(folder, "--nodes", "2", "--seconds", "2")
    try:
        assert made.process.wait(DEADLINE_SECONDS) == 0
        assert "demo ends" in made.said()
    finally:
        made.end()


def test_a_port_that_is_taken_is_told_in_words(demo: Demo, folder: Path) -> None:
    port = demo.until(r"http://127\.0\.0\.1:(\d+)/")[1]
    second = subprocess.run(
        [sys.executable, "-m", "daemon.cli", "demo", "--nodes", "2", "--port", port],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert second.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in second.stderr
    assert "--port 0" in second.stderr
    assert "Traceback" not in second.stderr
