"""A head that was killed knows again what it knew: checkpoint, then what the store has since."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collectors.sample import Sample, sample
from daemon import recovery
from daemon.checkpoint import FEATURES_FILE, WATCH_FILE, save
from daemon.demo.cluster import Cluster
from daemon.demo.plot import plot
from daemon.recovery import restore
from daemon.store.embedded import Store
from daemon.store.options import StoreOptions
from models.features import FeatureEngine
from models.rival import Rival
from models.rules import Rules
from models.silence import SilenceTracker
from models.watch import Judgement, Watch

SECOND_NS = 1_000_000_000
START_NS = 1_795_000_000 * SECOND_NS
STEP_NS = 60 * SECOND_NS
STEPS = 40
NODES, GPUS = 8, 4


def new_watch() -> Watch:
    return Watch(Rules(), SilenceTracker(), FeatureEngine(), [Rival()])


def links(step: int, now_ns: int) -> list[Sample]:
    """A port that went down once while a job held its node: certain only with both readings."""
    place = {"node": "gpu-1", "device": "mlx5_9", "port": "1"}
    downs = 1.0 if step > STEPS - 7 else 0.0
    fields = {"state": 4.0, "physical_state": 5.0, "link_downs_total": downs}
    jobs = sample("slurm_node", now_ns, {"jobs": float(step > STEPS - 8)}, node="gpu-1")
    return [jobs, sample("ib_port", now_ns, fields, **place)]


@pytest.fixture(scope="module")
def history() -> list[tuple[int, list[Sample]]]:
    acts = plot(NODES, GPUS, 8, 3)
    cluster = Cluster(NODES, GPUS, 3, START_NS, START_NS, acts)
    made = []
    for step in range(1, STEPS):
        now_ns = START_NS + step * STEP_NS
        made.append((now_ns, [*cluster.step(now_ns), *links(step, now_ns)]))
    return made


@pytest.fixture
def store(tmp_path: Path, history: list[tuple[int, list[Sample]]]) -> Store:
    options = StoreOptions(directory=tmp_path / "store", reserve_bytes=0)
    made = Store(tmp_path / "store", options, lambda: history[-1][0])
    for _, samples in history:
        made.append(samples)
        made.commit()
    return made


def feed(watch: Watch, history: list[tuple[int, list[Sample]]]) -> None:
    for now_ns, samples in history:
        for one in sorted(samples, key=lambda each: each.time_ns):
            watch.ingest([one], now_ns)


def judged(watch: Watch, history: list[tuple[int, list[Sample]]]) -> Judgement:
    names = {f"gpu-{node}": GPUS for node in range(1, NODES + 1)}
    return watch.judge(history[-1][0] + SECOND_NS, names)


def certain(judgement: Judgement) -> set[tuple[str, str, str, str]]:
    return {(f.entity.node, f.entity.device, f.rule, f.code) for f in judgement.facts}


def test_a_killed_head_comes_back_to_the_same_facts_and_risks(
    tmp_path: Path, store: Store, history: list[tuple[int, list[Sample]]]
) -> None:
    whole, killed, back = new_watch(), new_watch(), new_watch()
    feed(whole, history)
    cut = STEPS - 12
    feed(killed, history[:cut])
    save(tmp_path, killed, history[cut - 1][0])
    found = restore(tmp_path, back, store, history[-1][0])
    assert found.checkpoint
    assert found.samples
    expected, judgement = judged(whole, history), judged(back, history)
    rules = {rule for _, _, rule, _ in certain(expected)}
    assert {"xid", "link_flaps"} <= rules, "the story tells of a lost GPU and of a link that fell"
    assert certain(judgement) == certain(expected)
    levels = {risk.entity: risk.probability for risk in expected.risks}
    assert {risk.entity: risk.probability for risk in judgement.risks} == pytest.approx(levels)


@pytest.mark.parametrize("broken", ["none", "cut", "other", "features"])
def test_without_a_usable_checkpoint_the_store_tells_the_facts(
    broken: str, tmp_path: Path, store: Store, history: list[tuple[int, list[Sample]]]
) -> None:
    whole, back = new_watch(), new_watch()
    feed(whole, history)
    if broken != "none":
        save(tmp_path, whole, history[-1][0])
    if broken == "cut":
        content = (tmp_path / WATCH_FILE).read_bytes()
        (tmp_path / WATCH_FILE).write_bytes(content[: len(content) // 2])
    elif broken == "other":
        (tmp_path / WATCH_FILE).write_text('{"format": 99}')
    elif broken == "features":
        (tmp_path / FEATURES_FILE).write_bytes(b"\0" * 100)
    found = restore(tmp_path, back, store, history[-1][0])
    assert not found.checkpoint
    assert certain(judged(back, history)) == certain(judged(whole, history))


def test_a_damaged_file_of_the_store_costs_what_it_held_and_no_start(
    tmp_path: Path, store: Store, history: list[tuple[int, list[Sample]]]
) -> None:
    store.roll(history[-1][0] + 7200 * SECOND_NS)
    files = sorted((tmp_path / "store").rglob("gpu*.parquet")) or sorted(
        one for one in (tmp_path / "store").rglob("*.parquet") if "gpu" in str(one)
    )
    assert files, "the readings of GPUs were rolled into a file"
    for one in files:
        one.write_bytes(b"PAR1 and no more")
    back = new_watch()
    found = restore(tmp_path, back, store, history[-1][0])
    assert found.samples > 0
    told = {one[:3] for one in certain(judged(back, history))}
    assert ("gpu-1", "mlx5_9/1", "link_flaps") in told


def test_a_start_without_a_checkpoint_reads_no_more_than_it_can_afford(
    tmp_path: Path,
    store: Store,
    history: list[tuple[int, list[Sample]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "READINGS_LIMIT", 500)
    found = restore(tmp_path, new_watch(), store, history[-1][0])
    readings = sum(
        one.measurement not in ("event", "slurm_event")
        for now_ns, samples in history
        if now_ns >= found.since_ns
        for one in samples
    )
    assert 0 < readings <= 600


def test_a_checkpoint_of_the_future_is_read_from_now(
    tmp_path: Path, store: Store, history: list[tuple[int, list[Sample]]]
) -> None:
    """The clock was set back after it was written."""
    watch = new_watch()
    feed(watch, history)
    save(tmp_path, watch, history[-1][0] + 3600 * SECOND_NS)
    found = replace(restore(tmp_path, new_watch(), store, history[-1][0]), samples=0)
    assert found.since_ns == history[-1][0] - recovery.OVERLAP_NS
