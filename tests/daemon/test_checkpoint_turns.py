"""A checkpoint is taken in short turns, between which readings come, and written aside."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from collectors.events import event
from collectors.sample import Sample, sample
from daemon.checkpoint import FEATURES_FILE, REST, WATCH_FILE, Checkpoint
from daemon.demo.cluster import Cluster
from daemon.demo.plot import plot
from daemon.recovery import OVERLAP_NS, restore
from daemon.store.embedded import Store
from daemon.store.options import StoreOptions
from models import turns as turns_module
from models.features import FeatureEngine
from models.rival import Rival
from models.rules import Rules
from models.silence import SilenceTracker
from models.watch import Watch

Result = TypeVar("Result")

SECOND_NS = 1_000_000_000
START_NS = 1_795_000_000 * SECOND_NS
STEP_NS = 60 * SECOND_NS
STEPS = 40
CUT = 22
NODES, GPUS = 8, 4
EXPECTED = {f"gpu-{node}": GPUS for node in range(1, NODES + 1)} | {"new": 1}


def new_watch() -> Watch:
    return Watch(Rules(), SilenceTracker(), FeatureEngine(), [Rival()])


def fell_off(node: str, time_ns: int) -> Sample:
    return event(node, "xid", "79", time_ns, text="gone", severity=3.0, device="0000:9b:00")


@pytest.fixture(scope="module")
def history() -> list[list[Sample]]:
    """One list a step; within the checkpoint a node comes new, and another's spool is emptied."""
    acts = plot(NODES, GPUS, 8, 3)
    cluster = Cluster(NODES, GPUS, 3, START_NS, START_NS, acts)
    made = []
    for step in range(1, STEPS):
        now_ns = START_NS + step * STEP_NS
        samples = [*cluster.step(now_ns)]
        if step > CUT + 1:
            samples.append(sample("source", now_ns, {"up": 1.0}, node="new", source="kernel"))
        if step == CUT + 4:
            # Before and after their turn, in none, and out of a spool of long before.
            for name, ago_ns in (
                ("gpu-2", STEP_NS),
                ("gpu-7", STEP_NS),
                ("new", STEP_NS),
                ("gpu-3", now_ns - START_NS - STEP_NS),
            ):
                samples += [fell_off(name, now_ns - ago_ns)]
        made.append(sorted(samples, key=lambda one: one.time_ns))
    return made


def at_ns(step: int) -> int:
    """When the samples of ``history[step]`` came."""
    return START_NS + (step + 1) * STEP_NS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    options = StoreOptions(directory=tmp_path / "store", reserve_bytes=0)
    with closing(Store(tmp_path / "store", options, lambda: at_ns(STEPS))) as made:
        yield made


def show(watch: Watch, store: Store | None, samples: list[Sample]) -> None:
    if store is not None:
        store.append(samples)
        store.commit()
    for one in samples:
        watch.ingest([one], one.time_ns)


