"""An event that comes late is not lost to a head that is killed before it writes that down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest

from collectors.events import event
from collectors.sample import Sample, sample
from daemon.checkpoint import Checkpoint
from daemon.recovery import restore
from daemon.store.embedded import Store
from daemon.store.options import StoreOptions
from models.features import FeatureEngine
from models.rival import Rival
from models.rules import Rules
from models.silence import SilenceTracker
from models.watch import Watch

Result = TypeVar("Result")
SECOND_NS = 1_000_000_000
NOW_NS = 1_795_000_000 * SECOND_NS
HOUR_NS = 3600 * SECOND_NS


def new_watch() -> Watch:
    return Watch(Rules(), SilenceTracker(), FeatureEngine(), [Rival()])


async def in_turn(function: Callable[[], Result]) -> Result:
    return function()


def save(checkpoint: Checkpoint, now_ns: int) -> None:
    asyncio.run(checkpoint.save(in_turn, lambda: now_ns))


def heard(ago_ns: int) -> Sample:
    return sample("source", NOW_NS - ago_ns, {"up": 1.0}, node="n1", source="agent")


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_an_event_out_of_a_spool_is_judged_again_after_a_kill(tmp_path: Path, turns: int) -> None:
    """n1 was cut off for an hour; what it had to tell came between two checkpoints."""
    options = StoreOptions(directory=tmp_path / "store", reserve_bytes=0)
    with closing(Store(tmp_path / "store", options, lambda: NOW_NS)) as store:
        killed = new_watch()
        killed.ingest([heard(2 * HOUR_NS)], NOW_NS - 2 * HOUR_NS)
        checkpoint = Checkpoint(tmp_path, killed, store)
        for turn in range(turns):
            save(checkpoint, NOW_NS - (turns - turn) * 60 * SECOND_NS)
        late = event(
            "n1", "xid", "79", NOW_NS - HOUR_NS, text="fell off", severity=3, device="0000:3b:00"
        )
        store.append([heard(SECOND_NS), late])
        store.commit()
        back = new_watch()
        restore(tmp_path, back, store, NOW_NS)
        found = back.judge(NOW_NS + SECOND_NS, {"n1": 8}).facts
        assert [
            (one.entity.node, one.code, one.onset_ns) for one in found if one.rule == "xid"
        ] == [("n1", "x79", late.time_ns)]


def test_an_event_that_was_committed_and_not_shown_when_it_was_saved_is_read_again(
    tmp_path: Path,
) -> None:
    options = StoreOptions(directory=tmp_path / "store", reserve_bytes=0)
    with closing(Store(tmp_path / "store", options, lambda: NOW_NS)) as store:
        killed = new_watch()
        killed.ingest([heard(2 * HOUR_NS)], NOW_NS - 2 * HOUR_NS)
        checkpoint = Checkpoint(tmp_path, killed, store)
        late = event("n1", "xid", "79", NOW_NS - HOUR_NS, text="fell off", severity=3)
        store.append([heard(SECOND_NS), late])
        store.commit()
        save(checkpoint, NOW_NS)  # it waits for the watch's thread, behind this
        back = new_watch()
        restore(tmp_path, back, store, NOW_NS)
        assert [one.code for one in back.judge(NOW_NS + SECOND_NS, {"n1": 8}).facts] == ["x79"]
