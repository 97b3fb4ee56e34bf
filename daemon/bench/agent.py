"""``tocsin bench agent``: what the agent costs its node, with eight GPUs read each ten seconds.

The agent runs as it does on a node and sends to a sink on loopback. Its GPUs are those of the fake
NVML library where this is a checkout with make and gcc; else the machine's own, or none. Beside
it: node_exporter if it is installed, and the same readings by a program started each time, which
prints what ``nvidia-smi -q -x`` prints for eight GPUs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from collectors.gpu.smi_xml import parse
from daemon.bench.figures import Figure

CHECKOUT = Path(__file__).resolve().parents[2]
FAKE_NVML = CHECKOUT / "tests/testbed/fake-nvml"
GPU_XML = CHECKOUT / "tests/fixtures/gpu/smi/q-x_v12_535.xml"
GPUS = 8
PERIOD_SECONDS = 10.0
START_SECONDS = 60.0
SETTLE_SECONDS = 5.0

_TICKS = os.sysconf("SC_CLK_TCK")

_CONFIG = """
[agent]
node = "bench"
state_dir = "{folder}/state"
[agent.uplink]
head_url = "http://127.0.0.1:{port}"
token_file = "{folder}/token"
[agent.spool]
directory = "{folder}/spool"
[agent.sources.nvml]
period_seconds = {period}
library_folder = "{library}"
"""


def bench_agent(folder: Path, seconds: float = 60.0) -> Iterator[Figure]:
    """The agent's share of one core and its memory over ``seconds``, and the peers'."""
    folder.mkdir(parents=True, exist_ok=True)
    library = _fake_library(folder)
    environment = {**os.environ, "FAKE_NVML_STATE": str(folder / "gpus.ini")}
    with _sink() as (port, received):
        config = folder / "agent.toml"
        (folder / "token").write_text("bench-token-of-this-run\n")
        (folder / "token").chmod(0o600)
        config.write_text(
            _CONFIG.format(folder=folder, port=port, period=PERIOD_SECONDS, library=library)
        )
        argv = [sys.executable, "-m", "daemon.cli", "agent", "--config", str(config)]
        with _running(argv, environment) as process:
            start = time.monotonic()
            while not received and time.monotonic() - start < START_SECONDS:
                time.sleep(0.1)  # its start is not what it costs
            before, begin = _cpu_seconds(process.pid), time.monotonic()
            time.sleep(seconds)
            spent = _cpu_seconds(process.pid) - before
            share = spent / (time.monotonic() - begin)
            gpus = f"{GPUS} fake GPUs" if library else "this machine's GPUs"
            yield Figure(f"agent, {gpus}, all its processes", share * 100, "% of a core", "< 0.5")
            yield Figure("agent, resident memory, all", _resident(process.pid), "MiB", "< 60")
            yield Figure("agent, bodies sent", float(len(received)), "")
    yield from _node_exporter(seconds)
    yield from _spawned(folder)


def _fake_library(folder: Path) -> str:
    """Builds the fake NVML library into ``folder``; empty where it cannot be."""
    if not FAKE_NVML.is_dir() or shutil.which("make") is None or shutil.which("gcc") is None:
        return ""
    for name in ("Makefile", "fakenvml.c"):
        shutil.copy(FAKE_NVML / name, folder / name)
    shutil.copy(FAKE_NVML / "h100x8.ini", folder / "gpus.ini")
    subprocess.run(["make", "-s", "-C", str(folder)], check=True, timeout=120)
    return str(folder / "lib")


def _node_exporter(seconds: float) -> Iterator[Figure]:
    """node_exporter, asked as often as the agent reads."""
    program = shutil.which("node_exporter") or shutil.which("prometheus-node-exporter")
    if program is None:
        sys.stderr.write("node_exporter is not on PATH: not measured beside the agent\n")
        return
    with _sink() as (port, _):
        pass  # a port that was free a moment ago
    argv = [program, f"--web.listen-address=127.0.0.1:{port}"]
    with _running(argv, dict(os.environ)) as process:
        time.sleep(SETTLE_SECONDS)
        before, begin = _cpu_seconds(process.pid), time.monotonic()
        while time.monotonic() - begin < seconds:
            with contextlib.suppress(OSError):
                address = f"http://127.0.0.1:{port}/metrics"
                urllib.request.urlopen(address, timeout=5).read()
            time.sleep(PERIOD_SECONDS)
        share = (_cpu_seconds(process.pid) - before) / (time.monotonic() - begin)
        yield Figure("node_exporter, scraped alike", share * 100, "% of a core")
        yield Figure("node_exporter, resident memory", _resident(process.pid), "MiB")


def _spawned(folder: Path) -> Iterator[Figure]:
    """One reading by a program that is started for it, its text parsed by us."""
    if not GPU_XML.is_file():
        return
    head, _, rest = GPU_XML.read_text().partition("\t<gpu ")
    gpu, end, tail = rest.partition("</gpu>")
    text = head.replace("<attached_gpus>1", f"<attached_gpus>{GPUS}")
    text += "\n".join(f"\t<gpu {gpu}{end}" for _ in range(GPUS)) + tail
    file = folder / "eight.xml"
    file.write_text(text)
    turns = 20
    begin = sum(os.times()[:4])
    for _ in range(turns):
        output = subprocess.run(["/bin/cat", str(file)], capture_output=True, check=True).stdout
        samples, _ = parse(output, "bench", 1)
        assert len([one for one in samples if one.measurement == "gpu"]) == GPUS
    spent = (sum(os.times()[:4]) - begin) / turns
    yield Figure(
        "the same by a program each time, without its own work",
        spent / PERIOD_SECONDS * 100,
        "% of a core",
    )


@contextlib.contextmanager
def _running(argv: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        argv,
        cwd=CHECKOUT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _sink() -> Iterator[tuple[int, list[int]]]:
    """Takes what the agent sends, as a head does that has it safe. Yields port and sizes."""
    received: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", "0"))
            self.rfile.read(size)
            received.append(size)
            self.send_response(204)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], received
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def _family(pid: int) -> list[int]:
    """``pid`` and everything below it."""
    below: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            fields = _stat(int(folder.name))
            if len(fields) > 1:
                below.setdefault(int(fields[1]), []).append(int(folder.name))
    found = [pid]
    for one in found:
        found += below.get(one, [])
    return found


def _cpu_seconds(pid: int) -> float:
    """Processor time of ``pid``, of all below it and of those of them that have ended."""
    ticks = 0
    for one in _family(pid):
        fields = _stat(one)
        ticks += sum(int(value) for value in fields[11:15]) if len(fields) > 14 else 0
    return ticks / _TICKS


def _resident(pid: int) -> float:
    """Memory of ``pid`` and all below it in MiB; pages that they share count once each."""
    total = 0.0
    for one in _family(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += float(line.split()[1]) / 1024
    return total


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
