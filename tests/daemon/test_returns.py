"""A node that came back: the watch knows of it, whatever was lost between ledger and watch."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from collectors.events import event
from collectors.sample import Sample, sample
from collectors.slurm.nodes import NodeState
from daemon.clock import SystemClock
from daemon.config import Config
from daemon.demo.source import simulated_source
from daemon.drains.reconcile import Returned
from daemon.head import Head
from daemon.policy.decisions import Action
from daemon.slurm.simulated import SimulatedSlurm

SECOND_NS = 1_000_000_000
Start = Callable[[], Any]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    made: list[Head] = []
    slurm = SimulatedSlurm(
        [NodeState(f"n{n}", base="idle", partitions=("p",)) for n in range(4)], time.time_ns
    )

    async def begin() -> Head:
        config = Config.model_validate(
            {
                "mode": "act",
                "head": {
                    "state_dir": tmp_path,
                    "operators_group": "",
                    "judge_seconds": 300,
                    "checkpoint_seconds": 3600,
                },
                "page": {"enabled": False},
                "store": {"reserve_bytes": 0},
                "policy": {"drained_share_max": 1.0, "partition_share_max": 1.0},
            }
        )
        source = simulated_source(slurm, 3600.0, tmp_path / "slurm")
        head = Head(config, clock=SystemClock(), adapter=slurm, slurm=source)
        made.append(head)
        await head.start()
        return head

    yield begin
    await made[-1].stop()


def xid(head: Head, ago_seconds: float = 0.0) -> list[Sample]:
    """Xid 79 on n1, from an agent that is heard."""
    now_ns = head.clock.now_ns() - int(ago_seconds * SECOND_NS)
    up = {"up": 1.0, "duration_seconds": 0.1, "age_seconds": 0.0}
    return [
        sample("source", now_ns, up, node="n1", source="agent"),
        event("n1", "xid", "79", now_ns, text="fell off the bus", severity=3, device="0000:3b:00"),
    ]


async def drained(head: Head, samples: list[Sample]) -> bool:
    await head.intake.accept(samples, "n1", head.clock.now_ns())
    await head.judge()
    return any(one.action is Action.DRAIN and one.guard is None for one in head.decisions)


def lifted(head: Head) -> Callable[[int], Returned]:
    return lambda now_ns: head.drains.resume("n1", "ann", now_ns)


async def test_a_return_whose_message_was_lost_hides_no_later_fault(start: Start) -> None:
    """The reading that saw it was given up at its deadline, while the hand went on."""
    head = await start()
    assert await drained(head, xid(head))
    await head.by_hand(lifted(head), head.clock.now_ns())
    await head.by_hand(head.look_at_ledger)
    await head.by_hand(head.desk.read_again, ["n1"])
    await head.judge()
    assert await drained(head, xid(head))


async def test_a_kill_right_after_a_return_hides_no_later_fault(start: Start) -> None:
    killed = await start()
    await killed.checkpoint()
    assert await drained(killed, xid(killed))
    await killed.checkpoint()
    await killed.by_hand(lifted(killed), killed.clock.now_ns())
    killed.checkpoint = lambda: killed.by_hand(lambda: None)  # type: ignore[method-assign]
    await killed.stop()
    head = await start()
    await head.judge()
    assert not [one for one in head.decisions if one.action is Action.DRAIN]
    assert await drained(head, xid(head))


async def test_a_fault_right_after_a_return_is_not_taken_for_the_one_before(start: Start) -> None:
    """It comes before the watch is told of the return, which takes a moment."""
    head = await start()
    assert await drained(head, xid(head))
    await head.by_hand(lifted(head), head.clock.now_ns())
    await head.intake.accept(xid(head), "n1", head.clock.now_ns())
    await head.by_hand(head.look_at_ledger)
    await head.by_hand(head.desk.read_again, ["n1"])
    await head.judge()
    assert any(one.action is Action.DRAIN and one.guard is None for one in head.decisions)
    await head.by_hand(lifted(head), head.clock.now_ns())
    await head.by_hand(head.look_at_ledger)
    await head.by_hand(head.desk.read_again, ["n1"])
    await head.judge()
    assert not any(one.action is Action.DRAIN for one in head.decisions), "it is spent for good"
