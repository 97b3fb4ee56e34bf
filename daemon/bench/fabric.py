"""How long one round over an InfiniBand fabric takes, beside the tools that read the same.

    python -m daemon.bench.fabric --hosts 512 --hosts 2000

The fabric is simulated (ibsim) and answers the real library and the real infiniband-diags, all in
the same run. Needs the source tree, for its testbed, and the Debian packages named there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from collectors.ib.fabric import FabricSource, Options, make
from collectors.sample import Context
from daemon.bench.figures import Figure

TESTBED = Path(__file__).resolve().parents[2] / "tests" / "testbed" / "ib" / "ibfabric"
MINUTE_NS = 60_000_000_000
HOSTS_PER_LEAF, SPINES = 40, 4
TOOLS: tuple[tuple[str, ...], ...] = (
    ("ibqueryerrors", "--skip-sl", "--data"),
    ("ibqueryerrors", "--skip-sl", "--counters"),
    ("iblinkinfo", "-l"),
)
Figures = dict[str, float]


def figures(hosts: int, cycles: int = 5) -> Figures:
    """One simulated fabric of ``hosts`` hosts, swept ``cycles`` times. Keys end in their units.

    Raises RuntimeError, with words, where no fabric can be had.
    """
    if not TESTBED.exists():
        raise RuntimeError("the simulated fabric is part of the source tree, not of the package")
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as folder:
        env = {**os.environ, "IBFABRIC_DIR": f"{folder}/ib"}
        env["PATH"] = f"{env.get('PATH', '')}:/usr/sbin"
        shape = ["--hosts", str(hosts), "--down", str(HOSTS_PER_LEAF), "--spines", str(SPINES)]
        _run([str(TESTBED), "start", *shape], env)
        try:
            inside = [sys.executable, "-m", "daemon.bench.fabric", "--inside", str(cycles)]
            python_path = str(TESTBED.parents[3])
            answer = _run([str(TESTBED), "run", *inside], {**env, "PYTHONPATH": python_path})
            found: Figures = json.loads(answer.splitlines()[-1])
            return {"hosts": float(hosts), **found}
        finally:
            subprocess.run([TESTBED, "stop"], env=env, capture_output=True, check=False)


def bench_fabric(hosts: int, cycles: int) -> Iterator[Figure]:
    """The same as lines of ``tocsin bench``; one line with why where there is no fabric."""
    try:
        found = figures(hosts, cycles)
    except RuntimeError as error:
        yield Figure(f"fabric: not measured: {error}", 0.0, "")
        return
    reach = {"ibqueryerrors_ratio": "1.2"}
    for name, value in found.items():
        yield Figure(f"fabric of {hosts} hosts: {name}", value, _unit(name), reach.get(name, ""))


def _unit(name: str) -> str:
    return name.rpartition("_")[2] if "_" in name else ""


def _run(command: Sequence[str], env: dict[str, str]) -> str:
    answer = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if answer.returncode:
        words = (answer.stderr or answer.stdout).strip()[-300:]
        raise RuntimeError(f"{Path(command[0]).name} {command[1]}: {words}")
    return answer.stdout


def _inside(cycles: int) -> Figures:
    """Measures in an environment in which the fabric is there."""
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as folder:
        context = Context("head", Path(folder), Path(folder))
        source = make(Options(deadline_seconds=600.0), context)
        assert isinstance(source, FabricSource)
        rounds, sweeps, cpu = [], [], []
        first, ports, requests = 0.0, 0.0, 0.0
        for turn in range(cycles + 1):
            begin, used = time.monotonic(), _cpu_seconds(source)
            batch = source.collect(time.time_ns() + turn * MINUTE_NS)
            seconds = time.monotonic() - begin
            (sweep,) = [one for one in batch.samples if one.measurement == "fabric"]
            ports = sweep.number("ports") or 0.0
            requests = sweep.number("requests") or 0.0
            if turn == 0:
                first = seconds
                continue
            rounds.append(seconds)
            sweeps.append(sweep.number("sweep_seconds") or 0.0)
            cpu.append(_cpu_seconds(source) - used)
        source.close()
        measured = [_tool_seconds(tool) for tool in TOOLS]
    tools, tools_used = [wall for wall, _ in measured], [one for _, one in measured]
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "ports": ports,
        "requests": requests,
        "first_round_seconds": first,
        "round_seconds": median(rounds),
        "sweep_seconds": median(sweeps),
        "cpu_seconds": median(cpu),
        "memory_bytes": float(peak_bytes),
        "ibqueryerrors_seconds": tools[0],
        "ibqueryerrors_cpu_seconds": tools_used[0],
        "tools_seconds": sum(tools),
        "tools_cpu_seconds": sum(tools_used),
        "ibqueryerrors_ratio": median(rounds) / tools[0],
        "tools_ratio": median(rounds) / sum(tools),
        # The processor's time says more than the clock where the machine is busy.
        "ibqueryerrors_cpu_ratio": median(cpu) / tools_used[0],
        "tools_cpu_ratio": median(cpu) / sum(tools_used),
        "load_1m": os.getloadavg()[0],
    }


def _cpu_seconds(source: FabricSource | None = None) -> float:
    """Of this process, of children that have ended, and of the processes that ``source`` keeps."""
    kept = 0.0
    for subnet in source.subnets.values() if source else ():
        with contextlib.suppress(OSError):
            told = Path(f"/proc/{subnet.worker_pid}/schedstat").read_text()
            kept += int(told.split()[0]) / 1e9
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return kept + own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _tool_seconds(command: Sequence[str]) -> tuple[float, float]:
    """Seconds, and processor seconds, of a run of a tool."""
    walls, used = [], []
    for _ in range(3):
        begin, before = time.monotonic(), _cpu_seconds()
        subprocess.run(command, capture_output=True, check=False)
        walls.append(time.monotonic() - begin)
        used.append(_cpu_seconds() - before)
    return median(walls), median(used)


def main() -> int:
    """Prints the figures, one JSON object a fabric."""
    parser = argparse.ArgumentParser(prog="python -m daemon.bench.fabric")
    parser.add_argument("--hosts", type=int, action="append")
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--inside", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        sys.stdout.write(json.dumps(_inside(options.inside)) + "\n")
        return 0
    for hosts in options.hosts or [512, 2000]:
        sys.stdout.write(json.dumps(figures(hosts, options.cycles)) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
