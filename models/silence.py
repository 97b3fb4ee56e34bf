"""Silence: who is not heard, since when, and whose fault it looks like.

Silence is never a fault of the node. It says that we do not hear, and names three causes: ``agent``
(nothing comes from the node at all), ``source`` (one source does not come while others do) and
``hung`` (the source itself says that its worker is stuck). Policy decides what that means; a fleet
that falls silent at once is one cause, most likely ours.

Every source's cadence is learned from when its readings *arrive*, so that a wrong clock on a node
makes nobody silent. Our own restart is not silence: a node must have been heard since our start,
or its expected time must have passed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from collectors.sample import Sample
from models.rule_state import stepped_back
from models.runs import Run
from models.turns import Turn, put_together, some_at_once
from models.voices import Silence

SECOND_NS = 1_000_000_000
_SOURCES_LIMIT = 64


class SilenceOptions(BaseModel):
    """When somebody counts as silent. All times are seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Missing this many of its own intervals makes a source silent ...
    missed_intervals: float = Field(default=4.0, gt=1, le=100)
    # ... but never sooner than this, and never later.
    low_seconds: float = Field(default=60.0, gt=0, le=86_400)
    high_seconds: float = Field(default=7_200.0, gt=0, le=604_800)
    # How often a source is expected whose cadence is not known yet.
    expected_seconds: float = Field(default=60.0, gt=0, le=86_400)
    # A source that has not come for this long is taken to be switched off, not silent.
    forget_seconds: float = Field(default=7 * 86_400.0, gt=0)
    # The share of expected nodes that must be silent for the fleet to count as silent.
    fleet_ratio: float = Field(default=0.5, gt=0, le=1)


@dataclass(slots=True)
class _Source:
    """When one source of one node was heard, and how often it comes."""

    heard_ns: int = 0  # arrival of the newest reading
    time_ns: int = 0  # the reading's own time
    interval_ns: int = 0
    up: bool = True
    hung: bool = False
    down_since_ns: int = 0
    fault: str = ""


@dataclass(slots=True)
class _Node:
    heard_ns: int = 0
    expected_ns: int = 0  # since when somebody expects to hear it
    well_until_ns: int = 0  # nothing of it can be silent before; saves looking at 10,000 nodes
    sources: dict[str, _Source] = field(default_factory=dict)


