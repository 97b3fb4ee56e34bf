"""Which samples may enter: whose they are, what tags they carry, how many series there are.

A *series* is a measurement with one set of tags. Every store pays for series, so each node
has a budget of them for each measurement; of names (:mod:`daemon.gate.names`) and of events, which
have rows in a database beside, there are budgets too. Job ids, users and texts are not tags:
they would make a new series for every job. What is refused is answered line by line, counted,
and told by node (``cut``).

The budget of all nodes together binds only those that hold more than their share: what a few
senders use up is never another node's. A share is given to a node that has a token of its own or
is known to Slurm; names that a relay invents have none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pydantic import Field

from collectors.sample import TEXT_LIMIT_CHARACTERS, TEXT_MEASUREMENTS, Sample, Tags, clip
from daemon.gate.names import Names
from daemon.gate.tokens import ANY_NODE, NODE_NAME
from daemon.schema import fields as schema_fields
from daemon.schema import metric_of
from daemon.settings import Section
from daemon.store.parts import is_too_long

# Our own measurements that hold numbers only, and those that only the head may write.
NUMBER_MEASUREMENTS = frozenset(
    {"gpu", "ib_port", "ib_plane", "fabric_port", "bmc", "host", "disk", "pcie", "slurm_node"}
)
HEAD_MEASUREMENTS = frozenset(
    {"fabric", "fabric_port", "slurm_node", "slurm_event", "risk", "decision"}
    | {"fleet", "fleet_top", "fleet_histogram", "learning"}
)
# Events (kind, code) that only the head may tell, code "" for every code: where a node hangs,
# whether it is still the same, and what people said of it. A node that could say them would
# place its faults on others, wipe its own history, or teach the models.
HEAD_EVENTS = {
    ("inventory", "link"): "which cable hangs where is told by the head's sweep alone",
    ("inventory", "replaced"): "whether a node was replaced is told by the head alone",
    ("verdict", ""): "verdicts come through the operator's socket alone",
}
# Samples of these are looked at one by one, whether their series is known or not.
_LOOKED_AT_EACH = HEAD_MEASUREMENTS | {"event"}
# Tags that would make a new series for every job or reading.
FORBIDDEN_TAGS = frozenset(
    {"job", "job_id", "jobid", "user", "username", "user_name", "uid", "pid", "process"}
    | {"text", "message", "command", "cmdline"}
)
_DAY_NS = 86_400 * 1_000_000_000


class AdmissionOptions(Section):
    """The bounds of what may enter."""

    tags_limit: int = Field(default=12, ge=1, le=32)
    tag_characters_limit: int = Field(default=200, ge=16)
    fields_limit: int = Field(default=256, ge=1, le=1024)
    series_per_node_limit: int = Field(default=512, ge=1)
    # Each measurement is a folder of the store: a sender that invents names is cut.
    measurements_per_node_limit: int = Field(default=100, ge=1)
    series_limit: int = Field(default=2_000_000, ge=1)
    # So many series of a node, of all measurements, have a place whatever others have used up:
    # a node of 16 GPUs with all that hangs on it has some 150.
    series_share: int = Field(default=256, ge=0)
    # Names beside tocsin's own: each costs every store for as long as it keeps anything.
    measurements_limit: int = Field(default=1_000, ge=1)
    columns_limit: int = Field(default=1_024, ge=1)
    columns_per_node_limit: int = Field(default=256, ge=1)
    # Events are rows of a database as well; a node that says more in a day has said enough.
    events_per_node_limit: int = Field(default=20_000, ge=1)
    past_days_limit: float = Field(default=60.0, gt=0)
    future_hours_limit: float = Field(default=25.0, gt=0)


@dataclass(slots=True)
class Refusal:
    """Why one sample may not enter; ``foreign`` when it is another node's."""

    problem: str
    foreign: bool = False


