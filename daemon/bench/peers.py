"""The same readings in other stores, on the same machine in the same run.

InfluxDB 1.x and VictoriaMetrics are measured where their programs are on PATH; each is
started on loopback with its data below the folder given, and ended again.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from collectors.lines import encode
from daemon.bench.figures import Figure
from daemon.bench.load import NAMES, Fleet

_BODY_SAMPLES = 2000
_NONE: Mapping[str, str] = MappingProxyType({})
_TICKS = os.sysconf("SC_CLK_TCK")

# Every write synced before it is answered, as the embedded store does.
_INFLUX_CONF = """
reporting-enabled = false
bind-address = "127.0.0.1:{rpc}"
[meta]
  dir = "{folder}/meta"
[data]
  dir = "{folder}/data"
  wal-dir = "{folder}/wal"
  index-version = "tsi1"
  wal-fsync-delay = "0s"
  query-log-enabled = false
  cache-max-memory-size = 0
  cache-snapshot-memory-size = "256m"
  max-series-per-database = 0
  max-values-per-tag = 0
[monitor]
  store-enabled = false
[http]
  bind-address = "127.0.0.1:{port}"
  log-enabled = false
  max-body-size = 50000000
[subscriber]
  enabled = false
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that runs: its name, where it takes lines, its process and its data."""

    name: str
    write_url: str
    process: subprocess.Popen[bytes]
    folder: Path


def bench_peers(folder: Path, nodes: int = 1000, steps: int = 5) -> Iterator[Figure]:
    """Writes ``steps`` readings of the fleet to each server that is installed here."""
    for start in (_influxdb, _victoriametrics):
        with contextlib.ExitStack() as stack:
            peer = stack.enter_context(start(folder))
            if peer is not None:
                yield from _measure(peer, nodes, steps)


def _measure(peer: Peer, nodes: int, steps: int) -> Iterator[Figure]:
    fleet = Fleet(nodes, start_ns=time.time_ns() - steps * 30 * 10**9)
    values = 0
    wall = 0.0
    before = _cpu_seconds(peer.process.pid)
    for samples in fleet.samples(steps):
        bodies = [
            gzip.compress(encode(samples[start : start + _BODY_SAMPLES]), 1)
            for start in range(0, len(samples), _BODY_SAMPLES)
        ]
        begin = time.perf_counter()
        try:
            for body in bodies:
                _post(peer.write_url, body)
        except OSError as error:
            # The others are measured all the same.
            yield Figure(f"{peer.name}: gave up ({error}) after", values, "values")
            return
        wall += time.perf_counter() - begin
        values += len(samples) * len(NAMES)
    cpu = _cpu_seconds(peer.process.pid) - before
    resident = _resident_mebibytes(peer.process.pid)
    _end(peer.process)
    size = sum(path.stat().st_size for path in peer.folder.rglob("*") if path.is_file())
    yield Figure(f"{peer.name}: sustained", values / wall, "values/s")
    yield Figure(f"{peer.name}: server", cpu / values * 1e6, "CPU s/million values")
    yield Figure(f"{peer.name}: bytes on disk, as it left them", size / values, "bytes/value")
    yield Figure(f"{peer.name}: resident memory", resident, "MiB")


@contextlib.contextmanager
def _influxdb(folder: Path) -> Iterator[Peer | None]:
    program = shutil.which("influxd")
    if program is None:
        yield None
        return
    port, own = _free_port(), folder / "influxdb"
    own.mkdir(parents=True)
    conf = own / "influxdb.conf"
    conf.write_text(_INFLUX_CONF.format(rpc=_free_port(), port=port, folder=own))
    url = f"http://127.0.0.1:{port}"
    with _running([program, "run", "-config", str(conf)], f"{url}/ping") as process:
        _post(f"{url}/query?q=CREATE+DATABASE+bench", b"", packed=False)
        yield Peer("InfluxDB 1", f"{url}/write?db=bench&precision=ns", process, own)


@contextlib.contextmanager
def _victoriametrics(folder: Path) -> Iterator[Peer | None]:
    program = shutil.which("victoria-metrics")
    if program is None:
        yield None
        return
    port, own = _free_port(), folder / "victoria"
    own.mkdir(parents=True)
    url = f"http://127.0.0.1:{port}"
    arguments = [
        f"-httpListenAddr=127.0.0.1:{port}",
        f"-storageDataPath={own}",
        "-retentionPeriod=400d",
        "-loggerLevel=ERROR",
    ]
    with _running([program, *arguments], f"{url}/health") as process:
        yield Peer("VictoriaMetrics", f"{url}/api/v2/write?precision=ns", process, own)


@contextlib.contextmanager
def _running(command: list[str], ready_url: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20
        while True:
            try:
                _ask("GET", ready_url)
                break
            except OSError:
                if time.monotonic() > end or process.poll() is not None:
                    raise RuntimeError(f"{command[0]} does not start") from None
                time.sleep(0.05)
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _post(url: str, body: bytes, packed: bool = True) -> None:
    _ask("POST", url, body, {"Content-Encoding": "gzip"} if packed else {})


def _ask(
    method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] = _NONE
) -> None:
    """One request to a server that we have started ourselves."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        connection.request(method, f"{parts.path}?{parts.query}", body, dict(headers))
        answer = connection.getresponse()
        answer.read()
        if answer.status >= 300:
            raise OSError(f"{url} answers {answer.status}")
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _TICKS


def _resident_mebibytes(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