class SilenceTracker:
    """Learns who speaks how often and tells who does not. Not safe for many threads."""

    def __init__(self, options: SilenceOptions | None = None) -> None:
        self.options = options or SilenceOptions()
        self._nodes: dict[str, _Node] = {}
        self._expected: frozenset[str] = frozenset()
        self._started_ns = 0

    # ---- in -----------------------------------------------------------------------------------

    def expect(self, nodes: Iterable[str], now_ns: int) -> None:
        """Says which nodes should be heard. Others are forgotten once they are silent."""
        self._start(now_ns)
        expected = frozenset(nodes)
        if expected == self._expected:
            return
        for name in expected - self._expected:
            node = self._nodes.setdefault(name, _Node())
            node.expected_ns = now_ns
        for name in self._expected - expected:
            self._nodes.pop(name, None)
        self._expected = expected

    def observe(self, sample: Sample, arrival_ns: int) -> None:
        """Takes in one sample: anything shows that the node is heard, ``source`` what works.

        History that is read again after a restart comes this way too; our start is therefore
        the first time that somebody asks, not the first sample.
        """
        name = sample.tag("node")
        if not name:
            return
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node(expected_ns=arrival_ns)
        if sample.measurement == "source":
            self._source(node, sample.tag("source"), sample, arrival_ns)
        elif sample.measurement in _NODE_MEASUREMENTS:
            node.heard_ns = max(node.heard_ns, arrival_ns)
            if not any(map(_tells_itself, node.sources)):
                # Foreign senders write no ``source`` readings: what comes speaks for itself.
                self._source(node, _PLAIN + sample.measurement, sample, arrival_ns)

    def observe_run(self, run: Run, arrival_ns: int) -> None:
        """:meth:`observe` of each sample of a run, where one tells as much as all of them."""
        node = self._nodes.get(run.node)
        own = node is not None and run.measurement in _NODE_MEASUREMENTS
        if node is not None and own and any(map(_tells_itself, node.sources)):
            node.heard_ns = max(node.heard_ns, arrival_ns)
            return
        for sample in run.samples:
            self.observe(sample, arrival_ns)

    def _source(self, node: _Node, name: str, sample: Sample, arrival_ns: int) -> None:
        if not _from_head(name):
            node.heard_ns = max(node.heard_ns, arrival_ns)
        source = node.sources.get(name)
        if source is None:
            if len(node.sources) >= _SOURCES_LIMIT:
                return
            if _tells_itself(name):
                for plain in [one for one in node.sources if one.startswith(_PLAIN)]:
                    del node.sources[plain]
            source = node.sources[name] = _Source()
            node.well_until_ns = 0
        if stepped_back(source.time_ns, sample.time_ns, arrival_ns):
            source.time_ns = 0
        if sample.time_ns < source.time_ns:
            return
        self._heard(source, sample, arrival_ns)
        if not source.up:
            node.well_until_ns = 0

    def _heard(self, source: _Source, sample: Sample, arrival_ns: int) -> None:
        if source.time_ns:
            # The reading's own times give the cadence: a spool that is emptied in one go
            # would make every source look fast.
            step_ns = sample.time_ns - source.time_ns
            if 0 < step_ns < self.options.forget_seconds * SECOND_NS:
                source.interval_ns = _paced(source.interval_ns or step_ns, step_ns)
        source.time_ns = sample.time_ns
        source.heard_ns = max(source.heard_ns, arrival_ns)
        up = sample.measurement != "source" or sample.number("up") == 1.0
        fault = sample.text("fault")
        if up:
            source.down_since_ns = 0
        elif source.up or not source.down_since_ns:
            source.down_since_ns = arrival_ns
        source.up, source.fault = up, fault
        source.hung = not up and _is_hung(fault)

    def _start(self, now_ns: int) -> None:
        if not self._started_ns:
            self._started_ns = now_ns

    # ---- out ----------------------------------------------------------------------------------

    def silences(self, now_ns: int) -> list[Silence]:
        """Who is silent at ``now_ns``: by node; a silent node's sources are not told apart."""
        self._start(now_ns)
        found: list[Silence] = []
        for name, node in self._nodes.items():
            if now_ns < node.well_until_ns:
                continue
            whole = self._node_silence(name, node, now_ns)
            if whole is not None:
                found.append(whole)
                found.extend(self._source_silences(name, node, now_ns, from_head=True))
                continue
            parts = self._source_silences(name, node, now_ns)
            found.extend(parts)
            if not parts and node.sources and all(one.up for one in node.sources.values()):
                node.well_until_ns = min(
                    *(one.heard_ns + self._limit_ns(one) for one in node.sources.values()),
                    node.heard_ns + self._node_limit_ns(node.sources.values()),
                )
        return sorted(found, key=lambda one: (one.node, one.source))

    def fleet_silent(self, now_ns: int) -> bool:
        """Whether so many expected nodes are silent at once that the cause must be ours."""
        if len(self._expected) < 2:
            return False
        heard_before = [
            node
            for name, node in self._nodes.items()
            if name in self._expected and (node.heard_ns or self._overdue(node, now_ns))
        ]
        silent = sum(self._node_silence("", node, now_ns) is not None for node in heard_before)
        return bool(heard_before) and silent >= self.options.fleet_ratio * len(heard_before)

    def coverage(self, node: str, now_ns: int) -> float:
        """The share of the node's own sources that are heard and work, 0 to 1.

        A node that was never heard is covered by nothing.
        """
        known = self._nodes.get(node)
        if known is None or not known.sources:
            return 0.0
        if now_ns < known.well_until_ns:
            return 1.0
        forget_ns = int(self.options.forget_seconds * SECOND_NS)
        counted = [one for one in known.sources.values() if now_ns - one.heard_ns <= forget_ns]
        if not counted:
            return 0.0
        good = sum(one.up and now_ns - one.heard_ns <= self._limit_ns(one) for one in counted)
        return good / len(counted)

    def _node_silence(self, name: str, node: _Node, now_ns: int) -> Silence | None:
        """The agent is silent when none of its sources is heard any more."""
        own = [one for source, one in node.sources.items() if not _from_head(source)]
        if not own:
            expected = not name or name in self._expected
            if not expected or not self._overdue(node, now_ns):
                return None
            since_ns = node.expected_ns
            return self._silence(name, "", "agent", since_ns, now_ns, "was never heard")
        limit_ns = self._node_limit_ns(own)
        age_ns = now_ns - node.heard_ns
        if age_ns <= limit_ns or not self._judged(node.heard_ns, limit_ns, now_ns):
            return None
        return self._silence(name, "", "agent", node.heard_ns, now_ns, "nothing comes from it")

    def _source_silences(
        self, name: str, node: _Node, now_ns: int, from_head: bool = False
    ) -> list[Silence]:
        found: list[Silence] = []
        forget_ns = int(self.options.forget_seconds * SECOND_NS)
        for source_name, source in sorted(node.sources.items()):
            if from_head and not _from_head(source_name):
                continue
            age_ns = now_ns - source.heard_ns
            limit_ns = self._limit_ns(source)
            if age_ns > forget_ns:
                continue
            if age_ns > limit_ns:
                if self._judged(source.heard_ns, limit_ns, now_ns):
                    text = f"{source_name} does not come, others do"
                    found.append(
                        self._silence(name, source_name, "source", source.heard_ns, now_ns, text)
                    )
            elif source.hung:
                text = f"{source_name} is stuck: {source.fault}"
                since_ns = source.down_since_ns
                found.append(self._silence(name, source_name, "hung", since_ns, now_ns, text))
            elif not source.up and now_ns - source.down_since_ns > limit_ns:
                text = f"{source_name} can't be read: {source.fault}"
                since_ns = source.down_since_ns
                found.append(self._silence(name, source_name, "source", since_ns, now_ns, text))
        return found

    def _silence(
        self, name: str, source: str, cause: str, since_ns: int, now_ns: int, text: str
    ) -> Silence:
        age_seconds = round((now_ns - since_ns) / SECOND_NS, 3)
        return Silence(name, source, cause, since_ns, age_seconds, text)

    def _limit_ns(self, source: _Source) -> int:
        """How long a source may be late. One whose cadence is not known yet has all the time."""
        options = self.options
        interval = source.interval_ns / SECOND_NS
        high = max(options.high_seconds, 2 * interval)
        if not interval:
            return int(high * SECOND_NS)
        seconds = min(max(options.missed_intervals * interval, options.low_seconds), high)
        return int(seconds * SECOND_NS)

    def _node_limit_ns(self, sources: Iterable[_Source]) -> int:
        """How long a node may be late: as its quickest source, or as nodes are expected."""
        paced = [self._limit_ns(one) for one in sources if one.interval_ns]
        options = self.options
        expected = max(options.missed_intervals * options.expected_seconds, options.low_seconds)
        return min(paced, default=int(expected * SECOND_NS))

    def _judged(self, heard_ns: int, limit_ns: int, now_ns: int) -> bool:
        """Whether silence may be told: heard since our start, or twice the time is up."""
        return heard_ns >= self._started_ns or now_ns - self._started_ns > 2 * limit_ns

    def _overdue(self, node: _Node, now_ns: int) -> bool:
        """Whether a node that was never heard should have been by now."""
        options = self.options
        limit = max(options.missed_intervals * options.expected_seconds, options.low_seconds)
        since_ns = max(node.expected_ns, self._started_ns)
        return now_ns - since_ns > 2 * limit * SECOND_NS

    # ---- to JSON and back ---------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """All that is remembered, as JSON data. The start is not: a restart begins anew."""
        return put_together(self.dump_turns())

    def dump_turns(self) -> Iterator[Turn]:
        """The same a few nodes at a time, each as it is in its turn: readings may come between."""
        yield ("expected",), sorted(self._expected)
        yield from some_at_once(("nodes",), self._nodes, _dump_node)

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes back what ``dump`` gave; what was heard before our start is only history."""
        self._nodes = {
            name: _Node(
                heard_ns,
                expected_ns,
                0,
                {source: _Source(*parts) for source, parts in sources.items()},
            )
            for name, (heard_ns, expected_ns, sources) in state["nodes"].items()
        }
        # Who went between two turns of a dump is expected anew, if at all.
        self._expected = frozenset(state["expected"]) & self._nodes.keys()
        self._started_ns = 0


def _dump_node(node: _Node) -> list[Any]:
    return [
        node.heard_ns,
        node.expected_ns,
        {
            source: [
                one.heard_ns,
                one.time_ns,
                one.interval_ns,
                one.up,
                one.hung,
                one.down_since_ns,
                one.fault,
            ]
            for source, one in node.sources.items()
        },
    ]


def _paced(interval_ns: int, step_ns: int) -> int:
    """The learned interval after one more step: quick to grow, slow to shrink, because a source
    that now and then has more to say is not late when it has not."""
    if step_ns > interval_ns:
        return interval_ns + (min(step_ns, 4 * interval_ns) - interval_ns) // 2
    return interval_ns - (interval_ns - step_ns) // 16


# Sources that the head reads about a node; they say nothing about the node's agent.
HEAD_SOURCES = frozenset(
    {"slurm", "bmc", "ipmi", "redfish", "fabric", "dcgm_exporter", "dcgm_exporters", "head"}
)
# What only the node itself can have read, for senders that write no ``source`` readings.
_NODE_MEASUREMENTS = frozenset({"gpu", "host", "disk", "pcie", "ib_port"})
_PLAIN = "readings:"
_HUNG_WORDS = (
    "hung",
    "stuck",
    "state d",
    "did not answer",
    "did not end",
    "does not end",
    "given up",
)


def _from_head(source: str) -> bool:
    return source in HEAD_SOURCES


def _tells_itself(source: str) -> bool:
    """Whether a source's name comes from a ``source`` reading of the node's own agent."""
    return not source.startswith(_PLAIN) and not _from_head(source)


def _is_hung(fault: str) -> bool:
    low = fault.lower()
    return any(word in low for word in _HUNG_WORDS)