@dataclass
class Admission:
    """Judges samples one by one; remembers the series of the last one to two days.

    ``refused`` counts by measurement of our own schema, and all others as "".
    ``is_known_node`` says of a name that came through a relay whether it is a node of Slurm's.
    """

    options: AdmissionOptions = field(default_factory=AdmissionOptions)
    refused: Counter[str] = field(default_factory=Counter)
    is_known_node: Callable[[str], bool] = lambda name: False

    def __post_init__(self) -> None:
        # Known series and the node each belongs to: of this day, and of the day before.
        self._now: dict[tuple[str, Tags], str] = {}
        self._before: dict[tuple[str, Tags], str] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._held: Counter[str] = Counter()  # node -> its series of all measurements
        self._series = 0  # of all nodes
        self._names: dict[str, set[str]] = {}  # node -> the measurements it has series of
        self._events: Counter[str] = Counter()  # node -> events of this day
        self._columns = Names(
            schema_fields(),
            self.options.measurements_limit,
            self.options.columns_limit,
            self.options.columns_per_node_limit,
        )
        self.cut: dict[str, str] = {}  # node -> which budget it went over last, of this day
        self._day = 0

    @property
    def series(self) -> int:
        """How many series are known."""
        return self._series

    def knows_all(self, samples: Sequence[Sample], node: str, now_ns: int) -> bool:
        """Whether :meth:`judge` would let in each of them, and learn nothing by it.

        So it is with nearly every body: the same series and fields as half a minute ago. Changes
        nothing; where it is False each sample is to be judged.
        """
        if not self._day - 1 <= now_ns // _DAY_NS <= self._day:
            return False
        past_ns = self.options.past_days_limit * _DAY_NS
        future_ns = self.options.future_hours_limit * 3600e9
        owners, anybody, knows = self._now, node == ANY_NODE, self._columns.knows
        before = ""
        names: tuple[str, ...] = ()
        for sample in samples:
            measurement = sample.measurement
            owner = owners.get((measurement, sample.tags))
            if owner != node and (owner is None or not anybody):
                return False
            if not -past_ns <= sample.time_ns - now_ns <= future_ns:
                return False
            last, names = names, tuple(sample.fields)
            if names == last and measurement == before:
                continue
            if measurement in _LOOKED_AT_EACH or not knows(measurement, names):
                return False
            before = measurement
        return True

    def judge(self, sample: Sample, node: str, now_ns: int) -> Refusal | None:
        """None when ``sample``, sent with the token of ``node``, may enter."""
        day = now_ns // _DAY_NS
        # What arrived before midnight may be judged after it, beside what came since: that is of
        # this day, or the budgets would begin anew each time that the two take turns.
        if day > self._day or day < self._day - 1:
            self._turn(day)
        # Whose it is comes first: what is refused must not use up another node's budget.
        known = self._now.get((sample.measurement, sample.tags))
        refusal = self._not_its_own(sample, node, known)
        if refusal is None and known is None and (problem := self._meet(sample, node)):
            refusal = Refusal(problem)
        if refusal is None and (problem := self._time_fault(sample.time_ns, now_ns)):
            refusal = Refusal(problem)
        if refusal is None and (problem := self._content_fault(sample)):
            refusal = Refusal(problem)
        if refusal is not None:
            self._count(sample.measurement)
        return refusal

    def _count(self, measurement: str) -> None:
        """One more refused. Names that senders invent share a place: they may be without end."""
        self.refused[measurement if self._columns.is_own(measurement) else ""] += 1

    def _not_its_own(self, sample: Sample, node: str, known: str | None) -> Refusal | None:
        """Why the sender with the token of ``node`` may not say this, whatever its shape."""
        if node == ANY_NODE:
            return None
        owner = sample.tag("node") if known is None else known
        if owner != node:
            if owner and not NODE_NAME.fullmatch(owner):
                return Refusal(f"{owner[:60]!r} is no node name")
            said = f'tag node="{owner[:60]}"' if owner else "no node tag"
            return Refusal(f"this token may write for node {node} only, not {said}", True)
        if sample.measurement in HEAD_MEASUREMENTS:
            return Refusal(f"{sample.measurement} is written by the head alone")
        if sample.measurement == "event":
            kind = sample.tag("kind")
            for key in ((kind, sample.tag("code")), (kind, "")):
                if key in HEAD_EVENTS:
                    return Refusal(HEAD_EVENTS[key])
        return None

    def judge_text(self, sample: Sample) -> Refusal | None:
        """None unless ``sample`` holds text where our schema has numbers."""
        numbers_only = (
            sample.measurement in NUMBER_MEASUREMENTS
            and sample.measurement not in TEXT_MEASUREMENTS
        )
        for name, value in sample.fields.items():
            if not isinstance(value, str):
                continue
            # One text would turn the column into texts, for every node.
            metric = metric_of(sample.measurement, name)
            if numbers_only or (metric is not None and metric.kind != "text"):
                self._count(sample.measurement)
                return Refusal(
                    f"field type conflict: {name[:60]} of {sample.measurement} is a number"
                )
        return None

    def _time_fault(self, time_ns: int, now_ns: int) -> str:
        ahead_ns = time_ns - now_ns
        if ahead_ns > self.options.future_hours_limit * 3600e9:
            return f"time is {ahead_ns / 3600e9:.0f} h ahead; is the node's clock set?"
        if -ahead_ns > self.options.past_days_limit * _DAY_NS:
            return f"time is {-ahead_ns / _DAY_NS:.0f} days ago; is the node's clock set?"
        return ""

    def _content_fault(self, sample: Sample) -> str:
        """What of a sample of a known series goes over a budget: its names, or one event more."""
        names = tuple(sample.fields)
        owner = self._now[sample.measurement, sample.tags]
        if len(names) > self.options.fields_limit:
            return f"more than {self.options.fields_limit} fields"
        if problem := self._columns.fault(sample.measurement, names, owner):
            return self._over(owner, problem)
        if sample.measurement == "event":
            limit = self.options.events_per_node_limit
            if self._events[owner] >= limit:
                said = f"event budget: {owner or 'no node'} has sent {limit} events today"
                return self._over(owner, said)
            self._events[owner] += 1
        return ""

    def _over(self, node: str, problem: str) -> str:
        """Takes note that ``node`` is over a budget."""
        self.cut[node] = problem
        return problem

    def _meet(self, sample: Sample, sender: str) -> str:
        """Takes in a series not seen today; why not, or the empty string."""
        key = (sample.measurement, sample.tags)
        owner = sample.tag("node")
        if key not in self._before:
            if problem := self._shape_fault(sample):
                return problem
            if problem := self._budget_fault(sample, owner, sender):
                return self._over(owner, problem)
            self._counts[sample.measurement, owner] += 1
            self._held[owner] += 1
            self._series += 1
            self._names.setdefault(owner, set()).add(sample.measurement)
        self._now[key] = owner
        return ""

    def _shape_fault(self, sample: Sample) -> str:
        options = self.options
        if len(sample.measurement) > options.tag_characters_limit:
            return f"measurement longer than {options.tag_characters_limit} characters"
        if is_too_long(sample.measurement):
            return "measurement longer than a folder's name may be"
        if not sample.measurement.isprintable():
            return "measurement holds unprintable characters"
        if len(sample.tags) > options.tags_limit:
            return f"more than {options.tags_limit} tags"
        for name, value in sample.tags:
            if name.lower() in FORBIDDEN_TAGS:
                return f"{name} may not be a tag; make it a field"
            if problem := self._columns.tag_fault(sample.measurement, name):
                return problem
            if len(name) > 64 or len(value) > options.tag_characters_limit:
                return f"tag {name[:64]} longer than {options.tag_characters_limit} characters"
            if not (name + value).isprintable():
                return f"tag {name[:64]!r} holds unprintable characters"
            if name == "node" and not NODE_NAME.fullmatch(value):
                return f"{value[:60]!r} is no node name"
        return ""

    def _budget_fault(self, sample: Sample, node: str, sender: str) -> str:
        measurement = sample.measurement
        if self._counts[measurement, node] >= self.options.series_per_node_limit:
            limit = self.options.series_per_node_limit
            return f"series budget: {node or 'no node'} has {limit} series of {measurement} already"
        names = self._names.get(node, set[str]())
        if measurement not in names and len(names) >= self.options.measurements_per_node_limit:
            limit = self.options.measurements_per_node_limit
            return f"measurement budget: {node or 'no node'} has {limit} measurements already"
        if self._series >= self.options.series_limit and not self._has_a_place(node, sender):
            return f"series budget: {self.options.series_limit} series are known already"
        return self._columns.meet(measurement, [name for name, _ in sample.tags], node)

    def _has_a_place(self, node: str, sender: str) -> bool:
        """Whether one series more is within what nobody else can take from ``node``."""
        if self._held[node] >= self.options.series_share:
            return False
        return sender == node or (node != "" and self.is_known_node(node))

    def _turn(self, day: int) -> None:
        """A new day: series that were not seen for a whole day give their place back."""
        self._before = self._now if day == self._day + 1 else {**self._before, **self._now}
        self._now = {}
        self._events.clear()
        self.cut.clear()
        self._day = day
        self._counts = Counter(
            (measurement, node) for (measurement, _), node in self._before.items()
        )
        self._held = Counter(self._before.values())
        self._series = len(self._before)
        self._names = {}
        for measurement, node in self._counts:
            self._names.setdefault(node, set()).add(measurement)


def cut(sample: Sample) -> Sample:
    """``sample`` with texts no longer than what is kept: a log line is not a place for files."""
    if all(
        not isinstance(value, str) or len(value) <= TEXT_LIMIT_CHARACTERS
        for value in sample.fields.values()
    ):
        return sample
    fields = {
        name: clip(value) if isinstance(value, str) else value
        for name, value in sample.fields.items()
    }
    return replace(sample, fields=fields)
