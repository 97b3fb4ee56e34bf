"""How long one round over many Redfish BMCs takes, beside loops of curl that read the same.

    python -m daemon.bench.bmc_redfish --count 100

The BMCs are the emulators of the source tree, in one process on the same machine; all of their
answers come over TLS. ``curl``: one process a BMC that keeps its connection, 16 at once, with user
and password in each request and the addresses of a round that tocsin found out by itself.

    python -m daemon.bench.bmc_redfish --standins 10000

That many stand-ins in another process on the same machine, in one burst; connections are closed
after each visit, as the source does it where BMCs are many.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from collectors.bmc.redfish import Options, Redfish, make
from collectors.sample import Context
from daemon.bench.bmc_standin import addresses
from daemon.bench.figures import process_seconds, resident_mebibytes

TESTBED = Path(__file__).resolve().parents[2] / "tests" / "testbed" / "bmc" / "redfishbmc"
NET, PORT = "127.63.9", 8443
STANDIN_NET, STANDIN_PORT = "127.66", 18_443
Figures = dict[str, float]


def figures(count: int = 100, cycles: int = 3) -> Figures:
    """``count`` emulated BMCs (at most 250). RuntimeError, with words, where there are none."""
    if not TESTBED.exists() or shutil.which("openssl") is None:
        raise RuntimeError("needs the source tree and openssl")
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as name:
        folder = Path(name)
        env = {**os.environ, "REDFISHBMC_DIR": f"{folder}/bmcs"}
        arguments = ["start", "--count", str(count), "--net", NET, "--port", str(PORT)]
        answer = subprocess.run(
            [sys.executable, TESTBED, *arguments], env=env, capture_output=True, check=False
        )
        if answer.returncode:
            raise RuntimeError("the emulators did not start")
        try:
            return _measured(folder, count, cycles)
        finally:
            subprocess.run([sys.executable, TESTBED, "stop"], env=env, check=False)


def standins(count: int, cycles: int = 2) -> Figures:
    """``count`` stand-ins that answer over TLS what one emulator answers."""
    if not TESTBED.exists() or shutil.which("openssl") is None:
        raise RuntimeError("needs the source tree and openssl")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as name:
        folder = Path(name)
        env = {**os.environ, "REDFISHBMC_DIR": f"{folder}/bmcs"}
        start = [sys.executable, str(TESTBED), "start", "--count", "1", "--net", NET]
        start += ["--port", str(PORT)]
        if subprocess.run(start, env=env, capture_output=True, check=False).returncode:
            raise RuntimeError("the emulator did not start")
        command = [sys.executable, "-m", "daemon.bench.redfish_standin", "--port"]
        command += [str(STANDIN_PORT), "--model", f"{NET}.1:{PORT}", "--cert", f"{folder}/bmcs"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "up":
                raise RuntimeError(f"the stand-ins did not start: is port {STANDIN_PORT} free?")
            return _standins(folder, addresses(count, STANDIN_NET), cycles, process.pid)
        finally:
            process.kill()
            process.wait()
            subprocess.run([sys.executable, TESTBED, "stop"], env=env, check=False)


def _standins(folder: Path, hosts: Sequence[str], cycles: int, peer: int) -> Figures:
    found: Figures = {"bmcs": float(len(hosts))}
    _secret(folder)
    listed = folder / "list"
    listed.write_text("".join(f"n{n} {host}:{STANDIN_PORT}\n" for n, host in enumerate(hosts)))
    options = _options(folder, detail_rounds=1_000)
    (folder / "state").mkdir()
    before = resident_mebibytes()
    source = make(options, Context("head", folder / "state"))
    # One burst, but connections as where BMCs are many.
    source.keep_connections = False
    used: list[float] = []

    def told() -> None:
        used.append(process_seconds(peer))

    try:
        told()
        first, wall, cpu, values = _rounds(source, cycles, told)
        memory = resident_mebibytes() - before
    finally:
        source.close()
    return found | {
        "readings": values,
        "first_round_seconds": first,
        "round_seconds": wall,
        "cpu_seconds": cpu,
        "cpu_milliseconds_per_bmc": 1000 * cpu / len(hosts),
        "standins_cpu_seconds": (used[-1] - used[1]) / cycles,
        "memory_mebibytes": memory,
        "load_1m": os.getloadavg()[0],
    }


def _options(folder: Path, detail_rounds: int) -> Options:
    return Options(
        file=str(folder / "list"),
        user="admin",
        password_file=str(folder / "password"),
        ca_file=str(folder / "bmcs" / "cert.pem"),
        check_name=False,
        deadline_seconds=1_800.0,
        bmc_deadline_seconds=900.0,
        timeout_seconds=120.0,
        in_turn_from=1_000_000,
        detail_rounds=detail_rounds,
    )


def _measured(folder: Path, count: int, cycles: int) -> Figures:
    _secret(folder)
    hosts = [f"{NET}.{number}:{PORT}" for number in range(1, count + 1)]
    listed = folder / "list"
    listed.write_text("".join(f"n{place} {host}\n" for place, host in enumerate(hosts)))
    found: Figures = {"bmcs": float(count)}
    for kind, detail_rounds in (("sensors", 1), ("reports", 1_000)):
        options = _options(folder, detail_rounds)
        state = folder / kind
        state.mkdir()
        before = resident_mebibytes()
        source = make(options, Context("head", state))
        try:
            first, wall, cpu, values = _rounds(source, cycles)
            plan = source._visitors[0]._plan
            assert plan is not None
            steps = plan.states + (plan.sensors if kind == "sensors" else plan.reports)
            wanted = [*plan.logs, *steps]
        finally:
            source.close()
        found |= {
            f"{kind}_readings": values,
            f"{kind}_first_round_seconds": first,
            f"{kind}_round_seconds": wall,
            f"{kind}_cpu_seconds": cpu,
            f"{kind}_memory_mebibytes": resident_mebibytes() - before,
        }
        if shutil.which("curl"):
            seconds, used = _curl(folder, hosts, wanted)
            found |= {
                f"{kind}_curl_seconds": seconds,
                f"{kind}_curl_cpu_seconds": used,
                f"{kind}_curl_ratio": wall / seconds,
            }
    return found


def _secret(folder: Path) -> None:
    secret = folder / "password"
    secret.write_text("secret\n")
    secret.chmod(0o600)


def _rounds(
    source: Redfish, cycles: int, told: Callable[[], None] = lambda: None
) -> tuple[float, float, float, float]:
    """Seconds of the first round; of later ones: seconds, processor seconds, readings."""
    walls, cpus = [], []
    first, values = 0.0, 0
    for turn in range(cycles + 1):
        begin, used = time.monotonic(), time.process_time()
        batch = source.collect(time.time_ns())
        told()
        if batch.fault:
            raise RuntimeError(batch.fault)
        seconds, cpu = time.monotonic() - begin, time.process_time() - used
        if turn == 0:
            first = seconds
            continue
        walls.append(seconds)
        cpus.append(cpu)
        values = sum(1 for one in batch.samples if one.measurement == "bmc")
    return first, median(walls), median(cpus), float(values)


def _curl(folder: Path, hosts: Sequence[str], wanted: Sequence[str]) -> tuple[float, float]:
    """Seconds and processor seconds to fetch ``wanted`` from every host."""
    config = folder / "curl.conf"  # the password must not stand in a command line
    config.write_text('user = "admin:secret"\n')
    config.chmod(0o600)

    def one(host: str) -> None:
        command = ["curl", "-sk", "-g", "-K", str(config)]
        for uri in wanted:
            command += ["-o", "/dev/null", f"https://{host}{uri}"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)

    begin, used = time.monotonic(), _children_seconds()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(one, hosts))
    return time.monotonic() - begin, _children_seconds() - used


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Prints the figures as one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m daemon.bench.bmc_redfish")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--standins", type=int, default=0)
    parser.add_argument("--cycles", type=int, default=3)
    given = parser.parse_args()
    try:
        measure = standins if given.standins else figures
        found: object = measure(given.standins or given.count, given.cycles)
    except RuntimeError as error:
        found = {"not measured": str(error)}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
