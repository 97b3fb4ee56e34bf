"""Probes of idle nodes: which node may be probed now, and what a result says of it. Pure.

Section ``[policy.idle]``. The probes are those of ``[policy.proof]``; here they run as one short
job of low priority on a node that nobody wants. A node that is slower than its peers, or than it
was, is told to people and never drained for it: a tool may be what is slow.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from collectors.slurm.nodes import SECOND_NS, NodeState
from daemon.proofs.proof import PEERS_MIN, Probe, Result
from daemon.settings import Section
from models.voices import Entity, Fact, Remedy

RULE = "idle_probe"
# Of its own earlier figures a node needs so many before it is held against them.
OWN_MIN = 5
# A probe that had to give way is tried again after so long.
RETRY_NS = 3600 * SECOND_NS
HOUR_NS = 3600 * SECOND_NS
# Reasons for which a job waits that no free node would end (squeue(1), "JOB REASON CODES").
WAITS_FOR_OTHERS = frozenset(
    {
        "BeginTime", "Dependency", "DependencyNeverSatisfied", "JobArrayTaskLimit",
        "JobHeldAdmin", "JobHeldUser",
    }
)  # fmt: skip


class IdleOptions(Section):
    """The probes of ``[policy.proof]`` on idle nodes: off by default, never in shadow mode.

    A node is probed when it has been idle for ``idle_seconds``, was not probed for
    ``every_hours``, nobody holds it, and no job waits in any of its partitions; the oldest probe
    first. The job is cancelled as soon as a job waits there. A figure below ``slow_share`` of the
    median of other nodes with the same features, or of the node's own last figures, is slow;
    ``slow_times`` in a row tell people (rule ``idle_probe``). It never drains.
    """

    # How often each node is probed. 0: never.
    every_hours: float = Field(default=0.0, ge=0, le=8760)
    # The budget: so many at once, and so many begun in an hour.
    nodes_at_once: int = Field(default=1, ge=1, le=100)
    per_hour: int = Field(default=6, ge=1, le=10_000)
    idle_seconds: float = Field(default=300.0, ge=0, le=7 * 86_400)
    # The job's time limit.
    job_seconds: float = Field(default=600.0, ge=60, le=86_400)
    # Taken off the job's priority (sbatch --nice).
    nice: int = Field(default=10_000, ge=0, le=2_000_000_000)
    slow_share: float = Field(default=0.85, gt=0, le=1)
    slow_times: int = Field(default=2, ge=1, le=10)
    # Empty: the node's first partition. A preemptable partition or QOS makes Slurm itself evict it.
    partition: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,64}$")
    account: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,64}$")
    qos: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,64}$")


@dataclass(frozen=True, slots=True)
class Pending:
    """A job that waits: the partitions it would run in, and why it waits."""

    partitions: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Known:
    """What was done before. Times are UTC ns: when a node's last probe that came to a result was
    begun, when its last probe of any end was, and since when each node is seen idle.
    """

    told_ns: Mapping[str, int]
    tried_ns: Mapping[str, int]
    idle_ns: Mapping[str, int]
    open: int
    begun_last_hour: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one probe says: ``key`` is empty for a pass, ``slow:FIGURE``, ``fell:FIGURE`` (slower
    than it was) or ``failed:PROBE``; ``text`` says it in words.
    """

    key: str = ""
    text: str = "passed"


@dataclass(frozen=True, slots=True)
class Told:
    """One probe that came to a result."""

    node: str
    time_ns: int
    key: str
    text: str


def unfit(node: NodeState) -> str:
    """Why no probe may run on ``node`` now, or empty. Anybody's drain or reason keeps it away."""
    if node.base != "idle" or node.jobs or node.busy:
        return f"is {node.words}"
    if node.drain or node.failed or node.reason:
        return f"is held: {node.reason or node.words}"
    if not node.registered or node.rebooting:
        return f"is {node.words}"
    if node.maintenance or node.reservation or node.flags & {"RESERVED", "PLANNED", "BLOCKED"}:
        return "is reserved or planned"
    return ""


