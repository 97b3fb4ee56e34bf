"""The batch script of a proof: one Python program that needs nothing but Python 3.6 and Slurm.

It runs each probe under its deadline and writes the result into its own job's Comment, so that
no shared file system is needed and a head that was killed still finds it. What it prints goes
to /dev/null; figures are lines ``name=value``, and what the tools that everybody uses print
(``KNOWN``): nccl-tests, perftest's bandwidths, nvbandwidth, matrixMul of the CUDA samples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from daemon.proofs.proof import Probe

# Pattern of a line (its number in a group), the figure's name, and what it is multiplied by. The
# last one of a kind counts.
KNOWN: tuple[tuple[str, str, float], ...] = (
    (r"^#\s*Avg bus bandwidth\s*:\s*(\d+(?:\.\d+)?)", "nccl_bus_bytes_per_second", 1e9),
    (
        r"^SUM host_to_device_memcpy_ce\s+(\d+(?:\.\d+)?)",
        "host_to_device_bytes_per_second",
        1e9,
    ),
    (
        r"^SUM device_to_host_memcpy_ce\s+(\d+(?:\.\d+)?)",
        "device_to_host_bytes_per_second",
        1e9,
    ),
    (r"^Performance=\s*(\d+(?:\.\d+)?)\s*GFlop/s", "gemm_flops", 1e9),
)

_PROGRAM = r'''
import json, os, re, signal, socket, subprocess, sys, threading, time

PROBES = json.loads(%(probes)s)
KNOWN = [(re.compile(line, re.M), name, by) for line, name, by in json.loads(%(known)s)]
FIGURE = re.compile(r"^([a-z][a-z0-9_]{0,62})=(-?\d+(?:\.\d+)?(?:e[+-]?\d{1,3})?)\s*$", re.M)


def gemm():
    """Multiplies two matrices; the product of ones is known, so a wrong digit is seen."""
    size, begin, done = 96, time.time(), 0
    left = [[1.0] * size for _ in range(size)]
    while time.time() - begin < 1.0:
        columns = list(zip(*left))
        product = [[sum(map(float.__mul__, row, column)) for column in columns] for row in left]
        if any(value != size for row in product for value in row):
            raise SystemExit("wrong product")
        done += 2 * size ** 3
    print("gemm_flops=%%.6e" %% (done / (time.time() - begin)))


def loopback():
    """Sends a known pattern through the loopback interface and compares it."""
    piece, total = bytes(range(256)) * 1024, 256
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)

    def send():
        out = socket.create_connection(listener.getsockname())
        for _ in range(total):
            out.sendall(piece)
        out.close()

    sender = threading.Thread(target=send)
    begin = time.time()
    sender.start()
    inward, _ = listener.accept()
    got = 0
    while True:
        data = inward.recv(len(piece))
        if not data:
            break
        at = got %% 256
        if data[:16] != (piece[at:at + 16])[:len(data)]:
            raise SystemExit("wrong data")
        got += len(data)
    sender.join()
    if got != total * len(piece):
        raise SystemExit("data is missing")
    print("loopback_bytes_per_second=%%.6e" %% (got / (time.time() - begin)))


def perftest(said):
    """The average bandwidth in perftest's last row, in the unit that the header above it names."""
    scale = found = None
    for line in said.splitlines():
        header = re.search(r"BW average\[(Gb|MB)/sec\]", line[:200])
        if header:
            scale = 1.25e8 if header.group(1) == "Gb" else 1048576.0
        row = re.match(r" *\d+ +\d+ +\d+(?:\.\d+)? +(\d+(?:\.\d+)?) ", line[:200])
        if row and scale:
            found = float(row.group(1)) * scale
    return [] if found is None else ["ib_bytes_per_second=%%.6e" %% found]


BUILTIN = {"builtin:gemm": gemm, "builtin:loopback": loopback}


def main():
    if len(sys.argv) == 2:
        BUILTIN[sys.argv[1]]()
        return 0
    figures, failed = [], ""
    for name, command, deadline in PROBES:
        argv = list(command)
        if argv[0] in BUILTIN:
            argv = [sys.executable, os.path.abspath(__file__), argv[0]]
        try:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, start_new_session=True)
        except OSError:
            failed = failed or name + ":not-started"
            continue
        try:
            said = child.communicate(timeout=deadline)[0][-1000000:].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            failed = failed or name + ":late"
            continue
        if child.returncode:
            failed = failed or "%%s:exit%%d" %% (name, child.returncode)
        figures += ["%%s=%%s" %% pair for pair in FIGURE.findall(said)]
        figures += perftest(said)
        for line, figure, by in KNOWN:
            seen = line.findall(said)
            if seen:
                figures.append("%%s=%%.6e" %% (figure, float(seen[-1]) * by))
    told = ";".join(["tocsin=" + ("failed:" + failed if failed else "ok")] + figures[:50])[:1500]
    job = "JobId=" + os.environ["SLURM_JOB_ID"]
    for _ in range(30):
        if subprocess.call(["scontrol", "update", job, "Comment=" + told]) == 0:
            return 1 if failed else 0
        time.sleep(2)
    return 2


if __name__ == "__main__":
    sys.exit(main())
'''


def script(probes: Mapping[str, Probe], python: str) -> str:
    """The batch script for ``probes``, with ``python`` as its interpreter line."""
    told = json.dumps([[name, list(p.command), p.deadline_seconds] for name, p in probes.items()])
    return f"#!{python}\n" + _PROGRAM % {"probes": repr(told), "known": repr(json.dumps(KNOWN))}
