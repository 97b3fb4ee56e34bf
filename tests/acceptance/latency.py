"""How long from a line in the kernel log to the drain in ``sinfo``? Real Slurm, real processes.

    python -m tests.acceptance.latency [ROUNDS]

Each round appends an Xid 79 line to one node's log, asks ``sinfo`` until the node is drained,
and gives the node back. The figure includes what the asking itself costs.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.acceptance.house import XID79, House
from tests.collectors.fake_gpus import SOURCE
from tests.testbed.slurm.cluster import Cluster, missing, wait_for

# A round that takes longer is told with what the head had decided.
SLOW_SECONDS = 1.0
POLICY = """drains_per_hour = 10000
drained_share_max = 1.0
partition_share_max = 1.0
flap_drains = 1000
breaker_drains = 100000
breaker_candidates = 100000"""


def measure(rounds: int) -> list[float]:
    """Seconds from line to drain, one value a round."""
    folder = Path(tempfile.mkdtemp(prefix="tocsin-nvml-"))
    for name in ("Makefile", "fakenvml.c"):
        shutil.copy(SOURCE / name, folder / name)
    subprocess.run(["make", "-s", "-C", str(folder)], check=True)
    cluster = Cluster(nodes=4)
    house = House(cluster, folder, policy=POLICY)
    took: list[float] = []
    try:
        house.start()
        for number in range(rounds):
            node = cluster.nodes[number % len(cluster.nodes)]
            stamp = datetime.now(UTC).isoformat(timespec="microseconds")
            begin = house.kernel_says(node, f"{stamp} {node} kernel: {XID79}")
            while "DRAIN" not in cluster.words(node):
                if time.monotonic() - begin > 30:
                    raise SystemExit(f"round {number}: {node} was not drained in 30 s")
            took.append(time.monotonic() - begin)
            if took[-1] > SLOW_SECONDS:
                guards = [
                    (one["action"], one["guard"], one["guard_text"])
                    for one in house.decisions(node)[:4]
                ]
                print(f"round {number}: {took[-1]:.2f} s on {node}; newest decisions {guards}")
            house.ask(f"/api/v1/resume/{node}", {})
            wait_for(lambda node=node: in_service(cluster, house, node), f"{node} is back")
    finally:
        house.close()
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
    return took


def in_service(cluster: Cluster, house: House, node: str) -> bool:
    """Whether Slurm has the node back and answering, and the head has seen that.

    Slurm shows a node that it takes back as not responding until its slurmd has answered; tocsin
    drains no node in that state.
    """
    return cluster.words(node) == {"IDLE"} and house.node(node)["slurm_state"] == "IDLE"


def main() -> None:
    """Prints the quantiles."""
    why = missing()
    if why:
        raise SystemExit(f"not measured: {why}")
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    took = sorted(measure(rounds))
    p99 = took[min(len(took) - 1, int(0.99 * len(took)))]
    print(
        f"line in the kernel log -> drain in sinfo, {rounds} rounds: "
        f"p50 {statistics.median(took):.2f} s, p99 {p99:.2f} s, worst {took[-1]:.2f} s"
    )


if __name__ == "__main__":
    main()
