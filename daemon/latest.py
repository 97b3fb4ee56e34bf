"""The newest reading of every GPU and source: what the page and ``tocsin nodes`` show.

Filled in the watch's thread, read from the event loop. Entries are replaced whole and never
changed in place, so a reader sees an old or a new one, never half of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from collectors.sample import Sample, Tags, numbers_of
from models.rule_state import stepped_back
from models.runs import Run, runs_of
from models.silence import HEAD_SOURCES

# What is kept of a GPU reading. At 80,000 GPUs every further field costs some 2 MB.
GPU_FIELDS = (
    "temperature_celsius",
    "memory_temperature_celsius",
    "power_watts",
    "utilization_ratio",
    "memory_used_bytes",
    "ecc_corrected_total",
    "ecc_uncorrected_total",
    "sm_clock_hertz",
)
# What was not heard for so long is no part of the fleet any more.
STALE_NS = 180 * 1_000_000_000
# A node that invents GPUs or sources must not fill our memory.
_PER_NODE_LIMIT = 256


class GpuNow(NamedTuple):
    """The newest reading of one GPU: ``values`` in the order of GPU_FIELDS, None: not read.

    ``step_ns`` is the time since the reading before, 0 for the first. One is made for each
    reading, and a tuple is made in a third of the time that a frozen dataclass takes.
    """

    uuid: str
    time_ns: int
    arrival_ns: int
    step_ns: int
    lost: bool
    values: tuple[float | None, ...]

    def value(self, name: str) -> float | None:
        """One field by name."""
        return self.values[GPU_FIELDS.index(name)]


class SourceNow(NamedTuple):
    """The newest ``source`` reading of one source of one node."""

    time_ns: int
    arrival_ns: int
    up: bool
    age_seconds: float
    fault: str


@dataclass(slots=True)
class NodeNow:
    """What was last heard of one node."""

    heard_ns: int = 0
    gpus: dict[int, GpuNow] = field(default_factory=dict)
    sources: dict[str, SourceNow] = field(default_factory=dict)
    models: dict[int, str] = field(default_factory=dict)
    chassis: str = ""  # the text of its inventory/chassis event
    host_ns: int = 0  # time of its newest ``host`` reading
    load_1m: float | None = None  # by that reading
    # The tags of its last GPU readings and which GPU each names, for the thread that fills this.
    told: list[Tags] = field(default_factory=list)
    named: list[tuple[int | None, str]] = field(default_factory=list)


class Latest:
    """The newest readings by node."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeNow] = {}

    def observe(self, samples: Iterable[Sample], arrival_ns: int) -> None:
        """Takes in samples in order of arrival. Called in the watch's thread alone."""
        self.observe_runs(runs_of(samples), arrival_ns)

    def observe_runs(self, runs: Iterable[Run], arrival_ns: int) -> None:
        """The same of samples that are cut into runs already."""
        for measurement, name, some in runs:
            if not name:
                continue
            node = self.nodes.get(name)
            if node is None:
                node = self.nodes[name] = NodeNow()
            if measurement not in _NOT_OF_AN_AGENT:
                node.heard_ns = arrival_ns
            if measurement == "gpu":
                _gpus(node, some, arrival_ns)
            elif (take := _TAKERS.get(measurement)) is not None:
                for sample in some:
                    take(node, sample, arrival_ns)

    def keep_only(self, names: Iterable[str], now_ns: int) -> None:
        """Forgets nodes that nobody expects and that were not heard for :data:`STALE_NS`.

        One that Slurm does not know and that goes on sending is shown without a gap.
        """
        known = set(names)
        for name, node in list(self.nodes.items()):
            if name not in known and now_ns - node.heard_ns > STALE_NS:
                self.nodes.pop(name, None)


# What tells nothing of whether a node's agent is heard, or (source) not by itself.
_NOT_OF_AN_AGENT = frozenset(
    {
        "slurm_node",
        "slurm_event",
        "risk",
        "decision",
        "bmc",
        "fabric_port",
        "event",
        "source",
    }
)


