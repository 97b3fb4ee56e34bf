"""What the page and the command line can see of a head, and may ask of it.

``HeadView`` is the only thing the handlers know; ``daemon.head.Head`` implements it, tests hand
in another. The dataclasses are plain data. ``plain`` turns them into JSON values: a field that
ends in ``_ns`` becomes an ISO time in UTC under its name without ``_ns``, for a browser's
numbers cannot hold nanoseconds; NaN and infinities become null.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Protocol

# A head's role, where two share a cluster.
ACTS = "acts"
STANDS_BY = "stands by"


class UnknownSubject(Exception):
    """No such node, decision or case. The text says what was looked for."""


class Refused(Exception):
    """The head will not do what was asked. The text says why, in words for the operator."""


@dataclass(frozen=True, slots=True)
class SourceView:
    """One kind of source over the fleet: on how many nodes it is up, and on how many not."""

    name: str
    up: int
    down: int
    oldest_seconds: float = 0.0  # age of the oldest last good cycle
    fault: str = ""  # the commonest fault now, if any


@dataclass(frozen=True, slots=True)
class AlertView:
    """One alert that is active now."""

    key: str
    severity: int  # 0 info, 1 warning, 2 error, 3 critical
    title: str
    text: str
    node: str
    since_ns: int
    muted: str = ""  # by whom and until when nobody is sent it; empty: it is sent


@dataclass(frozen=True, slots=True)
class SlurmView:
    """How the head stands with Slurm."""

    adapter: str  # cli, pyslurm, rest, simulated
    up: bool
    age_seconds: float | None  # since node states were last read; None: never yet
    text: str = ""


@dataclass(frozen=True, slots=True)
class FleetView:
    """The head and the fleet at a glance.

    ``time_ns`` is the head's clock (simulated in the demo, ``speed`` seconds a second).
    ``states`` counts nodes by ``NodeView.state``. ``values_per_second`` and
    ``agents_heard`` tell that telemetry flows.
    """

    time_ns: int
    cluster: str
    version: str
    mode: str  # shadow, approve, act
    speed: float
    uptime_seconds: float
    nodes: int
    gpus: int
    gpus_allocated: int
    gpus_out_of_service: int
    states: Mapping[str, int]
    drains_ours: int  # nodes that we hold out of service now
    drains_last_hour: int
    drains_per_hour_cap: int
    drains_cap: int  # how many nodes we may hold at once
    approvals_waiting: int
    breaker_open: bool
    breaker_text: str
    coverage_ratio: float  # share of expected telemetry that is heard
    agents_heard: int
    values_per_second: float
    store: str  # a few words: embedded 120 MiB, influxdb behind by 3 s ...
    model: str  # which models score, and how far the learned one may go
    horizon_seconds: float
    slurm: SlurmView
    sources: tuple[SourceView, ...] = ()
    alerts: tuple[AlertView, ...] = ()
    demo: bool = False
    role: str = ACTS
    role_text: str = ""  # why; empty where there is one head
    learning: str = ""  # what the learned model would have drained of late


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node in the grid and in ``tocsin nodes``. From memory: asked for every second.

    ``state`` is Slurm's state as people sort it: ``idle``, ``busy`` (some or all GPUs
    allocated), ``draining`` (drain set, jobs still run), ``drained``, ``down``, ``unknown``.
    ``owner`` says whose word took it out: ``tocsin``, ``other`` or empty.
    ``voice`` is the loudest voice now (``fact``, ``silence``, ``risk``, ``history`` or empty)
    and ``guard`` the guard that holds a drain back (or empty).
    ``gpu_marks`` has one letter a GPU: ``.`` well, ``r`` at risk, ``f`` a fact stands against
    it, ``x`` lost, ``s`` silent, ``?`` never heard.
    """

    name: str
    state: str
    slurm_state: str  # as sinfo would show it: MIXED+DRAIN
    owner: str
    reason: str
    voice: str
    guard: str
    risk: float | None  # probability of failure within the horizon; None: not judged
    device: str  # the part that speaks, gpu3
    code: str  # x79
    gpus: int
    gpus_allocated: int
    gpu_marks: str
    jobs: int
    group: str  # rack, leaf switch or partition: the grid is laid out by it
    heard_seconds: float | None  # since anything was last heard from it; None: never
    # The risk within each horizon: {"1h": 0.01, "24h": 0.2, "7d": 0.4}; empty: not judged.
    outlook: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU of the node that is looked at, as last read. None: not read."""

    index: int
    uuid: str
    model: str
    mark: str
    risk: float | None
    temperature_celsius: float | None
    memory_temperature_celsius: float | None
    power_watts: float | None
    utilization_ratio: float | None
    memory_used_bytes: float | None
    ecc_corrected_total: float | None
    ecc_uncorrected_total: float | None
    words: tuple[str, ...] = ()  # what speaks against it, one short sentence each


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One thing that happened: an event, a decision, a write to Slurm, an operator's word."""

    time_ns: int
    kind: str  # event, fact, silence, risk, decision, slurm, operator, alert
    text: str
    severity: int = 0
    device: str = ""
    user: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """One node in full."""

    node: NodeView
    gpus: tuple[GpuView, ...]
    sources: tuple[SourceView, ...]
    verdict: str  # one sentence: why it is, or is not, drained
    timeline: tuple[TimelineEntry, ...] = ()  # newest first
    locked: bool = False
    partitions: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DecisionView:
    """One decision as the list shows it. ``status`` is where the case stands now:
    ``recorded`` (shadow), ``refused``, ``waiting``, ``approved``, ``denied``, ``draining``,
    ``drained``, ``returned``, ``locked``."""

    id: str
    time_ns: int
    node: str
    device: str
    component: str
    action: str
    voice: str
    rule: str
    code: str
    mode: str
    reason: str
    guard: str
    guard_text: str
    probability: float
    severity: int
    advice: str
    status: str
    user: str = ""
    verdict: bool | None = None


