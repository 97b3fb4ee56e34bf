"""The desk of learning: everything that the head knows and does about learned models.

The head asks it which models score, hands it each judgement, and tells people its alerts. It
never drains: a model whose gate is off is kept apart before policy sees its risks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectors.sample import Sample, sample
from daemon.alerts.active import WARNING, Alert
from daemon.config import Config
from daemon.drains.ledger import Ledger
from daemon.learning.board import DAY_NS, WINDOW_DAYS, Book, Score, plain, score
from daemon.learning.choice import Choice, choose
from daemon.learning.night import Answer
from daemon.learning.shadow import would_drain
from daemon.learning.shelf import Kept, Shelf, ShelfError, kept_of
from daemon.policy.decide import Situation
from daemon.recovery import rows_of
from daemon.store.reader import Reader
from models.features import FeatureFrame
from models.labels import LabelMiner
from models.risk import RiskModel
from models.rival import Rival
from models.voices import Risk
from models.watch import Judgement

if TYPE_CHECKING:
    from models.drift import Drift
    from models.learned import LearnedRisk

SECOND_NS = 1_000_000_000
SELF = "tocsin"
# Events that labels are made of; inventories and chatter stay in the store.
LABEL_KINDS = ("xid", "gpu_lost", "mce", "edac", "link", "sel", "reboot", "verdict")
# So many drifted features are named in an alert.
_NAMED = 5
# A feature or two always moves; from this share of them on, the fleet has.
_MOVED_SHARE = 0.1
_LEAST_MOVED = 3
_LEAST_DAYS = 7


class Learning:
    """Which model scores, what it would have done, and whether it still fits the fleet."""

    def __init__(self, config: Config, ledger: Ledger, store: Path) -> None:
        self.config = config
        self.ledger = ledger
        self.reader = Reader(store)
        self.shelf = Shelf(config.head.state_dir / "models")
        self.book = Book(ledger.database)
        self.choice = Choice()
        self.drift: Drift | None = None
        self.drift_words = ""
        self.night_words = "no training yet"
        self.night_fault = ""
        self.asked = False
        self._shadow: tuple[Risk, ...] = ()
        self._recorded: tuple[Risk, ...] = ()
        # The newest risks, by which choice they were looked through, and those of them that act.
        self._acting: tuple[tuple[Risk, ...], Choice, tuple[Risk, ...]] = ((), self.choice, ())
        self._scores: list[Score] = []
        self.open()

    # ---- which model ------------------------------------------------------------------

    def open(self) -> None:
        """Chooses and loads the model that scores from now on."""
        self.choice = choose(self.config.risk, self.shelf)
        self.drift, self.drift_words = None, ""
        self._shadow = self._recorded = ()
        model = self.choice.model
        if model is not None and "histograms" in model.facts:
            from models.drift import Drift

            try:
                self.drift = Drift.of(model.facts["histograms"])
            except ValueError as error:
                self.drift_words = f"drift is not watched: {error}"

    @property
    def models(self) -> Sequence[RiskModel]:
        """All that score: the rival, and the learned model beside it."""
        return [Rival()] if self.choice.model is None else [Rival(), self.choice.model]

    @property
    def judging(self) -> Sequence[RiskModel]:
        """Those that score in each judgement: a model whose gate is off scores beside it."""
        return self.models if self.choice.acts else [Rival()]

    @property
    def words(self) -> str:
        """For the status: who scores."""
        return f"{Rival.name}; learned: {self.choice.words}"

    def promote(self, name: str, user: str, why: str, now_ns: int) -> str:
        """``name`` scores from now on. In the hand thread. Raises ShelfError."""
        if self.config.risk.model is not None:
            raise ShelfError(
                f"risk.model is set to {self.config.risk.model}: take it out of the "
                "configuration, then promote"
            )
        before = self.shelf.promoted()
        self.shelf.promote(name)
        self.open()
        if self.choice.refused:
            refused = self.choice.refused
            self.shelf.rollback()
            if before:
                self.shelf.promote(before)
            self.open()
            raise ShelfError(f"{name} is refused: {refused}")
        self.ledger.say(
            now_ns, user=user, verb="model_promote", subject=name, text=why,
            detail={"before": before, "gate": self.choice.acts},
        )  # fmt: skip
        return f"{name} scores from now on ({self.choice.words}); before: {before or 'none'}"

    def rollback(self, user: str, now_ns: int) -> str:
        """What scored before scores again. In the hand thread. Raises ShelfError."""
        was, now = self.shelf.rollback()
        self.open()
        self.ledger.say(
            now_ns, user=user, verb="model_rollback", subject=was, text=f"back to {now or 'none'}",
            detail={"before": was, "now": now},
        )  # fmt: skip
        return f"{was} no longer scores; now: {self.choice.words}"

    def trained(self, name: str, answer: Answer, now_ns: int) -> bool:
        """Writes down what a training came to; whether its model goes on. In the hand thread."""
        self.night_fault = ""
        self.night_words = f"{_day(now_ns // DAY_NS)}: {answer.why}"
        if answer.state != "judged":
            return False
        self.ledger.say(
            now_ns, user=SELF, verb="model_trained", subject=name, text=answer.why,
            detail={"promote": answer.promote, "gate": answer.gate, "evidence": answer.evidence},
        )  # fmt: skip
        self.shelf.prune(self.config.learning.keep_models)
        wanted = answer.promote and self.config.learning.promote
        return wanted and self.config.risk.model is None

    # ---- each judgement ----------------------------------------------------------------

    def acting(self, judgement: Judgement) -> Judgement:
        """The judgement without the risks of a model whose gate is off.

        Only what may act passes: a model that was chosen, or left, while this was being judged has
        scored by its own gate and not by that of the one that stands there now.
        """
        choice = self.choice  # the hand's thread may choose anew meanwhile
        risks, by, acting = self._acting
        if risks is not judgement.risks or by is not choice:
            # New scores; until the next ones the same tuple is told, and nobody sorts it anew.
            may_act = {Rival.name} | ({choice.name} if choice.acts else set())
            acting = tuple(one for one in judgement.risks if one.model in may_act)
            self._acting = judgement.risks, choice, acting
        return replace(judgement, risks=acting)

    @property
    def shadow(self) -> LearnedRisk | None:
        """The model that scores in shadow, if one does."""
        return None if self.choice.acts else self.choice.model

    def overheard(self, model: LearnedRisk, risks: Sequence[Risk]) -> None:
        """What ``model`` says in shadow; nothing if another was chosen while it scored."""
        if model is self.shadow:
            self._shadow = tuple(risks)

    def record(self, situation: Situation, now_ns: int) -> None:
        """What the model in shadow would have drained, into the ledger. In the hand thread."""
        if not self._shadow or self._same_as_recorded():
            return
        self._recorded = self._shadow
        limits = self.config.policy
        threshold = self.choice.threshold or limits.risk_threshold
        view = self.ledger.view(now_ns)
        made = would_drain(situation, self._shadow, threshold, limits, view, now_ns)
        self.ledger.record(made, now_ns)

    def _same_as_recorded(self) -> bool:
        """Risks are scored less often than judged; the same Risk objects tell nothing new."""
        mine, theirs = self._shadow, self._recorded
        return len(mine) == len(theirs) and all(a is b for a, b in zip(mine, theirs, strict=True))

    def alerts(self, now_ns: int) -> list[Alert]:
        """What people should know of the models now. None of it drains anything."""
        # It is known to be made of another fleet: `tocsin model` says how far off this one is.
        drift_words = "" if self.choice.source == "shipped" else self.drift_words
        told = [
            ("model", "the learned model is refused: only the rival scores", self.choice.refused),
            ("drift", f"{self.choice.name} may fit this fleet no more", drift_words),
            ("training", "the night's training failed", self.night_fault),
        ]
        return [
            Alert(f"learning/{key}", WARNING, title, text, "", now_ns)
            for key, title, text in told
            if text
        ]

    # ---- each hour ---------------------------------------------------------------------

    def look(self, frame: FeatureFrame, now_ns: int) -> None:
        """One look at all parts: what the model expects, and how the features lie."""
        model = self.choice.model
        if model is None:
            return
        names, probability = model.nodes(frame)
        per_day = float(probability.sum()) * 86_400.0 / model.horizon_seconds
        self.book.looked(model.name, now_ns, len(names), per_day)
        if self.drift is not None:
            self.drift.look(frame)

    # ---- each day ----------------------------------------------------------------------

    def count(self, now_ns: int) -> list[Sample]:
        """Failures, scoreboards and drift of the last days; the points to be stored.

        Reads the store, and takes seconds on a large one. Not in the hand thread.
        """
        since_ns = now_ns - (WINDOW_DAYS * DAY_NS)
        onsets = self._onsets(now_ns)
        points: list[Sample] = []
        self._scores = []
        day = now_ns // DAY_NS
        for model in self.models:
            first = self.book.first_day(model.name)
            begin_ns = since_ns if first is None else max(since_ns, first * DAY_NS)
            within = {
                node: [at for at in some if at > begin_ns]
                for node, some in onsets.items()
                if node != ""
            }
            horizon_ns = int(model.horizon_seconds * SECOND_NS)
            would = self.book.would(model.name, begin_ns)
            made = score(model.name, day, would, within, horizon_ns, now_ns)
            node_days, expected = self.book.sums(model.name, begin_ns // DAY_NS, day)
            made = replace(made, node_days=node_days, expected=expected)
            self._scores.append(made)
            self.book.keep(json.dumps(plain(made)), model.name, day)
            points += _points(
                model.name,
                now_ns,
                {
                    name: value
                    for name, value in plain(made).items()
                    if name not in ("model", "day")
                },
            )
        points += self._drifted(now_ns, onsets)
        return points

    def _drifted(self, now_ns: int, onsets: Mapping[str, Sequence[int]]) -> list[Sample]:
        """Drift of features, of the rate of alarms and of calibration, as words and points."""
        from models.drift import unlike

        model = self.choice.model
        words: list[str] = []
        points: dict[str, float] = {}
        if model is None:
            self.drift_words = ""
            return []
        moved = self.drift.moved() if self.drift is not None else []
        far = [one for one in moved if one.far]
        if moved:
            points |= {"psi_max": moved[0].psi, "psi_far": len(far), "psi_of": len(moved)}
        least = max(min(_LEAST_MOVED, len(moved)), _MOVED_SHARE * len(moved))
        if far and len(far) >= least:
            named = ", ".join(one.words for one in far[:_NAMED])
            words.append(
                f"{len(far)} of the {len(moved)} features that it looks at lie otherwise than in "
                f"its training, the farthest: {named}"
            )
        made = next((one for one in self._scores if one.model == model.name), None)
        expected_alarms = _float(model.facts.get("alarms_per_1000_node_days"))
        if made is not None and made.node_days > 0:
            points |= {"alarms_per_1000_node_days": 1000 * made.drains / made.node_days}
            if expected_alarms is not None:
                usual = expected_alarms * made.node_days / 1000
                if unlike(made.drains, usual) > 0:
                    words.append(
                        f"it would have drained {made.drains} nodes in {WINDOW_DAYS} days, where "
                        f"{usual:.1f} were usual when it was judged"
                    )
            words += self._calibration(made, now_ns, onsets, points)
        if self.drift is not None:
            self.drift.forget()
        self.drift_words = "; ".join(words)
        return _points(model.name, now_ns, points)

    def _calibration(
        self,
        made: Score,
        now_ns: int,
        onsets: Mapping[str, Sequence[int]],
        points: dict[str, float],
    ) -> list[str]:
        """Failures said against failures that came, once there are enough days of both."""
        from models.drift import unlike

        first = self.book.first_day(made.model)
        day = now_ns // DAY_NS
        begin = max(day - WINDOW_DAYS, first if first is not None else day)
        if day - begin < _LEAST_DAYS:
            return []
        came = sum(begin * DAY_NS <= at < day * DAY_NS for some in onsets.values() for at in some)
        points |= {"failures_said": made.expected, "failures_came": came}
        if not unlike(came, made.expected):
            return []
        return [
            f"it said {made.expected:.1f} failures in {day - begin} days, and {came} came: its "
            "probabilities are not to be believed as they are"
        ]

    def _onsets(self, now_ns: int) -> dict[str, list[int]]:
        """Sorted onsets of each node's failures in the window and a little before."""
        miner = LabelMiner()
        begin_ns = now_ns - (WINDOW_DAYS + 3) * DAY_NS
        asked: Iterable[tuple[str, Mapping[str, Sequence[str]]]] = (
            ("event", {"kind": LABEL_KINDS}),
            ("slurm_event", {}),
        )
        found: list[Sample] = []
        for measurement, tags in asked:
            for table in self.reader.hours(
                measurement, begin_ns, now_ns, dict(tags), step_ns=DAY_NS
            ):
                found += rows_of(measurement, table)
        for one in sorted(found, key=lambda one: one.time_ns):
            miner.observe(one)
        nodes = miner.labels().node_onsets()
        return {node: [int(at) for at in times] for node, times in nodes.items()}

    # ---- what people see ---------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """For ``tocsin model``: plain JSON data."""
        return {
            "model": self.choice.name,
            "source": self.choice.source,
            "path": str(self.choice.path or ""),
            "acts": self.choice.acts,
            "threshold": self.choice.threshold,
            "refused": self.choice.refused,
            "words": self.choice.words,
            "models": [asdict(one) for one in self._known()],
            "promoted": self.shelf.stack(),
            "night": self.night_fault or self.night_words,
            "drift": self.drift_words,
            "scoreboard": [
                {**json.loads(body), "day": _day(day)} for day, _, body in self.book.kept()
            ],
        }

    def _known(self) -> list[Kept]:
        """The models on the shelf, and the one that comes with tocsin where that scores."""
        found, choice = self.shelf.listed(), self.choice
        if choice.source == "shipped" and choice.path is not None and not choice.refused:
            found.append(kept_of(choice.name, choice.path, True))
        return found

    @property
    def score_words(self) -> str:
        """The newest scoreboard of the learned model in one line, or empty."""
        return next((one.words for one in self._scores if one.model == self.choice.name), "")


def _points(model: str, now_ns: int, values: Mapping[str, float]) -> list[Sample]:
    """One ``learning`` point for each number."""
    return [
        sample("learning", now_ns, {"value": float(value)}, model=model, metric=name)
        for name, value in values.items()
    ]


def _day(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()


def _float(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return float(value) if good else None
