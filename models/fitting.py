"""Fitting: trees for each kind of part, horizon and cause, and their calibration.

Trained on down-sampled quiet times, calibrated with the weights that undo it, so that
probabilities are true rates. Where physics says so, risk may only rise with a feature.

A kind of part with too few failures of its own is not left alone: its node sees the worst of its
parts, and learns their failures together. A failure that a part's own model tells is no failure
to its node's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits

from models.calibration import Beta, Scored, calibrated
from models.causes import CAUSES
from models.features.arrays import Floats
from models.horizons import horizons_with, label
from models.learned import Horizon, KindModel, LearnedRisk, Trees, raw_score, usable_feature
from models.looks import Examples, Looks, Mask
from models.packed import PackedTrees
from models.trees import MOST_LEAVES, Ensemble

SECOND_NS = 1_000_000_000

RISING = (
    "ecc_corrected.count_",
    "ecc_uncorrected.count_",
    "remapped_uncorrected.count_",
    "nvlink_crc.count_",
    "edac_corrected.count_",
    "edac_uncorrected.count_",
    "temperature_over_siblings.mean_",
    "symbol_errors.count_",
    "receive_errors.count_",
    "link_recoveries.count_",
    "media_errors.count_",
    "failure.episodes_",
    "node.failure.episodes_",
    "gpu_max.temperature_over_siblings.mean_",
    "gpu_max.ecc_corrected.count_",
    "gpu_max.remapped_uncorrected.count_",
    "gpu_max.nvlink_crc.count_",
    "link_max.symbol_errors.count_",
    "link_max.receive_errors.count_",
    "link_max.link_recoveries.count_",
    "disk_max.media_errors.count_",
    "dimm_max.corrected.e",
)

# Different failures (not examples: one failure gives dozens) to learn and to calibrate by.
LEAST_FAILURES = 10
LEAST_LATER_FAILURES = 4
LEAST_OF_CAUSE = 6  # different failures of one cause, to give it trees of its own
OTHER = "other"
LEAST_VARYING = 20  # rows; a column that varies in fewer tells of single parts
LATER_SHARE = 0.3  # of the failures, the latest, kept for calibration


class TooFewFailures(ValueError):
    """There are too few failures to learn from. The text says how many and what is needed."""


def train(
    looks: Mapping[str, Looks],
    horizon_seconds: float,
    seed: int = 0,
    later: Mapping[str, Looks] | None = None,
    frequent: Mapping[str, float] | None = None,
) -> tuple[LearnedRisk, list[str]]:
    """A model of every kind and horizon that has enough failures, and words on those that lack.

    It is calibrated on ``later``, other looks at the true rate; without them it learns from
    earlier time and is calibrated on the last 30 % of the failures. ``frequent``: how much more
    often than others the failures of some kinds happen in ``looks`` but not in ``later``.
    Raises TooFewFailures when no kind has enough.
    """
    own_ns = int(horizon_seconds * SECOND_NS)
    if later is None:
        looks, later = by_time(looks, own_ns)
    chosen, left_out = enough(looks, own_ns)
    looks = {kind: _mine(looks[kind], chosen) for kind in chosen}
    later = {kind: _mine(later[kind], chosen) for kind in chosen if kind in later}
    counted = sum(one.failures(own_ns) for one in later.values())
    if not chosen or counted < LEAST_LATER_FAILURES:
        left_out.append(
            f"{counted} later failures to calibrate by; {LEAST_LATER_FAILURES} are needed"
        )
        raise TooFewFailures("; ".join(left_out))
    made: dict[str, KindModel] = {}
    # Its own horizon first: it says which columns there are.
    for seconds in sorted(horizons_with(horizon_seconds), key=lambda one: one != horizon_seconds):
        told = _horizon(looks, later, made, seconds, horizon_seconds, seed, frequent or {})
        left_out += told
    return LearnedRisk(horizon_seconds, made), left_out


def enough(looks: Mapping[str, Looks], horizon_ns: int) -> tuple[list[str], list[str]]:
    """The kinds that have failures enough to learn from, and words on the others."""
    chosen: list[str] = []
    left_out: list[str] = []
    # The node last: what its parts' own models tell is not its own.
    for kind in sorted(looks, key=lambda one: (one == "node", one)):
        count = _mine(looks[kind], chosen).failures(horizon_ns)
        if count >= LEAST_FAILURES:
            chosen.append(kind)
        else:
            left_out.append(
                f"{kind}: {count} failures to learn from, {LEAST_FAILURES} are needed"
                + ("" if kind in ("gpu", "node") else "; learned with those of the node")
            )
    return chosen, left_out


def by_time(
    looks: Mapping[str, Looks], horizon_ns: int
) -> tuple[dict[str, Looks], dict[str, Looks]]:
    """Earlier and later looks; the later ones hold the last 30 % of the failures."""
    times = [some.times_ns[_before(some, horizon_ns)] for some in looks.values()]
    failing = np.concatenate(times) if times else np.zeros(0, np.int64)
    cut_ns = int(np.quantile(failing, 1 - LATER_SHARE)) if len(failing) else 0
    # What lies beyond the cut is not known yet: nothing is both learned from and calibrated by.
    early = {kind: some.until(cut_ns) for kind, some in looks.items()}
    return early, {kind: some.part(some.times_ns > cut_ns) for kind, some in looks.items()}


def train_kind(examples: Examples, seed: int = 0, later: Examples | None = None) -> KindModel:
    """One kind at one horizon, a day: as :func:`train`, from ready examples."""
    if later is None:
        failing = examples.y > 0
        cut_ns = np.quantile(examples.times_ns[failing], 1 - LATER_SHARE) if failing.any() else 0
        early = examples.times_ns <= cut_ns
        examples, later = examples.part(early), examples.part(~early)
    counts = examples.failures(), later.failures()
    if counts[0] < LEAST_FAILURES or counts[1] < LEAST_LATER_FAILURES:
        raise TooFewFailures(
            f"{examples.kind}: {counts[0]} failures to learn from and {counts[1]} later ones to "
            f"calibrate by; {LEAST_FAILURES} and {LEAST_LATER_FAILURES} are needed"
        )
    names = _columns(examples)
    trees = _by_cause(examples, names, seed)
    found = calibrated({examples.kind: _scored(trees, names, later, 0.0)})
    own = Horizon(trees, found[examples.kind], _rate(later))
    return KindModel(examples.kind, names, 86_400.0, {86_400.0: own}, _typical(examples, names))


def _horizon(
    looks: Mapping[str, Looks],
    later: Mapping[str, Looks],
    made: dict[str, KindModel],
    seconds: float,
    own_seconds: float,
    seed: int,
    frequent: Mapping[str, float],
) -> list[str]:
    """Fits one horizon of all kinds into ``made``; words on the kinds left out."""
    horizon_ns = int(seconds * SECOND_NS)
    left_out = []
    grown: dict[str, Trees] = {}
    rates: dict[str, float] = {}
    scored: dict[str, Scored] = {}
    for kind, some in looks.items():
        count = some.failures(horizon_ns)
        if count < LEAST_FAILURES:
            left_out.append(
                f"{kind} within {label(seconds)}: {count} failures to learn from, "
                f"{LEAST_FAILURES} are needed; reckoned from {label(own_seconds)}"
            )
            continue
        examples = some.within(horizon_ns)
        if kind not in made:
            names = _columns(examples)
            made[kind] = KindModel(kind, names, own_seconds, {}, _typical(examples, names))
        names = made[kind].names
        grown[kind] = _by_cause(examples, names, seed)
        known = -float(np.log(frequent.get(kind, 1.0)))
        after = examples.part(examples.y < 0)  # none
        if kind in later:
            after = later[kind].within(horizon_ns)
        scored[kind] = _scored(grown[kind], names, after, known)
        rates[kind] = _rate(after if len(after.y) else examples)
    if not sum(one.failures for one in scored.values()):
        return [*left_out, f"no later failure within {label(seconds)} to calibrate by"]
    found: dict[str, Beta] = calibrated(scored)
    for kind, trees in grown.items():
        made[kind].horizons[seconds] = Horizon(trees, found[kind], rates[kind])
    return left_out


def _mine(some: Looks, chosen: list[str]) -> Looks:
    """A node's looks without those before failures that models of its parts tell."""
    if some.kind != "node":
        return some
    return some.without([at for at, cause in enumerate(CAUSES["node"]) if cause in chosen])


