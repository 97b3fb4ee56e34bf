"""``tocsin explain NODE`` right after the node came back, before it is judged anew."""

from __future__ import annotations

import time
from pathlib import Path

from collectors.events import event
from collectors.sample import sample
from collectors.slurm.nodes import NodeState
from daemon.clock import SystemClock
from daemon.config import Config
from daemon.demo.source import simulated_source
from daemon.head import Head
from daemon.headview import HeadEyes
from daemon.policy.decisions import Guard
from daemon.slurm.simulated import SimulatedSlurm

SECOND_NS = 1_000_000_000


async def test_a_node_that_came_back_is_explained_though_a_second_fault_was_never_recorded(
    tmp_path: Path,
) -> None:
    settings = {
        "mode": "act",
        "head": {"state_dir": tmp_path, "judge_seconds": 300},
        "store": {"reserve_bytes": 0},
    }
    slurm = SimulatedSlurm([NodeState(f"n{n}", base="idle") for n in range(8)], time.time_ns)
    head = Head(
        Config.model_validate(settings), clock=SystemClock(), adapter=slurm,
        slurm=simulated_source(slurm, 3600.0, tmp_path / "slurm"),
    )  # fmt: skip
    await head.start()
    try:
        now_ns = head.clock.now_ns()
        heard = sample("host", now_ns, {"load_1m": 1.0}, node="n3")
        await head.intake.accept([heard], "n3", now_ns)
        for pci, at_ns in (("0000:9b:00", now_ns), ("0000:3b:00", now_ns - SECOND_NS)):
            line = f"NVRM: Xid (PCI:{pci}): 79, pid=1, name=a, words"
            told = event("n3", "xid", "79", at_ns, text=line, severity=3, device=pci)
            await head.intake.accept([told], "n3", now_ns)
            await head.judge()
        assert slurm.nodes()["n3"].drain
        assert [one.guard for one in head.decisions if one.node == "n3"] == [Guard.OURS]
        assert (await HeadEyes(head).explain("n3")).decision is not None
        head.drains.resume("n3", "ann", head.clock.now_ns())
        head.look_at_ledger()
        told_of = await HeadEyes(head).explain("n3")
        assert told_of.title == "n3 is not drained by tocsin"
    finally:
        await head.stop()