def _gpus(node: NodeNow, some: Sequence[Sample], arrival_ns: int) -> None:
    tags = [one.tags for one in some]
    if tags == node.told:  # as a rule, and the very same objects: which GPUs they name is known
        named = node.named
    else:
        named = [_named(one) for one in tags]
        if len(tags) <= _PER_NODE_LIMIT:
            node.told, node.named = tags, named
    gpus = node.gpus
    for sample, (index, uuid) in zip(some, named, strict=True):
        if index is None:
            continue
        time_ns = sample.time_ns
        step_ns = 0
        before = gpus.get(index)
        if before is not None:
            before_ns = before.time_ns
            if before_ns > time_ns:
                if _is_older(sample, before_ns, arrival_ns):
                    continue
            else:
                step_ns = time_ns - before_ns
            uuid = uuid or before.uuid
        elif len(gpus) >= _PER_NODE_LIMIT:
            continue
        fields = sample.fields
        lost = fields.get("lost") == 1.0
        made = uuid, time_ns, arrival_ns, step_ns, lost, _values(fields)
        gpus[index] = _new(GpuNow, made)  # in half the time of the call with names


def _named(tags: Tags) -> tuple[int | None, str]:
    """(number, UUID) of the GPU that these tags name; None for no number."""
    text = uuid = ""
    for key, value in tags:
        if key == "gpu":
            text = value
        elif key == "uuid":
            uuid = value
    return _number(text), uuid


_values = numbers_of(*GPU_FIELDS)
_new = tuple.__new__


def _source(node: NodeNow, sample: Sample, arrival_ns: int) -> None:
    name = sample.tag("source")
    before = node.sources.get(name)
    if not name or (before is None and len(node.sources) >= _PER_NODE_LIMIT):
        return
    # What the head reads about a node says nothing about whether the node's agent is heard.
    if name not in HEAD_SOURCES:
        node.heard_ns = arrival_ns
    if before is not None and _is_older(sample, before.time_ns, arrival_ns):
        return
    node.sources[name] = SourceNow(
        sample.time_ns,
        arrival_ns,
        sample.number("up") == 1.0,
        sample.number("age_seconds") or 0.0,
        sample.text("fault"),
    )


def _host(node: NodeNow, sample: Sample, arrival_ns: int) -> None:
    if not _is_older(sample, node.host_ns, arrival_ns):
        node.host_ns, node.load_1m = sample.time_ns, sample.number("load_1m")


def _is_older(sample: Sample, known_ns: int, arrival_ns: int) -> bool:
    """Whether a reading is older than what is known, by a clock that was not set right since."""
    return known_ns > sample.time_ns and not stepped_back(known_ns, sample.time_ns, arrival_ns)


def _inventory(node: NodeNow, sample: Sample, arrival_ns: int) -> None:
    """``gpu=4 uuid=GPU-... serial=... model=NVIDIA H100 80GB HBM3``: the model of a GPU; or which
    machine it is."""
    if sample.tag("kind") != "inventory" or sample.tag("code") not in ("gpu", "chassis"):
        return
    text = sample.text("text")
    if sample.tag("code") == "chassis":
        node.chassis = text[:300]
        return
    number = _number(next((word[4:] for word in text.split() if word.startswith("gpu=")), ""))
    _, found, model = text.partition("model=")
    if number is not None and found and len(node.models) < _PER_NODE_LIMIT:
        node.models[number] = model.strip()


_TAKERS: Mapping[str, Callable[[NodeNow, Sample, int], None]] = {
    "source": _source,
    "event": _inventory,
    "host": _host,
}


@lru_cache(maxsize=1024)
def _number(text: str) -> int | None:
    """A GPU's number; None for what is none (also for digits that int() does not read)."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


def heard_ratio(expected: Sequence[str], latest: Latest, since_ns: int) -> float:
    """The share of ``expected`` nodes that were heard since ``since_ns``; 0 of none."""
    if not expected:
        return 0.0
    nodes = latest.nodes
    heard = sum(1 for name in expected if name in nodes and nodes[name].heard_ns >= since_ns)
    return heard / len(expected)
