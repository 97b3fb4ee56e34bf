"""From a telemetry directory to frames and to training examples, by the live feature code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from models.causes import CAUSES, cause_of
from models.features import FeatureEngine, FeatureFrame
from models.features.arrays import Floats, Times
from models.labels import LabelMiner, Labels
from models.telemetry import Telemetry
from models.voices import Entity

SECOND_NS = 1_000_000_000
STEP_NS = 1800 * SECOND_NS
# A failure that comes sooner than this cannot be acted on; it is neither good nor bad.
LEAST_LEAD_NS = 900 * SECOND_NS
WARM_UP_NS = 86_400 * SECOND_NS  # the first day has no history to judge by

Progress = Callable[[float], None]


def frames(
    telemetry: Telemetry,
    step_ns: int = STEP_NS,
    kinds: tuple[str, ...] = ("gpu", "node"),
    progress: Progress | None = None,
) -> Iterator[tuple[int, FeatureFrame]]:
    """(time, features) every ``step_ns``, from one pass over the directory."""
    engine = FeatureEngine()
    first_ns, last_ns = telemetry.span_ns()
    for end_ns, chunks in telemetry.windows(step_ns):
        for chunk in chunks:
            if chunk.measurement in ("event", "slurm_event"):
                engine.observe(list(chunk.samples()), end_ns)
            else:
                engine.observe_columns(
                    chunk.measurement, chunk.tags, chunk.which, chunk.times_ns, chunk.fields
                )
        if progress:
            progress((end_ns - first_ns) / max(1, last_ns - first_ns))
        yield end_ns, engine.frame(end_ns, kinds)


def mined(telemetry: Telemetry) -> Labels:
    """The labels of a directory, from its events alone (never from truth.csv)."""
    miner = LabelMiner()
    for name in ("host", "gpu", "slurm_node"):
        if name in telemetry.measurements:
            miner.nodes |= nodes_of(telemetry, name)
            break
    samples = []
    for name in ("event", "slurm_event"):
        if name in telemetry.measurements:
            samples += list(telemetry.chunk(name, 0, 2**62).samples())
    for one in sorted(samples, key=lambda one: one.time_ns):
        miner.observe(one)
    return miner.labels()


def nodes_of(telemetry: Telemetry, measurement: str) -> set[str]:
    """Names of the nodes in the first day of a measurement."""
    first_ns, _ = telemetry.span_ns()
    chunk = telemetry.chunk(measurement, first_ns, first_ns + WARM_UP_NS)
    return {name for tags in chunk.tags for name in [dict(tags).get("node", "")] if name}


@dataclass(frozen=True)
class Examples:
    """Training examples of one kind: ``x`` [n, names], ``y`` [n], ``weight`` [n].

    ``weight`` undoes the down-sampling of quiet times: it is 1 for a positive and
    1 / (share kept) for a negative, so that weighted rates are true rates. ``onsets_ns`` [n]
    is the failure that a positive foretells, 0 for a negative: many examples tell of one.
    ``causes`` [n] is that failure's cause as its place in CAUSES[kind], -1 for a negative.
    """

    kind: str
    names: tuple[str, ...]
    x: Floats
    y: Floats
    weight: Floats
    times_ns: Times
    nodes: tuple[str, ...]
    onsets_ns: Times
    causes: Times

    def failures(self, cause: int | None = None) -> int:
        """How many different failures the positives foretell, of one cause or of all."""
        chosen = (self.y > 0) & ((self.causes == cause) if cause is not None else True)
        rows = np.flatnonzero(chosen).tolist()
        return len({(self.nodes[row], int(self.onsets_ns[row])) for row in rows})

    def part(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Examples:
        """The examples where ``chosen`` is true."""
        return Examples(
            self.kind,
            self.names,
            self.x[chosen],
            self.y[chosen],
            self.weight[chosen],
            self.times_ns[chosen],
            tuple(node for node, yes in zip(self.nodes, chosen.tolist(), strict=True) if yes),
            self.onsets_ns[chosen],
            self.causes[chosen],
        )


@dataclass(frozen=True, slots=True)
class _Kept:
    """What was kept of one kind in one frame."""

    x: Floats
    onsets_ns: Times
    causes: Times
    weight: Floats
    now_ns: int
    nodes: list[str]


class Sampler:
    """Marks each entity of a frame and keeps positives and some negatives."""

    def __init__(
        self,
        labels: Labels,
        horizon_ns: int,
        negatives_share: float,
        seed: int,
        until_ns: int | None = None,
    ) -> None:
        self.labels = labels
        self.horizon_ns = horizon_ns
        self.share = negatives_share
        self.until_ns = until_ns  # a label may not look past this time
        self.rng = np.random.default_rng([seed, 17])
        self.spans = {node: np.array(spans) for node, spans in labels.spans().items()}
        self.node_onsets = labels.node_onsets()
        self.onsets = {kind: labels.onsets(kind) for kind in ("gpu", "node")}
        self._cause_of = {
            (one.entity, one.onset_ns): CAUSES[one.entity.kind].index(
                cause_of(one.entity.kind, one.cause)
            )
            for one in labels.failures
            if one.entity.kind in CAUSES
        }
        self._kept: dict[str, list[_Kept]] = {}
        self._names: dict[str, tuple[str, ...]] = {}

    def usable(self, node: str, now_ns: int) -> bool:
        """Whether the node is in service at ``now_ns`` and no failure is about to strike."""
        spans = self.spans.get(node)
        if spans is not None and bool(((spans[:, 0] <= now_ns) & (now_ns < spans[:, 1])).any()):
            return False
        onsets = self.node_onsets.get(node)
        if onsets is None:
            return True
        low = int(np.searchsorted(onsets, now_ns, side="right"))
        return not (low < len(onsets) and onsets[low] <= now_ns + LEAST_LEAD_NS)

    def add(self, now_ns: int, frame: FeatureFrame) -> None:
        """Looks at one frame. The end of the history, where the future is unknown, is left out."""
        if self.until_ns is not None and now_ns + self.horizon_ns > self.until_ns:
            return
        for kind, part in frame.kinds.items():
            if kind not in self.onsets:
                continue
            self._names[kind] = part.names
            count = len(part.entities)
            foretold = np.zeros(count, np.int64)  # onset of the failure that comes, or 0
            place = {entity: row for row, entity in enumerate(part.entities)}
            for row, onset_ns in self._about_to_fail(kind, now_ns, place):
                foretold[row] = onset_ns
            positive = foretold > 0
            # Other parts of a node that is about to fail are censored: the node goes with it.
            bad_node = np.array([not self.usable(node, now_ns) for node in part.nodes], bool)
            chosen = positive | (self.rng.random(count) < self.share)
            chosen &= ~bad_node[part.node_rows]
            rows = np.flatnonzero(chosen)
            if len(rows):
                weight = np.where(positive[rows], 1.0, 1.0 / self.share)
                some = [part.entities[row] for row in rows.tolist()]
                onsets = foretold[rows]
                pairs = zip(some, onsets.tolist(), strict=True)
                causes = np.array([self._cause_of.get(one, -1) for one in pairs], np.int64)
                nodes = [entity.node for entity in some]
                self._kept.setdefault(kind, []).append(
                    _Kept(part.values[rows], onsets, causes, weight, now_ns, nodes)
                )

    def _about_to_fail(
        self, kind: str, now_ns: int, place: dict[Entity, int]
    ) -> Iterator[tuple[int, int]]:
        for entity, onsets in self.onsets[kind].items():
            low = int(np.searchsorted(onsets, now_ns + LEAST_LEAD_NS, side="right"))
            soon = low < len(onsets) and onsets[low] <= now_ns + self.horizon_ns
            if soon and entity in place:
                yield place[entity], int(onsets[low])

    def examples(self) -> dict[str, Examples]:
        """What was kept, by kind."""
        found = {}
        for kind, parts in self._kept.items():
            times = [np.full(len(one.onsets_ns), one.now_ns, np.int64) for one in parts]
            onsets = np.concatenate([one.onsets_ns for one in parts])
            found[kind] = Examples(
                kind,
                self._names[kind],
                np.concatenate([one.x for one in parts]),
                (onsets > 0).astype(np.float64),
                np.concatenate([one.weight for one in parts]),
                np.concatenate(times),
                tuple(node for one in parts for node in one.nodes),
                onsets,
                np.concatenate([one.causes for one in parts]),
            )
        return found


def build(
    telemetry: Telemetry,
    *,
    horizon_ns: int,
    labels: Labels | None = None,
    negatives_share: float = 0.02,
    seed: int = 0,
    step_ns: int = STEP_NS,
    until_ns: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Examples]:
    """Training examples of a directory, for failures within (15 min, horizon]."""
    labels = mined(telemetry) if labels is None else labels
    first_ns, last_ns = telemetry.span_ns()
    end_ns = last_ns if until_ns is None else min(until_ns, last_ns)
    sampler = Sampler(labels, horizon_ns, negatives_share, seed, end_ns)
    for now_ns, frame in frames(telemetry, step_ns, progress=progress):
        if now_ns > end_ns:
            break
        if now_ns - first_ns >= WARM_UP_NS:
            sampler.add(now_ns, frame)
    return sampler.examples()
