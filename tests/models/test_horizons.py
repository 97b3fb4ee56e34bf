"""Horizons and kinds of part: what is learned of each, and how they hang together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.artifact import ModelRefused, load, save
from models.causes import CAUSES, KINDS
from models.dataset import Sampler
from models.features import FeatureFrame, KindFrame, features
from models.fitting import by_time, enough, train
from models.horizons import TOLD_SECONDS, horizons_with, ordered, scaled
from models.labels import Failure, Labels
from models.learned import LearnedRisk
from models.looks import Looks
from models.rival import Rival
from models.voices import Entity

HOUR_NS = 3_600_000_000_000
DAY_NS = 24 * HOUR_NS
HORIZONS_NS = tuple(int(one * 1e9) for one in TOLD_SECONDS)
TELLING = {"node": "load.now", "link": "symbol_errors.count_1d"}
NOISE = {"node": "blocked.now", "link": "link_event.events_1d"}


def looks_of(kind: str, failures: int, cause: str, count: int = 1200, seed: int = 1) -> Looks:
    """Looks at quiet parts, and ``failures`` failures of which the last three days show: the
    feature of TELLING rises from 0 to 100."""
    rng = np.random.default_rng([seed, len(kind)])
    names = tuple(one.name for one in features(kind))
    quiet_days = rng.uniform(1, 60, count)
    onset_days = np.repeat(rng.uniform(5, 55, failures), 30)
    ahead_days = np.tile(np.geomspace(0.02, 6.9, 30), failures)
    times = np.concatenate([quiet_days, onset_days - ahead_days])
    onsets = np.concatenate([np.zeros(count), onset_days])
    level = np.concatenate([rng.uniform(0, 30, count), 100 * np.exp(-ahead_days)])
    x = np.full((len(times), len(names)), np.nan, np.float32)
    x[:, names.index(TELLING[kind])] = level
    x[:, names.index(NOISE[kind])] = rng.uniform(0, 1, len(times))
    at = CAUSES[kind].index(cause)
    return Looks(
        kind,
        names,
        x,
        (times * DAY_NS).astype(np.int64),
        tuple(f"n{number}" for number in range(count)) + tuple("f" for _ in onset_days),
        (onsets * DAY_NS).astype(np.int64),
        np.where(onsets > 0, at, -1),
        np.concatenate([rng.uniform(0, 0.1, count), rng.uniform(0, 1, len(onset_days))]),
        np.full(len(times), 2**62, np.int64),
        np.zeros(len(times), bool),
        0.1,
    )


@pytest.fixture(scope="module")
def model() -> LearnedRisk:
    return train({"node": looks_of("node", 40, "host")}, 86_400.0)[0]


def frame_of(kind: str, levels: list[float]) -> FeatureFrame:
    names = tuple(one.name for one in features(kind))
    values = np.full((len(levels), len(names)), np.nan, np.float32)
    values[:, names.index(TELLING[kind])] = levels
    values[:, names.index(NOISE[kind])] = 0.5
    nodes = tuple(f"n{number}" for number in range(len(levels)))
    device = "mlx5_0/1" if kind == "link" else ""
    entities = [Entity(kind, node, device) for node in nodes]
    return FeatureFrame(
        0, {kind: KindFrame(kind, entities, names, values, nodes, np.arange(len(levels)))}
    )


def test_each_horizon_has_trees_of_its_own_and_the_manifest_lists_them(
    model: LearnedRisk, tmp_path: Path
) -> None:
    save(model, tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert set(manifest["kinds"]["node"]["horizons"]) == {"3600", "86400", "604800"}
    frame = frame_of("node", [5.0, 60.0, 99.0])
    assert load(tmp_path).score(frame, 0) == model.score(frame, 0)


def test_a_manifest_without_its_own_horizon_is_refused(model: LearnedRisk, tmp_path: Path) -> None:
    save(model, tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"horizon_seconds": 60.0}))
    with pytest.raises(ModelRefused, match="within 60 s"):
        load(tmp_path)


def test_risk_never_falls_with_the_horizon_and_its_own_is_the_model_s(model: LearnedRisk) -> None:
    frame = frame_of("node", list(np.linspace(0, 100, 60)))
    _, own = model.nodes(frame)
    for risk, probability in zip(model.score(frame, 0), own.tolist(), strict=True):
        assert [seconds for seconds, _ in risk.outlook] == list(TOLD_SECONDS)
        told = [one for _, one in risk.outlook]
        assert told == sorted(told)
        assert dict(risk.outlook)[86_400.0] == risk.probability == pytest.approx(probability)


def test_what_is_near_is_told_by_the_hour_and_what_is_far_by_the_week(model: LearnedRisk) -> None:
    calm, coming, near = (
        dict(one.outlook) for one in model.score(frame_of("node", [5, 15, 98]), 0)
    )
    assert near[3600.0] > 5 * calm[3600.0]
    assert near[86_400.0] > coming[86_400.0]
    assert calm[604_800.0] > calm[86_400.0]


def test_a_model_s_own_horizon_stays_where_others_contradict_it() -> None:
    day = np.array([0.2, 0.2])
    told = {3600.0: np.array([0.3, 0.1]), 86_400.0: day, 604_800.0: np.array([0.1, 0.5])}
    found = ordered(told, 86_400.0)
    assert list(found) == sorted(told)
    assert found[86_400.0].tolist() == [0.2, 0.2]
    assert found[3600.0].tolist() == [0.2, 0.1]
    assert found[604_800.0].tolist() == [0.2, 0.5]


def test_a_horizon_with_too_few_failures_is_reckoned_from_its_own_and_said() -> None:
    some = looks_of("node", 40, "host")
    far = (some.onsets_ns > 0) & (some.onsets_ns - some.times_ns <= HOUR_NS)
    model, left_out = train({"node": some.part(~far)}, 86_400.0)
    assert any("within 1h: 0 failures" in one for one in left_out)
    (risk,) = model.score(frame_of("node", [98.0]), 0)
    within = dict(risk.outlook)
    hour = scaled(np.array([risk.probability]), 86_400.0, 3600.0)
    assert within[3600.0] == pytest.approx(float(hour[0]))


def test_a_feature_that_no_look_of_one_horizon_has_read_does_no_harm() -> None:
    """A source that came late: its readings are of the last days, of which no week is known."""
    some = looks_of("node", 40, "host")
    x = some.x.copy()
    x[some.times_ns <= 53 * DAY_NS, some.names.index(NOISE["node"])] = np.nan
    late = replace(some, x=x, known_ns=np.full(len(x), 60 * DAY_NS))
    model, _ = train({"node": late}, 86_400.0, later={"node": late})
    assert NOISE["node"] in model.kinds["node"].names
    assert set(model.kinds["node"].horizons) == set(TOLD_SECONDS)


def test_the_rival_tells_every_horizon_as_well() -> None:
    rival = Rival()
    names = rival.needs["node"]
    frame = frame_of("node", [1.0])
    part = frame.kinds["node"]
    values = part.values.copy()
    for name in names:
        values[:, part.positions[name]] = 1.0
    told = FeatureFrame(0, {"node": replace(part, values=values)})
    (risk,) = rival.score(told, 0)
    assert [seconds for seconds, _ in risk.outlook] == list(horizons_with(86_400.0))
    assert [one for _, one in risk.outlook] == sorted(one for _, one in risk.outlook)
    assert dict(risk.outlook)[86_400.0] == pytest.approx(risk.probability)


def test_a_large_fleet_is_scored_in_turns_and_all_of_it_in_the_end(
    model: LearnedRisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = frame_of("node", list(np.linspace(0, 100, 60)))
    whole = {one.entity: one for one in model.score(frame, 0)}
    monkeypatch.setattr("models.learned.ROWS_AT_ONCE", 20)
    large = LearnedRisk(model.horizon_seconds, model.kinds)
    told = [{one.entity: one for one in large.score(frame, turn)} for turn in range(3)]
    assert 0 < len(told[0]) < len(told[1]) < len(told[2]) == 60
    assert told[2] == whole
    # A later turn brings what is new of its nodes, and a node that is gone is not spoken of.
    calm = frame_of("node", [0.0] * 59)
    for turn in range(3):
        last = {one.entity: one for one in large.score(calm, turn)}
    assert len(last) == 59
    assert {round(one.probability, 9) for one in last.values()} == {
        round(model.score(frame_of("node", [0.0]), 0)[0].probability, 9)
    }


# ---- kinds of part ---------------------------------------------------------------------


def test_every_cause_of_a_node_that_is_a_kind_of_part_has_that_part_s_name() -> None:
    assert set(CAUSES["node"]) - {"host"} == set(KINDS) - {"gpu", "node"}


def test_a_part_with_failures_enough_has_a_model_of_its_own_and_its_node_none_of_them() -> None:
    looks = {
        "link": looks_of("link", 30, "link"),
        "node": looks_of("node", 30, "link", seed=2),
    }
    chosen, left_out = enough(looks, DAY_NS)
    assert chosen == ["link"]
    assert left_out == ["node: 0 failures to learn from, 10 are needed"]
    model, _ = train(looks, 86_400.0)
    (part, node) = sorted(model.score(frame_of("link", [98.0]), 0), key=lambda one: one.entity)
    assert part.entity == Entity("link", "n0", "mlx5_0/1")
    assert part.probability > node.probability


def test_a_part_with_too_few_failures_is_learned_with_its_node() -> None:
    looks = {
        "link": looks_of("link", 6, "link"),
        "node": looks_of("node", 30, "link", seed=2),
    }
    chosen, left_out = enough(looks, DAY_NS)
    assert chosen == ["node"]
    assert left_out == [
        "link: 6 failures to learn from, 10 are needed; learned with those of the node"
    ]
    assert list(train(looks, 86_400.0)[0].kinds) == ["node"]


# ---- looks -----------------------------------------------------------------------------


def test_what_is_learned_from_ends_where_calibration_begins() -> None:
    looks = {"node": looks_of("node", 40, "host")}
    early, later = (one["node"] for one in by_time(looks, DAY_NS))
    cut_ns = int(early.times_ns.max())
    for horizon_ns in HORIZONS_NS:
        some = early.within(horizon_ns)
        assert (some.times_ns + horizon_ns <= cut_ns + DAY_NS // 2).all()
        assert set(some.onsets_ns[some.y > 0]).isdisjoint(
            later.onsets_ns[later.onsets_ns > cut_ns + DAY_NS // 2]
        )


def sampled(step_ns: int, share: float) -> dict[str, Looks]:
    """40 nodes over 16 days, each failing once; looked at as a training does."""
    rng = np.random.default_rng(4)
    failures = []
    for number in range(40):
        onset_ns = int(rng.uniform(2, 15) * DAY_NS)
        entity = Entity("node", f"n{number}")
        failures.append(Failure(entity, onset_ns, onset_ns + 6 * HOUR_NS, "node down"))
    sampler = Sampler(Labels(tuple(failures)), HORIZONS_NS, share, 3, 16 * DAY_NS, step_ns)
    for now_ns in range(DAY_NS, 16 * DAY_NS, step_ns // sampler.finer):
        if sampler.wanted(now_ns):
            sampler.add(now_ns, replace(frame_of("node", [1.0] * 40), time_ns=now_ns))
    return sampler.looks()


def test_looks_in_between_tell_the_shortest_horizon_at_its_true_rate() -> None:
    """Every two hours would see three failures of eight within the hour before them."""
    seldom, often = (sampled(step, 1.0)["node"] for step in (2 * HOUR_NS, HOUR_NS // 2))
    assert seldom.failures(HOUR_NS) == 40
    for horizon_ns in HORIZONS_NS:
        rates = [
            float(np.average(one.y, weights=one.weight))
            for one in (seldom.within(horizon_ns), often.within(horizon_ns))
        ]
        assert rates[0] == pytest.approx(rates[1], rel=0.15)


def test_a_look_is_an_example_of_each_horizon_by_itself() -> None:
    some = sampled(2 * HOUR_NS, 0.1)["node"]
    hour, day, week = (some.within(one) for one in HORIZONS_NS)
    assert 0 < hour.y.sum() < day.y.sum() < week.y.sum()
    for examples, horizon_ns in zip((hour, day, week), HORIZONS_NS, strict=True):
        ahead = examples.onsets_ns - examples.times_ns
        good = examples.y > 0
        assert ((ahead[good] > 900 * 10**9) & (ahead[good] <= horizon_ns)).all()
        assert (examples.onsets_ns[~good] == 0).all()
        assert set(examples.weight[~good]) == {10.0}
