"""From a telemetry directory to frames and to training examples, by the live feature code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.causes import CAUSES, KINDS, cause_of
from models.features import FeatureEngine, FeatureFrame
from models.features.arrays import Floats, Times
from models.labels import LabelMiner, Labels
from models.looks import Examples, Looks
from models.telemetry import Telemetry
from models.voices import Entity

SECOND_NS = 1_000_000_000
STEP_NS = 1800 * SECOND_NS
# A failure that comes sooner than this cannot be acted on; it is neither good nor bad.
LEAST_LEAD_NS = 900 * SECOND_NS
# Looks before a failure that comes soon are taken so often: every two hours would miss most.
FINE_STEP_NS = 1800 * SECOND_NS
MOST_FINER = 4
WARM_UP_NS = 86_400 * SECOND_NS  # the first day has no history to judge by

Progress = Callable[[float], None]


def frames(
    telemetry: Telemetry,
    step_ns: int = STEP_NS,
    kinds: tuple[str, ...] = KINDS,
    progress: Progress | None = None,
    wanted: Callable[[int], bool] | None = None,
) -> Iterator[tuple[int, FeatureFrame]]:
    """(time, features) every ``step_ns``, from one pass over the directory.

    ``wanted`` says of a time whether it is looked at; None: of each.
    """
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
        if wanted is None or wanted(end_ns):
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


@dataclass(frozen=True, slots=True)
class _Kept:
    """What was kept of one kind in one frame."""

    x: Floats
    onsets_ns: Times
    causes: Times
    lots: Floats
    now_ns: int
    nodes: list[str]
    fine: bool


class Sampler:
    """Marks each entity of a frame and keeps those about to fail and some others.

    ``horizons_ns``, the shortest first: kept is what foretells within the longest. All parts are
    looked at every ``step_ns``; where that is too seldom for the shortest, :meth:`wanted` asks
    for looks in between.
    """

    def __init__(
        self,
        labels: Labels,
        horizons_ns: Sequence[int],
        share: float,
        seed: int,
        until_ns: int | None = None,
        step_ns: int = STEP_NS,
    ) -> None:
        self.labels = labels
        self.shortest_ns, self.longest_ns = horizons_ns[0], horizons_ns[-1]
        self.share = share
        self.until_ns = until_ns  # a label may not look past this time
        self.step_ns = step_ns
        self.finer = 1
        if 2 * step_ns > self.shortest_ns:
            self.finer = min(max(1, step_ns // FINE_STEP_NS), MOST_FINER)
        while step_ns % self.finer:
            self.finer -= 1
        self.rng = np.random.default_rng([seed, 17])
        self.spans = {node: np.array(spans) for node, spans in labels.spans().items()}
        self.node_onsets = labels.node_onsets()
        self.onsets = {kind: labels.onsets(kind) for kind in KINDS}
        self.onsets["node"] = labels.onsets_of_nodes()
        self.any_onset = np.array(sorted(one.onset_ns for one in labels.failures), np.int64)
        self._cause_of: dict[tuple[Entity, int], int] = {}
        for one in labels.failures:
            entities = {one.entity} if one.entity.kind in CAUSES else set()
            if one.entity.kind != "gpu":
                entities.add(Entity("node", one.entity.node))
            for entity in entities:
                cause = cause_of(entity.kind, one.cause)
                self._cause_of[entity, one.onset_ns] = CAUSES[entity.kind].index(cause)
        self._kept: dict[str, list[_Kept]] = {}
        self._names: dict[str, tuple[str, ...]] = {}

    def is_fine(self, now_ns: int) -> bool:
        """Whether ``now_ns`` lies between two looks at all parts."""
        return now_ns % self.step_ns != 0

    def wanted(self, now_ns: int) -> bool:
        """Whether to look at ``now_ns`` at all."""
        if not self.is_fine(now_ns):
            return True
        low, high = np.searchsorted(
            self.any_onset, [now_ns + LEAST_LEAD_NS, now_ns + self.shortest_ns], side="right"
        )
        return bool(low < high)

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
        if self.until_ns is not None and now_ns + self.shortest_ns > self.until_ns:
            return
        fine = self.is_fine(now_ns)
        ahead_ns = self.shortest_ns if fine else self.longest_ns
        good: dict[str, bool] = {}
        for kind, part in frame.kinds.items():
            if kind not in self.onsets:
                continue
            self._names[kind] = part.names
            count = len(part.entities)
            foretold = np.zeros(count, np.int64)  # onset of the failure that comes, or 0
            coming = dict(self._about_to_fail(kind, now_ns, ahead_ns))
            for row, entity in enumerate(part.entities) if coming else ():
                foretold[row] = coming.get(entity, 0)
            # Other parts of a node that is about to fail are censored: the node goes with it.
            for node in part.nodes:
                if node not in good:
                    good[node] = self.usable(node, now_ns)
            usable = np.array([good[node] for node in part.nodes], bool)[part.node_rows]
            lots = np.ones(count) if fine else self.rng.random(count)
            rows = np.flatnonzero(((foretold > 0) | (lots < self.share)) & usable)
            if len(rows):
                some = [part.entities[row] for row in rows.tolist()]
                onsets = foretold[rows]
                pairs = zip(some, onsets.tolist(), strict=True)
                causes = np.array([self._cause_of.get(one, -1) for one in pairs], np.int64)
                nodes = [entity.node for entity in some]
                self._kept.setdefault(kind, []).append(
                    _Kept(part.values[rows], onsets, causes, lots[rows], now_ns, nodes, fine)
                )

    def _about_to_fail(self, kind: str, now_ns: int, ahead_ns: int) -> Iterator[tuple[Entity, int]]:
        for entity, onsets in self.onsets[kind].items():
            low = int(np.searchsorted(onsets, now_ns + LEAST_LEAD_NS, side="right"))
            if low < len(onsets) and onsets[low] <= now_ns + ahead_ns:
                yield entity, int(onsets[low])

    def looks(self) -> dict[str, Looks]:
        """What was kept, by kind."""
        known_ns = 2**62 if self.until_ns is None else self.until_ns
        found = {}
        for kind, parts in self._kept.items():
            times = [np.full(len(one.onsets_ns), one.now_ns, np.int64) for one in parts]
            fine = [np.full(len(one.onsets_ns), one.fine, bool) for one in parts]
            found[kind] = Looks(
                kind,
                self._names[kind],
                np.concatenate([one.x for one in parts]),
                np.concatenate(times),
                tuple(node for one in parts for node in one.nodes),
                np.concatenate([one.onsets_ns for one in parts]),
                np.concatenate([one.causes for one in parts]),
                np.concatenate([one.lots for one in parts]),
                np.full(sum(map(len, times)), known_ns, np.int64),
                np.concatenate(fine),
                self.share,
                self.shortest_ns if self.finer > 1 else 0,
                1.0 / self.finer,
            )
        return found


def build_looks(
    telemetry: Telemetry,
    *,
    horizons_ns: Sequence[int],
    labels: Labels | None = None,
    negatives_share: float = 0.02,
    seed: int = 0,
    step_ns: int = STEP_NS,
    until_ns: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Looks]:
    """Looks at all parts of a directory, for failures within (15 min, horizon] of each horizon."""
    labels = mined(telemetry) if labels is None else labels
    first_ns, last_ns = telemetry.span_ns()
    end_ns = last_ns if until_ns is None else min(until_ns, last_ns)
    sampler = Sampler(labels, horizons_ns, negatives_share, seed, end_ns, step_ns)
    first_look_ns = first_ns + WARM_UP_NS

    def wanted(now_ns: int) -> bool:
        return first_look_ns <= now_ns <= end_ns and sampler.wanted(now_ns)

    fine_step_ns = step_ns // sampler.finer
    for now_ns, frame in frames(telemetry, fine_step_ns, progress=progress, wanted=wanted):
        sampler.add(now_ns, frame)
    return sampler.looks()


def build(telemetry: Telemetry, *, horizon_ns: int, **asked: Any) -> dict[str, Examples]:
    """Training examples of one horizon; ``asked`` as :func:`build_looks` takes it."""
    found = build_looks(telemetry, horizons_ns=(horizon_ns,), **asked)
    return {kind: some.within(horizon_ns) for kind, some in found.items()}