def test_readings_that_come_between_the_turns_are_neither_lost_nor_counted_twice(
    tmp_path: Path,
    store: Store,
    history: list[list[Sample]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns_module, "NODES_AT_ONCE", 1)
    whole, killed, back = new_watch(), new_watch(), new_watch()
    for samples in history:
        show(whole, None, samples)
    for samples in history[:CUT]:
        show(killed, store, samples)
    left = list(history[CUT:])
    shown = 0

    async def in_turn(function: Callable[[], Result]) -> Result:
        nonlocal shown
        found = function()
        if left:
            show(killed, store, left.pop(0))
            shown += 1
        return found

    now_ns = at_ns(CUT - 1)
    asyncio.run(Checkpoint(tmp_path, killed, store).save(in_turn, lambda: now_ns))
    assert shown * STEP_NS > 2 * OVERLAP_NS, "what came meanwhile is more than is always read again"
    found = restore(tmp_path, back, store, at_ns(STEPS - 1))
    assert found.checkpoint
    assert found.since_ns == now_ns - OVERLAP_NS
    end_ns = at_ns(STEPS - 2) + SECOND_NS
    expected, judgement = whole.judge(end_ns, EXPECTED), back.judge(end_ns, EXPECTED)
    lost = {one.entity.node for one in expected.facts if one.code == "x79"}
    assert lost >= {"gpu-2", "gpu-3", "gpu-7", "new"}
    assert set(judgement.facts) == set(expected.facts)
    assert {one.node for one in judgement.silences} == {one.node for one in expected.silences}
    levels = {risk.entity: risk.probability for risk in expected.risks}
    assert {risk.entity: risk.probability for risk in judgement.risks} == pytest.approx(levels)
    frames = [one.features.frame(end_ns).kinds for one in (whole, back)]
    assert set(frames[0]) == set(frames[1])
    for kind, frame in frames[0].items():
        order = [frames[1][kind].entities.index(one) for one in frame.entities]
        np.testing.assert_array_equal(frames[1][kind].values[order], frame.values)


async def at_once(function: Callable[[], Result]) -> Result:
    return function()


@pytest.fixture
def watch() -> Watch:
    made = new_watch()
    made.ingest([sample("source", START_NS, {"up": 1.0}, node="n1", source="host")], START_NS)
    return made


def time_of(directory: Path) -> int:
    return int(json.loads((directory / WATCH_FILE).read_bytes())["time_ns"])


@pytest.mark.parametrize("name", [WATCH_FILE, FEATURES_FILE])
def test_a_full_disk_is_told_and_costs_the_new_checkpoint_alone(
    name: str, tmp_path: Path, store: Store, watch: Watch
) -> None:
    made = Checkpoint(tmp_path, watch, store)

    async def story() -> None:
        await made.save(at_once, lambda: START_NS)
        (tmp_path / f"{name}.new").symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left"):
            await made.save(at_once, lambda: START_NS + 1)
        assert not os.path.lexists(tmp_path / f"{name}.new"), "half a file would keep the disk full"
        assert time_of(tmp_path) == START_NS
        assert restore(tmp_path, new_watch(), store, START_NS).checkpoint
        await made.save(at_once, lambda: START_NS + 2)
        assert time_of(tmp_path) == START_NS + 2

    asyncio.run(story())


def test_the_second_begins_when_the_first_is_written(
    tmp_path: Path, store: Store, watch: Watch
) -> None:
    made = Checkpoint(tmp_path, watch, store)
    there: list[bool] = []

    def now_ns() -> int:
        there.append((tmp_path / WATCH_FILE).exists())
        return START_NS + len(there)

    async def story() -> None:
        await asyncio.gather(*(made.save(at_once, now_ns) for _ in range(2)))

    asyncio.run(story())
    assert there == [False, True]
    assert time_of(tmp_path) == START_NS + 2


def test_a_write_that_nobody_waits_for_any_more_is_still_the_only_one(
    tmp_path: Path, store: Store, watch: Watch
) -> None:
    """The job's deadline passes while the disk hangs: no second picture is taken meanwhile."""
    made = Checkpoint(tmp_path, watch, store)
    stuck = tmp_path / f"{FEATURES_FILE}.new"
    os.mkfifo(stuck)
    named: list[int] = []

    def now_ns() -> int:
        named.append(START_NS + len(named))
        return named[-1]

    taken = asyncio.Event()

    async def in_turn(function: Callable[[], Result]) -> Result:
        found = function()
        if hasattr(found, "arrays"):
            taken.set()
        return found

    async def story() -> None:
        first = asyncio.create_task(made.save(in_turn, now_ns))
        await taken.wait()
        await asyncio.sleep(0)  # it waits for the write now
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(made.save(at_once, now_ns))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(named) == 1
        await asyncio.to_thread(stuck.read_bytes)  # the disk goes on
        await second
        assert len(named) == 2
        assert time_of(tmp_path) == named[-1]

    asyncio.run(story())


def test_the_last_one_at_a_clean_stop_is_whole_and_newer_than_the_one_under_way(
    tmp_path: Path, store: Store, watch: Watch
) -> None:
    made = Checkpoint(tmp_path, watch, store)

    async def story() -> None:
        await made.save(at_once, lambda: START_NS)
        under_way = asyncio.create_task(made.save(at_once, lambda: START_NS + 1))
        await asyncio.sleep(0)
        told = sample("source", START_NS + 2, {"up": 1.0}, node="n2", source="host")
        watch.ingest([told], START_NS + 2)
        await made.last(lambda: made.save(at_once, lambda: START_NS + 2))
        assert under_way.done()
        assert time_of(tmp_path) == START_NS + 2
        assert not list(tmp_path.glob("*.new"))

    asyncio.run(story())
    back = new_watch()
    assert restore(tmp_path, back, store, START_NS + 2).checkpoint
    assert back.dump() == watch.dump()


def test_a_last_one_that_fails_is_told_and_stops_no_stop(
    tmp_path: Path, store: Store, watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Checkpoint(tmp_path, watch, store)
    (tmp_path / f"{WATCH_FILE}.new").symlink_to("/dev/full")
    asyncio.run(made.last(lambda: made.save(at_once, lambda: START_NS)))
    told = capsys.readouterr()
    assert "last_checkpoint_not_written" in told.out + told.err


def test_it_rests_fifty_times_what_it_cost(tmp_path: Path, store: Store, watch: Watch) -> None:
    now_seconds, spent_seconds, saves = 1000.0, 0.0, 0

    def cpu() -> float:
        nonlocal spent_seconds
        spent_seconds += 0.25  # each look at it: so much for each turn and each write
        return spent_seconds

    made = Checkpoint(tmp_path, watch, store, monotonic=lambda: now_seconds, cpu=cpu)

    async def save() -> None:
        nonlocal saves
        saves += 1
        await made.save(at_once, lambda: START_NS)

    async def story() -> None:
        nonlocal now_seconds
        when_rested = made.when_rested(save)
        await when_rested()
        assert saves == 1
        assert made.cpu_seconds >= 10 * 0.25
        rest_seconds = REST * made.cpu_seconds
        now_seconds += rest_seconds - 0.1
        await when_rested()
        assert saves == 1
        now_seconds += 0.2
        await when_rested()
        assert saves == 2
        await made.last(save)  # a clean stop waits for no rest
        assert saves == 3

    asyncio.run(story())
