"""How long one round over many BMCs takes, beside the tools that read the same.

    python -m daemon.bench.bmc --real 100 --standins 10000

``--real``: that many simulators of OpenIPMI, read by tocsin, by FreeIPMI in one batch, by a loop
of ipmitool and, where it is installed, by Prometheus' ipmi_exporter. Needs the source tree and the
Debian packages that its testbed names. ``--standins``: that many stand-ins that answer by the
protocol from one other process, read by tocsin.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from collectors.bmc.ipmi import Options, make
from collectors.sample import Batch, Context
from daemon.bench import bmc_redfish
from daemon.bench.bmc_standin import addresses
from daemon.bench.figures import Figure, process_seconds, resident_mebibytes

TESTBED = Path(__file__).resolve().parents[2] / "tests" / "testbed" / "bmc" / "ipmibmc"
NET, STANDIN_NET, PORT = "127.62.7", "127.64", 16_623
EXPORTER_PORT = 19_290
Figures = dict[str, float]


def real(count: int = 100, cycles: int = 5) -> Figures:
    """``count`` simulated BMCs (at most 250). RuntimeError, with words, where there are none."""
    if not TESTBED.exists() or shutil.which("ipmi_sim") is None:
        raise RuntimeError("needs the source tree and the package openipmi")
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as folder:
        env = {**os.environ, "IPMIBMC_DIR": f"{folder}/bmcs"}
        start = [sys.executable, str(TESTBED), "start", "--count", str(count), "--net", NET]
        answer = subprocess.run(start, env=env, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise RuntimeError(f"the simulators did not start: {answer.stderr.strip()[-300:]}")
        try:
            hosts = [f"{NET}.{number}" for number in range(1, count + 1)]
            found = _tocsin(Path(folder), hosts, 623, cycles)
            found |= _tools(Path(folder), hosts)
            return found
        finally:
            subprocess.run([sys.executable, TESTBED, "stop"], env=env, check=False)


def standins(count: int = 10_000, cycles: int = 3) -> Figures:
    """``count`` stand-ins in a process of their own, on the same machine."""
    _raise_files_limit()
    command = [sys.executable, "-m", "daemon.bench.bmc_standin", "--count", str(count)]
    command += ["--net", STANDIN_NET, "--port", str(PORT)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "up":
            raise RuntimeError(f"the stand-ins did not start: is UDP port {PORT} free?")
        with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as folder:
            hosts = addresses(count, STANDIN_NET)
            return _tocsin(Path(folder), hosts, PORT, cycles, process.pid)
    finally:
        process.kill()
        process.wait()


REAL_LIMIT = 100


def bench_bmc(count: int, cycles: int) -> Iterator[Figure]:
    """The same as lines of ``tocsin bench``: simulators, emulators, stand-ins of both."""
    some = min(count, REAL_LIMIT)
    kinds = (
        ("IPMI simulators", some, real),
        ("Redfish emulators", some, bmc_redfish.figures),
        ("IPMI stand-ins", count, standins),
        ("Redfish stand-ins", count, bmc_redfish.standins),
    )
    for kind, number, measure in kinds:
        try:
            found = measure(number, cycles)
        except RuntimeError as error:
            yield Figure(f"{kind}: not measured: {error}", 0.0, "")
            continue
        for name, value in found.items():
            unit = name.rpartition("_")[2] if "_" in name else ""
            yield Figure(f"{number} {kind}: {name}", value, unit)


def _tocsin(
    folder: Path, hosts: Sequence[str], port: int, cycles: int, peer: int | None = None
) -> Figures:
    """Full rounds of the source ``ipmi`` over ``hosts``, after a first one that learns sensors.

    ``peer``: the process that plays the BMCs; what it uses of the same cores is told beside.
    """
    secret = folder / "password"
    secret.write_text("secret\n")
    secret.chmod(0o600)
    listed = folder / "list"
    listed.write_text("".join(f"n{place} {host}:{port}\n" for place, host in enumerate(hosts)))
    options = Options(
        file=str(listed),
        user="admin",
        password_file=str(secret),
        deadline_seconds=900.0,
        bmc_deadline_seconds=600.0,
        timeout_seconds=5.0,
        concurrency=200,
        in_turn_from=1_000_000,  # one burst: how long does it take?
    )
    before = resident_mebibytes()
    source = make(options, Context("head", folder))
    walls, cpus, peers = [], [], []
    first, values = 0.0, 0
    batch = Batch("ipmi")
    try:
        for turn in range(cycles + 1):
            begin, used = time.monotonic(), time.process_time()
            peer_used = process_seconds(peer) if peer else 0.0
            batch = source.collect(time.time_ns())
            seconds, cpu = time.monotonic() - begin, time.process_time() - used
            if turn == 0:
                first = seconds
                continue
            walls.append(seconds)
            cpus.append(cpu)
            peers.append((process_seconds(peer) if peer else 0.0) - peer_used)
            values = sum(1 for one in batch.samples if one.measurement == "bmc")
    finally:
        source.close()
    if batch.fault:
        raise RuntimeError(batch.fault)
    more = {"standins_cpu_seconds": median(peers)} if peer else {}
    return {
        "bmcs": float(len(hosts)),
        "readings": float(values),
        "first_round_seconds": first,
        "round_seconds": median(walls),
        "cpu_seconds": median(cpus),
        "cpu_milliseconds_per_bmc": 1000 * median(cpus) / len(hosts),
        "memory_mebibytes": resident_mebibytes() - before,
        "load_1m": os.getloadavg()[0],
        **more,
    }


# ---- the others ----------------------------------------------------------------------------------


def _tools(folder: Path, hosts: Sequence[str]) -> Figures:
    """Seconds and processor seconds of the other tools, on the same BMCs, warmed up."""
    found: Figures = {}
    secret = folder / "password"
    config = folder / "freeipmi.conf"
    config.write_text(
        "username admin\npassword secret\ndriver-type LAN_2_0\nworkaround-flags opensesspriv\n"
        "privilege-level USER\n"
    )
    config.chmod(0o600)
    if shutil.which("ipmi-sensors"):
        span = f"{NET}.[1-{len(hosts)}]"
        batch = ["ipmi-sensors", "--config-file", str(config), "-h", span, "-F", "64"]
        batch += ["--quiet-cache", "--sdr-cache-recreate", "--output-sensor-state"]
        batch += ["--sdr-cache-directory", str(folder)]
        found |= _named("freeipmi", _measure(lambda: _quiet(batch)))
    if shutil.which("ipmitool"):

        def loop() -> None:
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                list(pool.map(one, hosts))

        def one(host: str) -> None:
            login = ["-I", "lanplus", "-C", "3", "-H", host, "-U", "admin", "-L", "USER"]
            _quiet(["ipmitool", *login, "-f", str(secret), "sdr", "elist", "all"])

        found |= _named("ipmitool", _measure(loop))
    exporter = shutil.which("prometheus-ipmi-exporter") or shutil.which("ipmi_exporter")
    if exporter:
        with _exporter(exporter, folder) as process:
            _scrape(hosts)
            begin, used = time.monotonic(), _family_seconds(process)
            _scrape(hosts)
            found["exporter_seconds"] = time.monotonic() - begin
            found["exporter_cpu_seconds"] = _family_seconds(process) - used
    return found


def _named(name: str, measured: tuple[float, float]) -> Figures:
    return {f"{name}_seconds": measured[0], f"{name}_cpu_seconds": measured[1]}


def _measure(run: Callable[[], None]) -> tuple[float, float]:
    """Seconds, and processor seconds of children, of the second run."""
    run()
    begin, used = time.monotonic(), _children_seconds()
    run()
    return time.monotonic() - begin, _children_seconds() - used


def _family_seconds(process: int) -> float:
    """Processor seconds of a process and of the children that it has waited for."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _quiet(command: Sequence[str]) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