def wanted(pending: Iterable[Pending]) -> frozenset[str]:
    """The partitions in which a job waits that a free node might serve."""
    return frozenset(
        name for job in pending if job.reason not in WAITS_FOR_OTHERS for name in job.partitions
    )


def room(known: Known, options: IdleOptions) -> int:
    """How many probes the budget allows to begin now."""
    left = min(options.nodes_at_once - known.open, options.per_hour - known.begun_last_hour)
    return max(0, left) if options.every_hours else 0


def due(
    nodes: Mapping[str, NodeState],
    known: Known,
    out: frozenset[str],
    pressed: frozenset[str],
    options: IdleOptions,
    now_ns: int,
) -> list[str]:
    """The nodes to probe now, the longest unprobed first. ``out``: held, locked, or spoken of."""
    every_ns = int(options.every_hours * HOUR_NS)
    idle_ns = int(options.idle_seconds * SECOND_NS)
    found = [
        name
        for name, node in nodes.items()
        if name not in out
        and not unfit(node)
        and not pressed & {*node.partitions, options.partition}
        and now_ns - known.idle_ns.get(name, now_ns) >= idle_ns
        and now_ns - known.told_ns.get(name, -every_ns) >= every_ns
        and now_ns - known.tried_ns.get(name, -RETRY_NS) >= min(RETRY_NS, every_ns)
    ]
    found.sort(key=lambda name: (known.told_ns.get(name, 0), name))
    return found[: room(known, options)]


def verdict(
    result: Result,
    probes: Mapping[str, Probe],
    peers: Mapping[str, Sequence[float]],
    own: Mapping[str, Sequence[float]],
    options: IdleOptions,
) -> Verdict:
    """What a result says. ``peers``: each figure's last value on other nodes of the same features;
    ``own``: its earlier values on this node.
    """
    if not result.ok:
        return Verdict(f"failed:{result.failed.partition(':')[0]}", f"{result.failed} failed")
    for probe in probes.values():
        for figure, least in probe.minimum.items():
            value = result.figures.get(figure)
            if value is not None and value < least:
                return Verdict(f"slow:{figure}", f"{figure} {value:.4g}, at least {least:.4g}")
    for figure, value in result.figures.items():
        others = peers.get(figure, ())
        if len(others) >= PEERS_MIN and value < statistics.median(others) * options.slow_share:
            median = statistics.median(others)
            text = f"{figure} {value:.4g}, its {len(others)} peers have {median:.4g}"
            return Verdict(f"slow:{figure}", text)
    for figure, value in result.figures.items():
        before = own.get(figure, ())
        if len(before) >= OWN_MIN and value < statistics.median(before) * options.slow_share:
            text = f"{figure} {value:.4g}, it had {statistics.median(before):.4g} before"
            return Verdict(f"fell:{figure}", text)
    return Verdict()


def facts(told: Mapping[str, Sequence[Told]], options: IdleOptions) -> tuple[Fact, ...]:
    """What people should know. ``told``: each node's probes, the newest first.

    A probe that fails on this node speaks only where it passes on others: else it is the probe.
    """
    well = sum(1 for rows in told.values() if rows and not rows[0].key)
    found = []
    for node, rows in sorted(told.items()):
        run = _run(rows)
        if len(run) < options.slow_times:
            continue
        kind, _, what = run[0].key.partition(":")
        if kind == "failed" and well < PEERS_MIN:
            continue
        code = "probe" if kind == "failed" else "slow"
        found.append(
            Fact(
                Entity("node", node),
                RULE,
                code,
                1,
                Remedy.ALERT,
                run[-1].time_ns,
                f"{len(run)} idle probes in a row: {run[0].text}",
                f"look at {what} by hand; tocsin does not drain for it",
                tuple(one.text for one in run[:5]),
            )
        )
    return tuple(found)


def _run(rows: Sequence[Told]) -> list[Told]:
    """The newest probes that say the same ill, newest first."""
    run: list[Told] = []
    for one in rows:
        if not one.key or (run and one.key != run[0].key):
            break
        run.append(one)
    return run
