"""The same readings in other stores, on the same machine in the same run.

InfluxDB 1.x and VictoriaMetrics are measured where their programs are on PATH; each is
started on loopback with its data below the folder given, and ended again. Each is sent to as its
makers advise: gzipped bodies of 5,000 lines with sorted tags, as many at once as there are cores
(https://docs.influxdata.com/influxdb/v2/write-data/best-practices/optimize-writes/), and what it
is too busy for is sent again, as every client does; how often is told.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from collectors.lines import encode
from daemon.bench.figures import Figure, percentile
from daemon.bench.load import NAMES, Fleet

_BODY_SAMPLES = 5000
_SENDERS = 2
# A server that is busy with its index answers 500 or 503 for a while; then it gives up.
_TRIES = 30
_PAUSE_SECONDS = 2.0
_DEADLINE_SECONDS = 180.0
# With millions of series in its log of writes, InfluxDB takes minutes to start again.
_START_SECONDS = 900.0
_SETTLE_SECONDS = 300.0
_STILL_SECONDS = 5.0
_NONE: Mapping[str, str] = MappingProxyType({})
_TICKS = os.sysconf("SC_CLK_TCK")

# Every write synced before it is answered, as the embedded store does. Else what its documents
# advise for millions of series: an index on disk, no bound on series and cache, and more than ten
# seconds for a write (with the default, one of 80,000 GPUs' writes beside the first snapshot of
# the cache was answered "timeout").
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
  cache-snapshot-write-cold-duration = "{cold}"
  compact-full-write-cold-duration = "{cold}"
[coordinator]
  write-timeout = "120s"
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
    """A server that runs: its name, where it takes lines, its process and its data.

    ``settle`` runs it once more until its files are as small as it makes them.
    """

    name: str
    write_url: str
    process: subprocess.Popen[bytes]
    folder: Path
    settle: Callable[[], None]


def bench_peers(folder: Path, nodes: int = 1000, steps: int = 5) -> Iterator[Figure]:
    """Writes ``steps`` readings of the fleet to each server that is installed here."""
    for start in (_influxdb, _victoriametrics):
        with contextlib.ExitStack() as stack:
            peer = stack.enter_context(start(folder))
            if peer is not None:
                yield from _measure(peer, nodes, steps)


def _measure(peer: Peer, nodes: int, steps: int) -> Iterator[Figure]:
    fleet = Fleet(nodes, start_ns=time.time_ns() - steps * 30 * 10**9)
    values = sent_again = 0
    wall = 0.0
    took: list[float] = []
    before = _cpu_seconds(peer.process.pid)
    for samples in fleet.samples(steps):
        bodies = [
            gzip.compress(encode(samples[start : start + _BODY_SAMPLES]), 1)
            for start in range(0, len(samples), _BODY_SAMPLES)
        ]
        begin = time.perf_counter()
        try:
            with ThreadPoolExecutor(_SENDERS) as senders:
                for seconds, again in senders.map(lambda body: _write(peer, body), bodies):
                    took.append(seconds)
                    sent_again += again
        except OSError as error:
            # The others are measured all the same.
            yield Figure(f"{peer.name}: gave up ({error}) after", values, "values")
            return
        wall += time.perf_counter() - begin
        values += len(samples) * len(NAMES)
    cpu = _cpu_seconds(peer.process.pid) - before
    resident = _resident_mebibytes(peer.process.pid)
    _end(peer.process)
    yield Figure(f"{peer.name}: sustained", values / wall, "values/s")
    yield Figure(f"{peer.name}: writes that it was too busy for", sent_again, "writes, sent again")
    yield Figure(f"{peer.name}: write of {_BODY_SAMPLES:,} lines, p99", percentile(took, 0.99), "s")
    yield Figure(f"{peer.name}: server", cpu / values * 1e6, "CPU s/million values")
    yield Figure(f"{peer.name}: resident memory", resident, "MiB")
    size = _tree_bytes(peer.folder)
    yield Figure(f"{peer.name}: bytes on disk, as it left them", size / values, "bytes/value")
    try:
        peer.settle()
    except (OSError, RuntimeError) as error:
        yield Figure(f"{peer.name}: not merged by itself ({error})", 0, "bytes/value")
        return
    size = _tree_bytes(peer.folder)
    yield Figure(f"{peer.name}: bytes on disk, merged by itself", size / values, "bytes/value")


def _write(peer: Peer, body: bytes) -> tuple[float, int]:
    """Seconds that one body took in the end, and how often it was sent again."""
    begin = time.perf_counter()
    for number in range(_TRIES):
        try:
            _post(peer.write_url, body)
            return time.perf_counter() - begin, number
        except OSError:
            # The same points once more are no more points, in both servers.
            if number + 1 == _TRIES or peer.process.poll() is not None:
                raise
        time.sleep(_PAUSE_SECONDS)
    raise AssertionError("not reached")


@contextlib.contextmanager
def _influxdb(folder: Path) -> Iterator[Peer | None]:
    program = shutil.which("influxd")
    if program is None:
        yield None
        return
    port, own = _free_port(), folder / "influxdb"
    own.mkdir(parents=True)
    conf = own / "influxdb.conf"
    url = f"http://127.0.0.1:{port}"
    write_url = f"{url}/write?db=bench&precision=ns"

    def start(cold: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        conf.write_text(_INFLUX_CONF.format(rpc=_free_port(), port=port, folder=own, cold=cold))
        return _running([program, "run", "-config", str(conf)], f"{url}/ping")

    def settle() -> None:
        # What nothing is written to any more it merges after four hours; here after a second.
        # Its log of writes is closed, and goes, when one point more comes.
        with start("1s"):
            _post(write_url, gzip.compress(b"settled value=1"))
            _until_still(own)

    with start("4h") as process:
        _post(f"{url}/query?q=CREATE+DATABASE+bench", b"", packed=False)
        yield Peer("InfluxDB 1", write_url, process, own, settle)


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

    def settle() -> None:
        with _running([program, *arguments], f"{url}/health"):
            _ask("GET", f"{url}/internal/force_merge")
            _until_still(own)

    with _running([program, *arguments], f"{url}/health") as process:
        yield Peer("VictoriaMetrics", f"{url}/api/v2/write?precision=ns", process, own, settle)


@contextlib.contextmanager
def _running(command: list[str], ready_url: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                _ask("GET", ready_url)
                break
            except OSError:
                if time.monotonic() > end or process.poll() is not None:
                    raise RuntimeError(f"{Path(command[0]).name} does not start") from None
                time.sleep(0.05)
        yield process
    finally:
        _end(process)


def _until_still(folder: Path) -> None:
    """Waits until the size of all files stands still, or for five minutes."""
    end = time.monotonic() + _SETTLE_SECONDS
    last, since = -1, time.monotonic()
    while time.monotonic() < end and time.monotonic() - since < _STILL_SECONDS:
        size = _tree_bytes(folder)
        if size != last:
            last, since = size, time.monotonic()
        time.sleep(0.25)


def _tree_bytes(folder: Path) -> int:
    """What all files below a folder take of the disk; their owner may remove some meanwhile.

    InfluxDB makes files of 4 MB that are nearly empty: what is not written costs nothing.
    """
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            total += found.st_blocks * 512 if stat.S_ISREG(found.st_mode) else 0
    return total


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
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=_DEADLINE_SECONDS
    )
    try:
        connection.request(method, f"{parts.path}?{parts.query}", body, dict(headers))
        answer = connection.getresponse()
        said = answer.read(1000).decode(errors="replace").strip()
        if answer.status >= 300:
            raise OSError(f"it answers {answer.status}: {said[:200]}")
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
