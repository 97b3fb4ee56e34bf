"""The watch: readings in, judgement out. The same code runs live, in replay and in the demo.

It composes the rules (facts), the silence tracker, the features and the risk models. It
touches nothing outside: readings, times and expectations are handed in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectors.sample import Sample
from models.facility import FACILITY_MEASUREMENTS, Facility, GroupEvent
from models.features import FeatureEngine, FeatureFrame
from models.heat import NEEDS as HEAT_NEEDS
from models.heat import Heat
from models.risk import RiskModel
from models.rules import RULE_MEASUREMENTS, Rules
from models.rules_links import LINK_MEASUREMENTS
from models.runs import Run, runs_of
from models.silence import SilenceTracker
from models.turns import Turn, below, put_together
from models.voices import Fact, Risk, Silence


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the three voices say at ``now_ns``, and how much of each node is heard (0 to 1)."""

    now_ns: int
    facts: tuple[Fact, ...] = ()
    silences: tuple[Silence, ...] = ()
    risks: tuple[Risk, ...] = ()
    coverage: Mapping[str, float] = field(default_factory=dict)
    group_events: tuple[GroupEvent, ...] = ()


def needs_of(models: Sequence[RiskModel], kinds: Sequence[str]) -> dict[str, frozenset[str]] | None:
    """The features that somebody looks at, by kind; None, for all, when a model does not say."""
    needed = {kind: set(HEAT_NEEDS if kind == "gpu" else ()) for kind in kinds}
    for one in models:
        needs: Mapping[str, Collection[str]] | None = getattr(one, "needs", None)
        if needs is None:
            return None
        for kind, names in needs.items():
            needed[kind] |= set(names)
    return {kind: frozenset(names) for kind, names in needed.items()}


class Watch:
    """Rules, silence, features and risk models behind two calls: ``ingest`` and ``judge``."""

    def __init__(
        self,
        rules: Rules,
        silence: SilenceTracker,
        features: FeatureEngine,
        models: Sequence[RiskModel] = (),
        facility: Facility | None = None,
        score_seconds: float = 0.0,
    ) -> None:
        self.rules = rules
        self.silence = silence
        self.features = features
        self.use(models)
        self.facility = facility or Facility()
        self.heat = Heat()
        # Risks move slowly and cost most of a judgement: none is older than this.
        self.score_ns = int(score_seconds * 1e9)
        self._scored: tuple[int, tuple[Risk, ...], tuple[Fact, ...]] | None = None

    @property
    def measurements(self) -> frozenset[str]:
        """What any part of it listens to: a restart reads just these again."""
        return RULE_MEASUREMENTS | LINK_MEASUREMENTS | self.features.measurements | {"slurm_event"}

    def use(self, models: Sequence[RiskModel]) -> None:
        """These models score from the next judgement on."""
        self.models = tuple(models)
        # Only what somebody looks at is reckoned.
        self.kinds = tuple(sorted({"gpu", *(kind for one in self.models for kind in one.kinds)}))
        self.names = needs_of(self.models, self.kinds)
        self.forget_scores()

    def ingest(self, samples: Sequence[Sample], arrival_ns: int) -> None:
        """Takes in what one write brought. ``arrival_ns`` is the head's own time."""
        self.ingest_runs(runs_of(samples), arrival_ns)

    def ingest_runs(self, runs: Sequence[Run], arrival_ns: int) -> None:
        """The same, where somebody else looks at the write's runs too."""
        for run in runs:
            self.silence.observe_run(run, arrival_ns)
            self.rules.observe_run(run, arrival_ns)
            if run.measurement in FACILITY_MEASUREMENTS:
                for sample in run.samples:
                    self.facility.observe(sample, arrival_ns)
        self.features.observe_runs(runs, arrival_ns)

    def judge(
        self,
        now_ns: int,
        expected_gpus: Mapping[str, int],
        groups: Mapping[str, Sequence[str]] | None = None,
    ) -> Judgement:
        """What is certain, what is silent and what is likely at ``now_ns``.

        ``expected_gpus`` is what Slurm's configuration says of each node that it knows;
        ``groups`` gives the racks and power feeds of each node.
        """
        self.nothing_later(now_ns)
        self.silence.expect(expected_gpus, now_ns)
        risks, hot = self._score(now_ns)
        return Judgement(
            now_ns,
            (*self.rules.facts(now_ns, expected_gpus), *hot),
            tuple(self.silence.silences(now_ns)),
            risks,
            {node: self.silence.coverage(node, now_ns) for node in expected_gpus},
            tuple(self.facility.events(now_ns, groups)) if groups else (),
        )

    def _score(self, now_ns: int) -> tuple[tuple[Risk, ...], tuple[Fact, ...]]:
        if self._scored is not None and 0 <= now_ns - self._scored[0] < self.score_ns:
            return self._scored[1:]
        risks: list[Risk] = []
        hot: list[Fact] = []
        if self.models:
            frame: FeatureFrame = self.features.frame(now_ns, self.kinds, self.names)
            for model in self.models:
                risks.extend(model.score(frame, now_ns))
            hot = self.heat.facts(frame)
        self._scored = now_ns, tuple(risks), tuple(hot)
        return self._scored[1:]

    def clear(self, node: str, at_ns: int) -> None:
        """The node came back at ``at_ns``: what was certain before no longer counts."""
        self.rules.clear(node, at_ns)
        self.heat.clear(node)
        self.forget_scores()

    def nothing_later(self, now_ns: int) -> None:
        """It is ``now_ns``: where the head's clock was set back, nothing was later than that."""
        self.rules.nothing_later(now_ns)
        self.features.nothing_later(now_ns)

    def forget_scores(self) -> None:
        """Has the next judgement score, however new the last scores are."""
        self._scored = None

    def dump(self) -> dict[str, Any]:
        """The state but for the features as JSON data (these keep their own file)."""
        return put_together(self.dump_turns())

    def dump_turns(self) -> Iterator[Turn]:
        """The same in short turns, between which readings may come.

        Parts are then of different moments. Put together they are right for whoever is shown again
        what came from before the first turn on: each part knows what it was shown already.
        """
        yield from below("rules", self.rules.dump_turns())
        yield from below("silence", self.silence.dump_turns())
        yield ("facility",), self.facility.dump()
        yield ("heat",), self.heat.dump()

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes back what ``dump`` gave."""
        self.rules.load(state["rules"])
        self.silence.load(state["silence"])
        self.facility.load(state["facility"])
        self.heat.load(state.get("heat", []))
        self._scored = None
