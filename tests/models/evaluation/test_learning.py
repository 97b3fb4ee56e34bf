"""Learning: it learns what is there, and nothing when nothing is there (leakage traps)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from models.artifact import ModelRefused, load, save
from models.dataset import Sampler, build_looks, frames, mined
from models.evaluation.rivals import Forest, Logistic
from models.features import FeatureFrame, features
from models.fitting import TooFewFailures, train, train_kind
from models.horizons import TOLD_SECONDS
from models.labels import Labels
from models.learned import LearnedRisk, usable_feature
from models.looks import Examples, Looks
from models.telemetry import Telemetry

# Training takes its time where other programs do as well.
pytestmark = pytest.mark.timeout(400)

DAY_NS = 86_400_000_000_000
HOUR_NS = DAY_NS // 24


@pytest.fixture(scope="session")
def looks(history: Telemetry) -> dict[str, Looks]:
    horizons_ns = [int(one * 1e9) for one in TOLD_SECONDS]
    return build_looks(history, horizons_ns=horizons_ns, negatives_share=0.05, step_ns=2 * HOUR_NS)


@pytest.fixture(scope="session")
def examples(looks: dict[str, Looks]) -> dict[str, Examples]:
    return {kind: some.within(DAY_NS) for kind, some in looks.items()}


@pytest.fixture(scope="session")
def model(looks: dict[str, Looks]) -> LearnedRisk:
    return train(looks, 86400.0)[0]


@pytest.fixture(scope="session")
def seen(history: Telemetry) -> list[tuple[int, FeatureFrame]]:
    return list(frames(history, 8 * HOUR_NS))


@pytest.fixture(scope="session")
def last_frame(seen: list[tuple[int, FeatureFrame]]) -> FeatureFrame:
    return seen[-1][1]


def auc_later(some: Examples, seed: int = 0) -> float:
    """AUC on the last third of the time of a model trained on the rest."""
    cut = np.quantile(some.times_ns, 0.66)
    kind = train_kind(some.part(some.times_ns <= cut), seed)
    later = some.part(some.times_ns > cut)
    x = later.x[:, [later.names.index(name) for name in kind.names]]
    return float(roc_auc_score(later.y, kind.probability(x)))


def test_it_learns_what_the_simulator_hides_in_the_readings(
    examples: dict[str, Examples],
) -> None:
    assert auc_later(examples["gpu"]) > 0.65


def test_shuffled_labels_give_chance(examples: dict[str, Examples]) -> None:
    """Labels dealt out anew among entities: whatever is still found would be a leak."""
    rng = np.random.default_rng(0)
    some = examples["gpu"]
    found = []
    for seed in range(2):
        order = rng.permutation(len(some.y))
        shuffled = replace(some, y=some.y[order], weight=some.weight[order])
        found.append(auc_later(shuffled, seed))
    assert abs(float(np.mean(found)) - 0.5) < 0.06


def test_readings_of_other_entities_give_nothing(examples: dict[str, Examples]) -> None:
    """Features shifted in time and so given to other parts: nothing but chance may be left."""
    some = examples["gpu"]
    shifted = replace(some, x=np.roll(some.x, len(some.x) // 2, axis=0))
    assert abs(auc_later(shifted) - 0.5) < 0.12


def test_no_example_lies_in_the_time_of_a_failure_or_looks_past_the_end(
    history: Telemetry, examples: dict[str, Examples]
) -> None:
    spans = mined(history).spans()
    _, last_ns = history.span_ns()
    for some in examples.values():
        assert some.times_ns.max() + DAY_NS <= last_ns
        for time_ns, node in zip(some.times_ns.tolist(), some.nodes, strict=True):
            assert not any(begin <= time_ns < end for begin, end in spans.get(node, ()))


def test_weights_restore_the_true_rate(
    history: Telemetry, seen: list[tuple[int, FeatureFrame]]
) -> None:
    labels = mined(history)
    few, many = (Sampler(labels, [DAY_NS], share, 3) for share in (0.2, 1.0))
    for now_ns, frame in seen:
        few.add(now_ns, frame)
        many.add(now_ns, frame)
    left, right = (one.looks()["gpu"].within(DAY_NS) for one in (few, many))
    rates = [float(np.average(one.y, weights=one.weight)) for one in (left, right)]
    assert rates[0] == pytest.approx(rates[1], rel=0.1)
    assert left.y.sum() == right.y.sum() > 0


def test_model_sees_no_clock() -> None:
    for kind in ("gpu", "node"):
        seen = [one.name for one in features(kind) if usable_feature(one.name)]
        assert not [name for name in seen if name.startswith("presence.age")]
        assert not [name for name in seen if name.endswith(("ever", "gaps"))]
        assert "reboots.age_days" in seen or kind == "gpu"


def test_too_few_failures_are_said(looks: dict[str, Looks]) -> None:
    quiet = {kind: some.part(some.onsets_ns == 0) for kind, some in looks.items()}
    with pytest.raises(TooFewFailures, match="10 are needed"):
        train(quiet, 86400.0)


def test_many_examples_of_one_failure_are_one_failure(examples: dict[str, Examples]) -> None:
    some = examples["gpu"]
    first = int(np.flatnonzero(some.y > 0)[0])
    one = (some.onsets_ns == some.onsets_ns[first]) & (np.array(some.nodes) == some.nodes[first])
    repeated = some.part((some.y == 0) | one)
    assert repeated.failures() == 1
    assert repeated.y.sum() > 4
    with pytest.raises(TooFewFailures):
        train_kind(repeated)


def test_other_time_at_the_true_rate_sets_the_probabilities(
    examples: dict[str, Examples],
) -> None:
    """Trained where failures are frequent, calibrated where they are ten times as rare."""
    some = examples["gpu"]
    rare = replace(some, weight=np.where(some.y > 0, some.weight, 10 * some.weight))
    kind = train_kind(some, later=rare)
    x = some.x[:, [some.names.index(name) for name in kind.names]]
    said = float(np.average(kind.probability(x), weights=rare.weight))
    assert said == pytest.approx(float(np.average(rare.y, weights=rare.weight)), rel=0.2)


def test_symbol_errors_of_a_link_reach_the_features_of_its_node(
    seen: list[tuple[int, FeatureFrame]],
) -> None:
    worst = 0.0
    for _, frame in seen:
        part = frame.of("node")
        assert part is not None
        worst = max(worst, float(np.nanmax(part.column("link_max.symbol_errors.count_1d"))))
    assert worst > 100


def test_saved_model_says_the_same(
    model: LearnedRisk, last_frame: FeatureFrame, tmp_path: Path
) -> None:
    save(model, tmp_path)
    again = load(tmp_path)
    assert again.horizon_seconds == model.horizon_seconds
    assert again.score(last_frame, 0) == model.score(last_frame, 0)


def edit_manifest(directory: Path, **changes: object) -> None:
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 9}, "format 9"),
        ({"sha256": "0"}, "not the file"),
        ({"kinds": {"gpu": {"names": ["phase_of_the_moon"]}}}, "phase_of_the_moon"),
        ({"kinds": 3}, "not a manifest"),
    ],
)
def test_model_that_does_not_fit_is_refused_with_the_reason(
    model: LearnedRisk, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    save(model, tmp_path)
    edit_manifest(tmp_path, **changes)
    with pytest.raises(ModelRefused, match=words):
        load(tmp_path)


def test_another_version_of_scikit_learn_changes_nothing(
    model: LearnedRisk, last_frame: FeatureFrame, tmp_path: Path
) -> None:
    save(model, tmp_path)
    edit_manifest(tmp_path, sklearn="0.1.0")
    assert load(tmp_path).score(last_frame, 0) == model.score(last_frame, 0)


def test_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="No such file"):
        load(tmp_path / "nothing")


def test_model_file_with_foreign_types_is_refused(model: LearnedRisk, tmp_path: Path) -> None:
    import hashlib

    import skops.io

    save(model, tmp_path)
    skops.io.dump({"gpu": Labels()}, tmp_path / "model.skops")
    digest = hashlib.sha256((tmp_path / "model.skops").read_bytes()).hexdigest()
    edit_manifest(tmp_path, sha256=digest)
    with pytest.raises(ModelRefused, match=r"foreign types: models\.labels"):
        load(tmp_path)


def test_parts_and_the_rest_make_the_risk_of_the_node(
    model: LearnedRisk, last_frame: FeatureFrame
) -> None:
    names, total = model.nodes(last_frame)
    safe = dict.fromkeys(names, 1.0)
    for one in model.score(last_frame, 0):
        safe[one.entity.node] *= 1 - one.probability
    for name, p in zip(names, total.tolist(), strict=True):
        assert 1 - safe[name] == pytest.approx(p, abs=1e-6)


def test_reasons_name_what_moved_the_risk(
    model: LearnedRisk, examples: dict[str, Examples]
) -> None:
    kind = model.kinds["gpu"]
    some = examples["gpu"]
    x = some.x[:, [some.names.index(name) for name in kind.names]]
    p = kind.probability(x)
    worst = int(np.argmax(p))
    (signals,) = kind.signals(x[worst : worst + 1])
    assert signals
    assert [one.weight for one in signals] == sorted((one.weight for one in signals), reverse=True)
    # Exact for this model: with the first family as usual, the odds fall by its weight.
    calm = x[worst].copy()
    for index, name in enumerate(kind.names):
        if name.rsplit(".", 1)[0] == signals[0].feature:
            calm[index] = kind.typical[index]
    odds = [np.log(q / (1 - q)) for q in kind.probability(np.stack([x[worst], calm])).tolist()]
    assert odds[0] - odds[1] == pytest.approx(signals[0].weight, rel=1e-3)


def test_learning_is_deterministic(examples: dict[str, Examples]) -> None:
    left, right = (train_kind(examples["gpu"]) for _ in range(2))
    assert left.own.calibration == right.own.calibration


def test_other_learners_stand_behind_the_same_interface(
    examples: dict[str, Examples], last_frame: FeatureFrame
) -> None:
    for scorer in (Logistic(examples), Forest(examples)):
        names, scores = scorer.nodes(last_frame)
        assert len(names) == len(scores) == 24
        assert np.isfinite(scores).all()


def test_sampler_keeps_all_positives_and_drops_what_is_about_to_strike(
    history: Telemetry,
) -> None:
    labels = mined(history)
    sampler = Sampler(labels, [DAY_NS], 0.0, 0)
    onset = labels.failures[0].onset_ns
    node = labels.failures[0].entity.node
    assert not sampler.usable(node, onset - 600 * 10**9)
    assert sampler.usable("no such node", onset)
