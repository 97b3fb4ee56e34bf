"""A fleet in parts: the same here and on Dask, bit for bit, and one part is the whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import models.parts
from models.dataset import build_looks, mined
from models.evaluation import evaluate
from models.evaluation.events import from_labels, record
from models.evaluation.parts import record_parts
from models.evaluation.rivals import History, Scorer, StaticThresholds
from models.looks import Looks
from models.parts import SpreadError, build_parts, in_process, node_parts, spread
from models.simulate import load
from models.simulate.write import write_simulation
from models.telemetry import Telemetry
from models.training import train_model

# Training takes its time where other programs do as well.
pytestmark = pytest.mark.timeout(400)

HOUR_NS = 3_600_000_000_000
DAY_NS = 24 * HOUR_NS
SCORERS: list[Scorer] = [History(), StaticThresholds()]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Telemetry:
    directory: Path = tmp_path_factory.mktemp("fleet")
    scenario = load().scaled(150.0).with_hardware("a100-4")
    write_simulation(directory, nodes=12, days=7, seed=5, cadence_seconds=3600, scenario=scenario)
    return Telemetry(directory)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.parts, "NODES_A_PART", 5)


@pytest.fixture(scope="module")
def dask() -> Iterator[str]:
    distributed = pytest.importorskip(
        "distributed", reason="Dask is not installed: pip install 'tocsin[dask]'"
    )
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        dashboard_address=None,
        protocol="tcp://",
        host="127.0.0.1",
    ) as cluster:
        yield cluster.scheduler_address


def same(one: dict[str, Looks], other: dict[str, Looks]) -> None:
    assert set(one) == set(other)
    for kind, some in one.items():
        there = other[kind]
        assert some.names == there.names
        assert some.nodes == there.nodes
        for name in ("x", "times_ns", "onsets_ns", "causes", "lots", "known_ns", "fine"):
            mine, theirs = getattr(some, name), getattr(there, name)
            assert mine.dtype == theirs.dtype
            assert mine.tobytes() == theirs.tobytes(), (kind, name)


def asked(fleet: Telemetry) -> dict[str, object]:
    return {
        "horizons_ns": (HOUR_NS, DAY_NS),
        "labels": mined(fleet),
        "negatives_share": 0.2,
        "step_ns": 12 * HOUR_NS,
    }


def test_a_small_fleet_is_one_part_and_gives_what_it_always_gave(fleet: Telemetry) -> None:
    assert node_parts(fleet) == [None]
    whole_looks = build_looks(fleet, **asked(fleet))  # type: ignore[arg-type]
    same(build_parts(fleet, **asked(fleet)), whole_looks)  # type: ignore[arg-type]
    labels = mined(fleet)
    targets = from_labels(labels)
    whole = record(fleet, SCORERS, targets, labels, 12 * HOUR_NS)
    parts = record_parts(fleet, SCORERS, targets, labels, 12 * HOUR_NS)
    assert parts.nodes == whole.nodes
    assert parts.scores["history-28d"].tobytes() == whole.scores["history-28d"].tobytes()


@pytest.mark.usefixtures("small_parts")
def test_parts_together_score_as_the_whole_does(fleet: Telemetry) -> None:
    """Node by node: nothing of a node's features or labels depends on its part."""
    assert [len(names or ()) for names in node_parts(fleet)] == [5, 5, 2]
    labels = mined(fleet)
    targets = from_labels(labels)
    whole = record(fleet, SCORERS, targets, labels, 12 * HOUR_NS)
    parts = record_parts(fleet, SCORERS, targets, labels, 12 * HOUR_NS)
    assert sorted(parts.nodes) == sorted(whole.nodes)
    assert np.array_equal(parts.times_ns, whole.times_ns)
    order = [parts.nodes.index(name) for name in whole.nodes]
    for name, scores in whole.scores.items():
        assert np.array_equal(parts.scores[name][:, order], scores), name
    assert np.array_equal(parts.service[:, order], whole.service)


@pytest.mark.usefixtures("small_parts")
def test_examples_are_the_same_bit_for_bit_on_dask(fleet: Telemetry, dask: str) -> None:
    here = build_parts(fleet, in_process, **asked(fleet))  # type: ignore[arg-type]
    with spread(dask) as over:
        there = build_parts(fleet, over, **asked(fleet))  # type: ignore[arg-type]
    same(here, there)


@pytest.mark.usefixtures("small_parts")
def test_an_evaluation_is_the_same_bit_for_bit_on_dask(fleet: Telemetry, dask: str) -> None:
    here = evaluate(fleet, step_ns=12 * HOUR_NS, bootstraps=20)
    with spread(dask) as over:
        there = evaluate(fleet, step_ns=12 * HOUR_NS, bootstraps=20, over=over)
    assert here.result == there.result
    assert here.record.nodes == there.record.nodes
    for name, scores in here.record.scores.items():
        assert scores.tobytes() == there.record.scores[name].tobytes(), name


@pytest.mark.usefixtures("small_parts")
def test_a_model_is_the_same_file_on_dask(
    fleet: Telemetry, dask: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.fitting.LEAST_FAILURES", 2)
    monkeypatch.setattr("models.fitting.LEAST_LATER_FAILURES", 1)
    asked = {"negatives_share": 0.2, "step_ns": 12 * HOUR_NS}
    train_model([fleet.directory], tmp_path / "here", **asked)  # type: ignore[arg-type]
    with spread(dask) as over:
        train_model([fleet.directory], tmp_path / "there", over=over, **asked)  # type: ignore[arg-type]
    mine, theirs = ((tmp_path / one / "manifest.json").read_text() for one in ("here", "there"))
    assert _without_hash(mine) == _without_hash(theirs)


def _without_hash(manifest: str) -> list[str]:
    # The archive holds times of writing, so its hash differs each time.
    return [line for line in manifest.splitlines() if '"sha256"' not in line]


def test_no_scheduler_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'tocsin[dask]'")
    monkeypatch.setattr(models.parts, "CONNECT_SECONDS", 0.5)
    with pytest.raises(SpreadError, match="no Dask scheduler"), spread("tcp://127.0.0.1:9"):
        raise AssertionError("not reached")