@dataclass(frozen=True, slots=True)
class LineView:
    """One line of a chart: a GPU, a port, a sensor. NaN or None where nothing was read."""

    name: str  # gpu3, mlx5_0/1
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class SeriesView:
    """One field of one node over time. ``times_ms`` is shared by all lines (UTC, ms)."""

    node: str
    measurement: str
    field: str
    kind: str  # gauge, counter, state
    help: str
    start_ms: int
    end_ms: int
    times_ms: Sequence[int]
    lines: tuple[LineView, ...]


@dataclass(frozen=True, slots=True)
class GuardView:
    """One guard as it was asked: whether it let the drain pass, and what it saw."""

    guard: str
    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class SignalView:
    """One thing that moved the judgement: its value, the limit it met and its weight."""

    name: str
    value: float | str
    threshold: float | str | None
    weight: float | None
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """One decision rebuilt, or why a node is not drained. ``sentences`` says it for people."""

    subject: str
    node: str
    title: str
    sentences: tuple[str, ...]
    decision: DecisionView | None
    voice: str
    rule: str
    signals: tuple[SignalView, ...]
    guards: tuple[GuardView, ...]
    evidence: tuple[str, ...]  # log lines, verbatim
    timeline: tuple[TimelineEntry, ...]
    similar: tuple[str, ...] = ()  # why similar nodes were not drained
    inputs: Mapping[str, Any] = field(default_factory=dict)
    ticket: tuple[str, ...] = ()  # what a vendor asks for, ready to be pasted


class HeadView(Protocol):
    """What a head shows and does for its page, its API and the command line.

    ``fleet`` and ``nodes`` answer from memory and are asked every second; the others may
    read the store. All raise UnknownSubject for what does not exist.
    """

    async def fleet(self) -> FleetView:
        """The head and the fleet at a glance."""
        ...

    async def nodes(self) -> Sequence[NodeView]:
        """Every node, in the order of the grid."""
        ...

    async def node(self, name: str) -> NodeDetail:
        """One node in full."""
        ...

    async def decisions(self, limit: int, node: str = "") -> Sequence[DecisionView]:
        """The newest ``limit`` decisions, newest first, of one node or of all."""
        ...

    async def series(
        self, node: str, measurement: str, fields: Sequence[str], minutes: float, points: int
    ) -> Sequence[SeriesView]:
        """The last ``minutes`` of ``fields``, thinned to at most ``points`` times each."""
        ...

    async def explain(self, subject: str) -> Explanation:
        """A decision (by id or a unique head of it) or a node (by name), explained."""
        ...

    async def approve(self, case: str, user: str) -> str:
        """Says yes to a waiting drain. Gives back a sentence; raises Refused."""
        ...

    async def deny(self, case: str, user: str) -> str:
        """Says no to a waiting drain. Gives back a sentence; raises Refused."""
        ...

    async def resume(self, node: str, user: str) -> str:
        """Lifts our own drain. Gives back a sentence; raises Refused."""
        ...

    async def prove(self, node: str, user: str) -> str:
        """Tests a node that we hold. Gives back a sentence; raises Refused."""
        ...

    async def lock(self, node: str, user: str, locked: bool) -> str:
        """Locks a node against tocsin, or unlocks it. Gives back a sentence."""
        ...

    async def close_breaker(self, user: str) -> str:
        """Lets drains through again after the breaker tripped. Gives back a sentence."""
        ...

    async def verdict(self, case: str, right: bool, user: str) -> str:
        """Records whether a decision was right. Gives back a sentence."""
        ...


def iso(time_ns: int) -> str:
    """``time_ns`` as ISO 8601 in UTC with milliseconds.

    >>> iso(1_500_000_000)
    '1970-01-01T00:00:01.500Z'
    """
    whole, rest = divmod(time_ns, 1_000_000_000)
    moment = datetime.fromtimestamp(whole, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest // 1_000_000:03d}Z"


def plain(value: Any) -> Any:
    """``value`` as JSON values; see the module's docstring for times and NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | int):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dict(_pair(f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(plain(inner) for inner in value)
    return [plain(inner) for inner in value]


def _pair(name: str, value: Any) -> tuple[str, Any]:
    if name.endswith("_ns") and isinstance(value, int):
        return name.removesuffix("_ns"), iso(value)
    return name, plain(value)
