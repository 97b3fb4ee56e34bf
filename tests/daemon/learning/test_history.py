"""The store as a history: the same examples and labels as from the directory it came from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collectors.events import event
from daemon.learning.history import StoreHistory, sampled
from daemon.store.embedded import Store
from daemon.store.transfer import import_directory
from models.dataset import build, mined
from models.looks import Examples
from models.simulate import load
from models.simulate.write import write_simulation
from models.telemetry import Telemetry
from models.verdicts import Verdict, sample_of
from models.voices import Entity

# Training takes its time where other programs do as well.
pytestmark = pytest.mark.timeout(400)

HOUR_NS = 3_600_000_000_000
DAY_NS = 24 * HOUR_NS


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Telemetry:
    directory: Path = tmp_path_factory.mktemp("fleet")
    scenario = load().scaled(150.0).with_hardware("a100-4")
    write_simulation(directory, nodes=12, days=6, seed=5, cadence_seconds=3600, scenario=scenario)
    return Telemetry(directory)


@pytest.fixture(scope="module")
def store(fleet: Telemetry, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("store")
    kept = Store(directory)
    import_directory(kept, fleet.directory)
    kept.commit()
    kept.close()
    return directory


def opened(store: Path, fleet: Telemetry, **changes: float) -> StoreHistory:
    asked = {"end_ns": fleet.span_ns()[1], "days": 30.0, "nodes_max": 100, **changes}
    return StoreHistory(store, **asked)  # type: ignore[arg-type]


def by_key(some: Examples) -> dict[tuple[int, str], list[float]]:
    return {
        (int(t), f"{node}/{row.tobytes().hex()}"): [float(y)]
        for t, node, row, y in zip(some.times_ns, some.nodes, some.x, some.y, strict=True)
    }


def test_labels_are_those_of_the_directory(store: Path, fleet: Telemetry) -> None:
    ours, theirs = mined(opened(store, fleet)), mined(fleet)
    assert len(theirs.failures) > 5
    assert ours.failures == theirs.failures


def test_examples_are_those_of_the_directory_bit_for_bit(store: Path, fleet: Telemetry) -> None:
    asked = {"horizon_ns": DAY_NS, "negatives_share": 1.0, "step_ns": 6 * HOUR_NS}
    ours = build(opened(store, fleet), **asked)  # type: ignore[arg-type]
    theirs = build(fleet, **asked)  # type: ignore[arg-type]
    for kind, some in theirs.items():
        times = np.intersect1d(some.times_ns, ours[kind].times_ns)
        assert len(times) > 10
        mine, other = (by_key(one.part(np.isin(one.times_ns, times))) for one in (ours[kind], some))
        assert mine == other


def test_a_large_fleet_is_learned_from_by_the_same_few_nodes_each_night(
    store: Path, fleet: Telemetry
) -> None:
    few = opened(store, fleet, nodes_max=5)
    assert (few.all_nodes, len(few.names)) == (12, 5)
    assert few.names == opened(store, fleet, nodes_max=5).names
    assert set(few.names) < set(opened(store, fleet, nodes_max=6).names)
    seen = {
        dict(tags).get("node")
        for _, chunks in few.windows(6 * HOUR_NS)
        for chunk in chunks
        for tags in chunk.tags
    }
    assert seen == set(few.names)


def test_the_sample_is_no_alphabet() -> None:
    names = [f"n{i:04d}" for i in range(1000)]
    found = sampled(names, 100)
    assert 20 < sum(name < "n0500" for name in found) < 80


def test_inventories_that_repeat_are_read_once(tmp_path: Path) -> None:
    kept = Store(tmp_path)
    text = "gpu=3 uuid=a serial=1 model=M"
    hourly = [
        event("n1", "inventory", "gpu", hour * HOUR_NS, text=text, severity=0, device="0000:9b:00")
        for hour in range(1, 60)
    ]
    kept.append(hourly)
    kept.append([event("n1", "xid", "79", 50 * HOUR_NS, text="x", severity=3, device="0000:9b:00")])
    host = {"load_1m": 1.0}
    from collectors.sample import sample

    kept.append([sample("host", hour * HOUR_NS, host, node="n1") for hour in range(1, 60)])
    kept.commit()
    history = StoreHistory(tmp_path, end_ns=60 * HOUR_NS, days=30, nodes_max=10)
    assert len(history.chunk("event", 0, 2**62)) == 2
    (failure,) = mined(history).failures
    assert failure.entity == Entity("gpu", "n1", "gpu3")
    kept.close()


def test_a_verdict_in_the_store_is_a_label_and_an_example_of_the_next_training(
    store: Path, fleet: Telemetry
) -> None:
    """tocsin verdict ID true -> event -> label -> positives before the onset."""
    before = mined(opened(store, fleet))
    struck = {one.entity.node for one in before.failures}
    names = opened(store, fleet).names
    quiet = next((name for name in names if name not in struck), names[0])
    first_ns, last_ns = fleet.span_ns()
    onset_ns = first_ns + 4 * DAY_NS
    word = Verdict("9f2c", Entity("gpu", quiet, "gpu1"), "risk", onset_ns, True, last_ns - HOUR_NS)
    kept = Store(store)
    kept.append([sample_of(word)])
    kept.commit()
    kept.close()
    history = opened(store, fleet)
    told = [one for one in mined(history).failures if one.cause == "called right"]
    assert [(one.entity, one.onset_ns) for one in told] == [(word.entity, onset_ns)]
    examples = build(history, horizon_ns=DAY_NS, negatives_share=0.01, step_ns=6 * HOUR_NS)
    assert onset_ns in examples["gpu"].onsets_ns
    wrong = replace(word, right=False, said_ns=last_ns - HOUR_NS // 2)
    kept = Store(store)
    kept.append([sample_of(wrong)])
    kept.commit()
    kept.close()
    assert [
        one for one in mined(opened(store, fleet)).failures if one.cause == "called right"
    ] == []


def test_an_empty_store_says_so(tmp_path: Path) -> None:
    Store(tmp_path).close()
    with pytest.raises(FileNotFoundError, match="no readings to learn from"):
        StoreHistory(tmp_path, end_ns=HOUR_NS, days=7, nodes_max=10)
