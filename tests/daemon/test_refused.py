"""What the head itself refuses of a node is not missing in the node."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from collectors.sample import Sample, sample, source_reading
from collectors.slurm.nodes import NodeState
from daemon.clock import SystemClock
from daemon.config import Config
from daemon.demo.source import simulated_source
from daemon.gate.gateway import Gateway
from daemon.gate.tokens import Tokens
from daemon.head import Head
from daemon.policy.decisions import Action, Guard
from daemon.refused import KEEP_SECONDS, Refused
from daemon.slurm.simulated import SimulatedSlurm

SECOND_NS = 1_000_000_000
READ = {
    "temperature_celsius": 40.0,
    "power_watts": 90.0,
    "utilization_ratio": 0.0,
    "memory_used_bytes": 1e9,
    "energy_joules_total": 5.0,
}


def agents(at_ns: int) -> list[Sample]:
    """One cycle of a node's agent: eight GPUs, all read."""
    gpus = [
        sample("gpu", at_ns, READ, node="n1", gpu=str(index), uuid=f"GPU-{index}")
        for index in range(8)
    ]
    up = source_reading("n1", "nvml", at_ns, up=True, duration_seconds=0.1, age_seconds=0.0)
    return [*gpus, up]


@pytest.mark.parametrize("who", ["nobody", "another sender"])
async def test_gpus_that_the_gateway_refuses_are_not_missing_in_the_node(
    who: str, tmp_path: Path
) -> None:
    """A second sender with the node's token uses up its budget of series; then the head restarts,
    and whoever comes first has a place.
    """
    slurm = SimulatedSlurm(
        [NodeState(f"n{n}", base="idle", partitions=("p",), gpus_configured=8) for n in (1, 2)],
        time.time_ns,
    )
    config = Config.model_validate(
        {
            "mode": "act",
            "head": {"state_dir": tmp_path, "operators_group": "", "judge_seconds": 300},
            "page": {"enabled": False},
            "store": {"reserve_bytes": 0},
            "policy": {"drained_share_max": 1.0, "partition_share_max": 1.0,
                       "coverage_min": 0.0, "fleet_coverage_min": 0.0},
        }
    )  # fmt: skip
    source = simulated_source(slurm, 3600.0, tmp_path / "slurm")
    head = Head(config, clock=SystemClock(), adapter=slurm, slurm=source)
    head.gateway = Gateway(head.intake.accept, Tokens({}), head.clock, config.gateway)
    await head.start()
    try:
        now_ns = head.clock.now_ns()

        async def send(samples: list[Sample]) -> None:
            assert head.gateway is not None
            judge = head.gateway.admission.judge
            kept = [one for one in samples if judge(one, "n1", now_ns) is None]
            await head.intake.accept(kept, "n1", now_ns)

        for ago in range(600, 300, -10):
            await head.intake.accept(agents(now_ns - ago * SECOND_NS), "n1", now_ns)
        if who == "another sender":
            tags = [{"node": "n1", "run": str(number)} for number in range(512)]
            await send([sample("gpu", now_ns, {"mine": 1.0}, **one) for one in tags])
        for ago in range(300, -1, -10):
            await send(agents(now_ns - ago * SECOND_NS))
        await head.judge()
        counted = [one for one in head.decisions if one.rule == "gpu_count"]
        assert not slurm.nodes(["n1"])["n1"].drain
        if who == "nobody":
            assert counted == []
            return
        (one,) = counted
        assert (one.action, one.guard) == (Action.HOLD, Guard.TOOL_FAULT)
        assert "this head refuses part of what the node sends: series budget" in one.guard_text
    finally:
        await head.stop()


def test_it_is_remembered_over_midnight_when_the_gateway_begins_anew() -> None:
    now = 100.0
    refused = Refused(lambda: now)
    assert refused.lately({}) == {}
    assert refused.lately({"n1": "series budget"}) == {"n1": "series budget"}
    now += 5.0
    assert refused.lately({}) == {"n1": "series budget"}
    assert refused.lately({"n2": "event budget"}).keys() == {"n1", "n2"}
    now += KEEP_SECONDS - 1.0
    assert refused.lately({}) == {"n2": "event budget"}
    now += KEEP_SECONDS
    assert refused.lately({}) == {}