@contextmanager
def _exporter(program: str, folder: Path) -> Iterator[int]:
    config = folder / "exporter.yml"
    config.write_text(
        "modules:\n  default:\n    user: admin\n    pass: secret\n    driver: LAN_2_0\n"
        "    privilege: user\n    timeout: 30000\n    collectors: [ipmi]\n"
        "    workaround_flags: [opensesspriv]\n"
    )
    config.chmod(0o600)
    address = f"127.0.0.1:{EXPORTER_PORT}"
    command = [program, f"--config.file={config}", f"--web.listen-address={address}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(50):
            try:
                urllib.request.urlopen(f"http://{address}/metrics", timeout=5).read()
                break
            except OSError:
                time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def _scrape(hosts: Sequence[str]) -> None:
    def one(host: str) -> None:
        url = f"http://127.0.0.1:{EXPORTER_PORT}/ipmi?target={host}"
        urllib.request.urlopen(url, timeout=60).read()

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(one, hosts))


def _raise_files_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """Prints the figures, one JSON object a line."""
    parser = argparse.ArgumentParser(prog="python -m daemon.bench.bmc")
    parser.add_argument("--real", type=int, default=100)
    parser.add_argument("--standins", type=int, default=10_000)
    parser.add_argument("--cycles", type=int, default=3)
    given = parser.parse_args()
    for count, measure in ((given.real, real), (given.standins, standins)):
        if count:
            try:
                found: object = measure(count, given.cycles)
            except RuntimeError as error:
                found = {"not measured": str(error)}
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
