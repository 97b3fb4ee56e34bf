"""How often a watch scores: risks may be a little old, facts never."""

from collections.abc import Iterable

from collectors.sample import sample
from models.features import FeatureEngine
from models.features.frame import FeatureFrame
from models.rules import Rules
from models.silence import SilenceTracker
from models.voices import Risk
from models.watch import Watch

SECOND_NS = 10**9
START_NS = 1_790_000_000 * SECOND_NS


class Counting:
    """A model that says nothing and counts how often it is asked."""

    name = "counting"
    horizon_seconds = 3600.0
    kinds: tuple[str, ...] = ("gpu",)

    def __init__(self) -> None:
        self.asked_ns: list[int] = []

    def score(self, frame: FeatureFrame, now_ns: int) -> list[Risk]:
        self.asked_ns.append(now_ns)
        return []


def asked_at(seconds: Iterable[int], score_seconds: float) -> list[int]:
    model = Counting()
    watch = Watch(Rules(), SilenceTracker(), FeatureEngine(), [model], score_seconds=score_seconds)
    for second in seconds:
        watch.judge(START_NS + second * SECOND_NS, {"n1": 8})
    return [(at - START_NS) // SECOND_NS for at in model.asked_ns]


def test_each_judgement_scores_unless_told_otherwise() -> None:
    assert asked_at(range(0, 30, 5), 0.0) == [0, 5, 10, 15, 20, 25]


def test_a_score_is_used_until_it_is_too_old_or_the_clock_goes_back() -> None:
    assert asked_at([0, 5, 10, 15, 20, 40], 15.0) == [0, 15, 40]
    assert asked_at([100, 105, 0, 5], 15.0) == [100, 0]


def test_facts_are_told_at_once_and_a_return_to_service_is_scored_anew() -> None:
    model = Counting()
    watch = Watch(Rules(), SilenceTracker(), FeatureEngine(), [model], score_seconds=60.0)
    watch.judge(START_NS, {"n1": 8})
    text: dict[str, float | str] = {"text": "NVRM: Xid (PCI:0000:9b:00): 79", "severity": 3.0}
    now_ns = START_NS + SECOND_NS
    watch.ingest([sample("event", now_ns, text, node="n1", kind="xid", code="79")], now_ns)
    assert watch.judge(now_ns, {"n1": 8}).facts
    watch.clear("n1", now_ns)
    watch.judge(now_ns + SECOND_NS, {"n1": 8})
    assert len(model.asked_ns) == 2
