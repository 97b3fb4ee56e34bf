"""Learning on site: what is trained, on which time it is judged, and what makes it go on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.artifact import load
from models.drift import LEAST_PARTS, Drift, Histogram, histogram
from models.evaluation.operating import Costs
from models.features import FeatureFrame, KindFrame
from models.promotion import Judged, Rules, decide, share_won
from models.simulate import load as load_scenario
from models.simulate.write import write_simulation
from models.site import Learnt, SiteOptions, learn, split, trained_until_ns
from models.telemetry import Telemetry
from models.voices import Entity

# Training takes its time where other programs do as well.
pytestmark = pytest.mark.timeout(400)

HOUR_NS = 3_600_000_000_000
OPTIONS = SiteOptions(
    step_ns=6 * HOUR_NS, negatives_share=0.1, rules=Rules(budget=100.0, draws=100)
)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Telemetry:
    """40 nodes x 4 GPUs, 14 days by the hour, faults 150 times as often as usual."""
    directory: Path = tmp_path_factory.mktemp("site")
    scenario = load_scenario().scaled(150.0).with_hardware("a100-4")
    write_simulation(directory, nodes=40, days=14, seed=5, cadence_seconds=3600, scenario=scenario)
    return Telemetry(directory)


@pytest.fixture(scope="session")
def learnt(site: Telemetry, tmp_path_factory: pytest.TempPathFactory) -> tuple[Learnt, Path]:
    out = tmp_path_factory.mktemp("shelf") / "learned-1"
    return learn(site, out, "learned-1", options=OPTIONS), out


def test_it_trains_on_earlier_time_and_judges_on_later(
    learnt: tuple[Learnt, Path], site: Telemetry
) -> None:
    found, out = learnt
    assert found.state == "judged", found.why
    model = load(out)
    first_ns, last_ns = site.span_ns()
    assert trained_until_ns(model) == first_ns + int(0.6 * (last_ns - first_ns))
    assert found.promotion is not None
    assert found.promotion.evidence["challenger"]["failures"] >= 5


def test_the_manifest_holds_gate_threshold_evidence_and_histograms(
    learnt: tuple[Learnt, Path],
) -> None:
    found, out = learnt
    facts = json.loads((out / "manifest.json").read_text())["facts"]
    assert facts["gate"]["learned"] in ("on", "off")
    assert facts["gate"]["why"] == found.why
    assert facts["judged"]["rival"]["name"] == "rival"
    assert facts["alarms_per_1000_node_days"] >= 0
    model = load(out)
    for kind, one in model.kinds.items():
        assert set(facts["histograms"][kind]) == set(one.names)


def test_a_champion_is_judged_beside_and_a_copy_of_it_does_not_win(
    learnt: tuple[Learnt, Path], site: Telemetry, tmp_path: Path
) -> None:
    champion = load(learnt[1])
    again = learn(site, tmp_path / "m", "learned-2", champion=champion, options=OPTIONS)
    assert again.promotion is not None
    assert not again.promotion.promote
    ours, theirs = (again.promotion.evidence[name] for name in ("challenger", "champion"))
    assert {**ours, "name": ""} == {**theirs, "name": ""}


def test_thresholds_come_from_time_that_nobody_learned_from_and_that_judges_nobody() -> None:
    times = np.arange(0, 100 * 24 + 1) * HOUR_NS
    tune, test = split(times, int(times[60 * 24]), 0, 24 * HOUR_NS)
    assert (tune[0] / 24, tune[1] / 24) == (60, 74)
    assert (test[0] / 24, test[1] / 24) == (75, 99)


def test_a_champion_is_not_judged_on_what_it_learned_from() -> None:
    times = np.arange(0, 100 * 24 + 1) * HOUR_NS
    _, test = split(times, int(times[60 * 24]), int(times[90 * 24]), 24 * HOUR_NS)
    assert (test[0] / 24, test[1] / 24) == (90, 99)
    _, late = split(times, int(times[60 * 24]), int(times[-1]), 24 * HOUR_NS)
    assert (late[0] / 24, late[1] / 24) == (98, 99)


def test_a_short_history_waits(tmp_path: Path, site: Telemetry) -> None:
    few = replace_span(site, days=3)
    found = learn(few, tmp_path / "m", "x", options=OPTIONS)
    assert (found.state, found.promotion) == ("waiting", None)
    assert "days of history" in found.why
    assert not (tmp_path / "m").exists()


def replace_span(site: Telemetry, days: float) -> Telemetry:
    class Short(Telemetry):
        def span_ns(self) -> tuple[int, int]:
            first_ns, _ = super().span_ns()
            return first_ns, first_ns + int(days * 24 * HOUR_NS)

    return Short(site.directory)


# ---- champion and challenger ----------------------------------------------------------


def judged(name: str, early: int, false: int, nodes: int = 50, failures: int = 20) -> Judged:
    costs = Costs()
    net = np.zeros(nodes)
    net[:early] += costs.net(1, 0)
    net[nodes - false :] += costs.net(0, 1)
    return Judged(
        name, 0.1, 0.1, early, false, early + false, failures, 1000.0, float(net.sum()), net
    )


RULES = Rules()
RIVAL = judged("rival", 1, 1)


def test_the_better_one_goes_on_and_may_drain() -> None:
    made = decide(judged("challenger", 8, 1), judged("champion", 3, 1), RIVAL, RULES)
    assert (made.promote, made.gate) == (True, True)
    assert "8 of 20 failures" in made.why
    assert made.evidence["share_of_redraws_won"]["champion"] > 0.9


@pytest.mark.parametrize(
    ("challenger", "why"),
    [
        (judged("challenger", 8, 5), "5.00 false drains per 1000 node-days"),
        (judged("challenger", 8, 1, failures=4), "only 4 failures"),
        (judged("challenger", 0, 0), "told no failure"),
        (replace(judged("challenger", 8, 1), threshold=None), "told no failure"),
        (judged("challenger", 3, 1), "no better than champion"),
        (judged("challenger", 4, 2), "only in"),
    ],
)
def test_the_champion_stays_and_the_reason_is_told(challenger: Judged, why: str) -> None:
    made = decide(challenger, judged("champion", 3, 1), RIVAL, RULES)
    assert not made.promote
    assert not made.gate
    assert why in made.why


def test_a_model_that_must_only_beat_a_bad_rival_does_not_drain() -> None:
    """To lose less is better, and no reason to drain."""
    bad = replace(judged("rival", 0, 40), net_gpu_hours=-1280.0)
    poor = judged("challenger", 1, 2)
    made = decide(poor, None, bad, RULES)
    assert made.promote
    assert not made.gate


def test_the_verdict_is_the_same_each_time() -> None:
    one, other = judged("a", 5, 2), judged("b", 4, 1)
    assert share_won(one, other, 300) == share_won(one, other, 300)
    assert share_won(one, one, 300) == 0.5


# ---- drift ----------------------------------------------------------------------------


def frame_of(values: np.ndarray, names: tuple[str, ...]) -> FeatureFrame:
    nodes = tuple(f"n{i}" for i in range(len(values)))
    entities = [Entity("gpu", node, "gpu0") for node in nodes]
    part = KindFrame("gpu", entities, names, values, nodes, np.arange(len(values)))
    return FeatureFrame(0, {"gpu": part})


NAMES = ("temperature.now", "power.now")


def drift() -> Drift:
    rng = np.random.default_rng(1)
    values = rng.normal(50, 5, 4000)
    one = histogram(values, np.ones(4000))
    return Drift({"gpu": dict.fromkeys(NAMES, one)})


def test_the_same_distribution_does_not_move_and_a_shifted_one_does() -> None:
    rng = np.random.default_rng(2)
    found = drift()
    values = np.stack([rng.normal(50, 5, 500), rng.normal(60, 5, 500)], axis=1)
    found.look(frame_of(values, NAMES))
    moved = found.moved()
    assert [(one.name, one.far) for one in moved] == [
        ("power.now", True),
        ("temperature.now", False),
    ]
    assert moved[1].psi < 0.1
    assert "power draw now (gpu, PSI" in moved[0].words


def test_readings_that_stop_coming_are_a_drift() -> None:
    found = drift()
    rng = np.random.default_rng(2)
    values = np.stack([rng.normal(50, 5, 500), np.full(500, np.nan)], axis=1)
    found.look(frame_of(values, NAMES))
    assert found.moved()[0].name == "power.now"
    assert found.moved()[0].psi > 1


def test_a_handful_of_parts_says_nothing() -> None:
    found = drift()
    found.look(frame_of(np.full((LEAST_PARTS - 1, 2), 90.0), NAMES))
    assert found.moved() == []


def test_chance_alone_seldom_looks_like_a_drift() -> None:
    rng = np.random.default_rng(3)
    far = 0
    for _ in range(50):
        found = drift()
        found.look(frame_of(rng.normal(50, 5, (LEAST_PARTS, 2)), NAMES))
        far += sum(one.far for one in found.moved())
    assert far <= 2


def test_weights_undo_the_sampling() -> None:
    values = np.array([1.0] * 50 + [2.0] * 50)
    one = histogram(values, np.where(values == 1.0, 1.0, 9.0))
    counts = one.counts(np.array([1.0] * 10 + [2.0] * 90))
    assert one.distance(counts) < 1e-6


@pytest.mark.parametrize(
    "plain",
    [None, 5, {"gpu": 3}, {"gpu": {"no.such": {"edges": [], "shares": [1, 0]}}},
     {"gpu": {"power.now": {"edges": [1.0], "shares": [1.0]}}}],
)  # fmt: skip
def test_histograms_that_cannot_be_read_are_refused_in_words(plain: object) -> None:
    with pytest.raises(ValueError, match="histograms"):
        Drift.of(plain)


def test_an_empty_histogram_is_all_missing() -> None:
    one = histogram(np.full(10, np.nan), np.ones(10))
    assert isinstance(one, Histogram)
    assert one.distance(one.counts(np.full(5, np.nan))) < 1e-6