def _before(some: Looks, horizon_ns: int) -> Mask:
    return (some.onsets_ns > 0) & (some.onsets_ns <= some.times_ns + horizon_ns) & ~some.fine


def _columns(examples: Examples) -> tuple[str, ...]:
    return tuple(
        name
        for index, name in enumerate(examples.names)
        if usable_feature(name) and _varies(examples.x[:, index])
    )


def _varies(values: Floats) -> bool:
    """Whether enough rows differ from the usual value for a leaf to hold them."""
    known = values[~np.isnan(values)]
    return len(known) > 0 and int((known != np.median(known)).sum()) >= LEAST_VARYING


def _x(examples: Examples, names: tuple[str, ...]) -> Floats:
    place = {name: index for index, name in enumerate(examples.names)}
    return np.ascontiguousarray(examples.x[:, [place[name] for name in names]], np.float64)


def _typical(examples: Examples, names: tuple[str, ...]) -> Floats:
    """The median of each feature in quiet times, NaN where it is never read."""
    quiet = _x(examples, names)[examples.y == 0]
    known = ~np.isnan(quiet).all(axis=0)
    typical = np.full(len(names), np.nan)
    typical[known] = np.nanmedian(quiet[:, known], axis=0)
    return typical


def _rate(examples: Examples) -> float:
    return float(np.average(examples.y, weights=examples.weight))


def _scored(trees: Trees, names: tuple[str, ...], later: Examples, known: float) -> Scored:
    raw = raw_score(PackedTrees(list(trees.values())), _x(later, names))
    return Scored(raw, later.y, later.weight, later.failures(), known)


def _by_cause(examples: Examples, names: tuple[str, ...], seed: int) -> Trees:
    """Trees for each cause that has enough failures; the others are learned together."""
    causes = CAUSES[examples.kind]
    counted = [examples.failures(cause) for cause in range(len(causes))]
    alone = [cause for cause, count in enumerate(counted) if count >= LEAST_OF_CAUSE]
    groups = {causes[cause]: examples.causes == cause for cause in alone}
    left = (examples.y > 0) & ~np.isin(examples.causes, alone)
    if left.any():
        groups[OTHER] = left
    rising = [1 if name.startswith(RISING) else 0 for name in names]
    x = _x(examples, names)
    # What was read at the looks of another horizon only: the trees refuse a column of nothing.
    x[:1, np.isnan(x).all(axis=0)] = 0.0
    found = {}
    # One thread: on a head that does other work, waiting threads cost more than they gain.
    with threadpool_limits(1):
        for name, failing in groups.items():
            # Before a failure of another cause a part does not fail of this one.
            grown = HistGradientBoostingClassifier(
                learning_rate=0.05,
                max_iter=100,
                max_leaf_nodes=MOST_LEAVES,
                min_samples_leaf=40,
                l2_regularization=20.0,
                max_features=0.5,
                monotonic_cst=rising,
                early_stopping=False,
                random_state=seed,
            ).fit(x, failing.astype(np.float64))
            found[name] = Ensemble.of(grown)
    return found
