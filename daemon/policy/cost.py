"""What a drain costs and what it saves, in GPU-hours: is it worth it now? Pure.

Section ``[policy.cost]``. Only likelihoods are weighed (risk, history): what is certain drains
whatever that costs. The model is small on purpose, and says what a drain in Slurm really does:

- It ends no job. What runs on the node is exposed until its own end, with or without the drain;
  the drain saves work there only where it makes the job write a checkpoint (``[policy.jobs]``).
- It keeps new work away. So it saves what the *next* jobs would lose: all GPUs of such a job, on
  all its nodes, lose the work since their last checkpoint and the time of a restart.
- It costs the GPUs that stand idle until the last job has ended, and the whole node while it is
  looked at. Where the node would have failed, it would have been out in any case.

Both sides shrink where nobody waits for the GPUs. That is seen in how busy the node's partitions
are, and in PLANNED nodes, which the scheduler holds for a job that waits: no further request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import Field

from collectors.slurm.nodes import NodeState
from collectors.slurm.reader import Job
from daemon.drains.jobcare import JobCare, asks
from daemon.settings import Section

HOUR_SECONDS = 3600.0
_NS_PER_HOUR = 3_600_000_000_000
# A certainty would make every hazard infinite.
# Below it a division would say nothing but the rounding.
_RATE_MIN = 1e-12
_PROBABILITY_MAX = 0.999_999
# A job's own word: sbatch --comment tocsin=checkpoint:30m; ``none`` saves nothing until its end.
_CHECKPOINT = re.compile(r"\btocsin=checkpoint:(?:(\d{1,5})(m|h)|(none))(?=\W|\Z)")


class CostOptions(Section):
    """When a drain for a risk is worth it: the GPU-hours it saves against those it costs.

    The defaults are those of ``tocsin evaluate``: a failure loses 1.5 h of work, a drain takes
    the node out for 4 h. A job may say how often it saves its work:
    ``sbatch --comment tocsin=checkpoint:30m`` (``2h``, ``none``).
    """

    # false: costs are not weighed, a risk above its threshold drains.
    weigh: bool = True
    # How long a node that was drained for nothing is out of service: tests and return.
    out_hours: float = Field(default=4.0, gt=0, le=1000)
    # How often jobs save their work; on average half of it is lost.
    checkpoint_hours: float = Field(default=2.0, gt=0, le=1000)
    # What a job that is hit loses besides: to be seen, queued, started.
    restart_hours: float = Field(default=0.5, ge=0, le=100)
    # GPUs count at least this much, however empty the cluster is.
    pressure_min: float = Field(default=0.1, gt=0, le=1)


@dataclass(frozen=True, slots=True)
class Running:
    """One job on the node: its GPUs here and on all its nodes, and what a failure would cost it.

    ``left_hours`` is until its limit. ``unsaved_hours`` is what it loses on average when it is
    hit, ``checkpoint_hours`` its interval; ``signalled``: a drain makes it save its work.
    """

    gpus: float
    job_gpus: float
    left_hours: float
    unsaved_hours: float
    checkpoint_hours: float
    signalled: bool


@dataclass(frozen=True, slots=True)
class Market:
    """How wanted GPUs are: by partition, the share in use (0 to 1) and a usual job's GPUs."""

    pressure: Mapping[str, float]
    job_gpus: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Weighed:
    """One drain on the scales. ``now`` is whether it saves at least what it costs."""

    probability: float
    horizon_hours: float
    node_gpus: float
    pressure: float
    next_job_gpus: float
    lost_hours: float
    until_empty_hours: float
    idle_gpu_hours: float
    out_gpu_hours: float
    next_jobs_gpu_hours: float
    checkpoint_gpu_hours: float

    @property
    def costs_gpu_hours(self) -> float:
        """What the drain takes from the cluster, on average."""
        return self.idle_gpu_hours + self.out_gpu_hours

    @property
    def saves_gpu_hours(self) -> float:
        """What the drain keeps from being lost, on average."""
        return self.next_jobs_gpu_hours + self.checkpoint_gpu_hours

    @property
    def now(self) -> bool:
        """Whether to drain now."""
        return self.saves_gpu_hours >= self.costs_gpu_hours

    @property
    def text(self) -> str:
        """The numbers in words."""
        costs = (
            f"{self.costs_gpu_hours:.1f} GPU-hours ({self.idle_gpu_hours:.1f} idle until its jobs "
            f"end in {self.until_empty_hours:.1f} h, {self.out_gpu_hours:.1f} out of service for "
            "nothing)"
        )
        saves = f"{self.saves_gpu_hours:.1f} ({self.next_jobs_gpu_hours:.1f} of the next jobs"
        if self.checkpoint_gpu_hours:
            saves += f", {self.checkpoint_gpu_hours:.1f} by checkpoints now"
        basis = (
            f"risk {self.probability:.2f} within {self.horizon_hours:g} h, jobs of "
            f"{self.next_job_gpus:.0f} GPUs that lose {self.lost_hours:.1f} h, "
            f"{self.pressure:.0%} of GPUs wanted"
        )
        return f"a drain costs {costs} and saves {saves}): {basis}"

    def plain(self) -> dict[str, Any]:
        """As JSON data, sums included."""
        sums = {
            "costs_gpu_hours": self.costs_gpu_hours,
            "saves_gpu_hours": self.saves_gpu_hours,
        }
        return {name: round(value, 4) for name, value in {**asdict(self), **sums}.items()}


def weigh(
    probability: float,
    horizon_hours: float,
    node_gpus: float,
    running: Sequence[Running],
    next_job_gpus: float,
    pressure: float,
    options: CostOptions,
) -> Weighed:
    """Lays one drain on the scales. The hazard is taken as constant within the horizon."""
    p = min(max(probability, 0.0), _PROBABILITY_MAX)
    rate = -math.log1p(-p) / horizon_hours
    lost_hours = options.checkpoint_hours / 2 + options.restart_hours
    idle_hours = 0.0  # of the whole node, until the last job has ended
    hit = 0.0  # chance that a failure meets new work
    for begin, end, free in _free(running, node_gpus, horizon_hours):
        inside = min(end, horizon_hours)
        if inside > begin:
            hit += free * _fails_within(rate, begin, inside)
    empty_hours = max((one.left_hours for one in running), default=0.0)
    for begin, end, free in _free(running, node_gpus, 0.0):
        idle_hours += free * _in_service(rate, begin, end, horizon_hours)
    saved = sum(
        one.job_gpus
        * one.unsaved_hours
        * -math.expm1(-rate * min(one.left_hours, one.checkpoint_hours, horizon_hours))
        for one in running
        if one.signalled
    )
    return Weighed(
        probability=probability,
        horizon_hours=horizon_hours,
        node_gpus=node_gpus,
        pressure=pressure,
        next_job_gpus=next_job_gpus,
        lost_hours=lost_hours,
        until_empty_hours=empty_hours,
        idle_gpu_hours=idle_hours * node_gpus * pressure,
        out_gpu_hours=(1.0 - p) * node_gpus * options.out_hours * pressure,
        next_jobs_gpu_hours=hit * pressure * next_job_gpus * lost_hours,
        checkpoint_gpu_hours=saved,
    )


def _free(
    running: Sequence[Running], node_gpus: float, until_hours: float
) -> Iterable[tuple[float, float, float]]:
    """(begin, end, share of the node that no present job holds), to the last end or later."""
    held = min(node_gpus, sum(one.gpus for one in running))
    begin = 0.0
    for one in sorted(running, key=lambda one: one.left_hours):
        yield begin, one.left_hours, 1.0 - held / node_gpus
        begin = one.left_hours
        held = max(0.0, held - one.gpus)
    if until_hours > begin:
        yield begin, until_hours, 1.0


def _fails_within(rate: float, begin: float, end: float) -> float:
    """The chance that it fails between ``begin`` and ``end``, exact for small rates too."""
    return -math.exp(-rate * begin) * math.expm1(-rate * (end - begin))


def _in_service(rate: float, begin: float, end: float, horizon_hours: float) -> float:
    """Hours between ``begin`` and ``end`` in which the node, not drained, would have worked."""
    inside = max(begin, min(end, horizon_hours))
    hours = inside - begin
    if rate * hours > _RATE_MIN:
        hours = _fails_within(rate, begin, inside) / rate
    # What comes behind the horizon nobody has foretold: as good as it is by then.
    return hours + max(0.0, end - inside) * math.exp(-rate * horizon_hours)


# ---- from what Slurm shows -------------------------------------------------------------------


def gpus_of(node: NodeState) -> float:
    """GPUs of a node; a node without any counts as one."""
    return float(max(1, node.gpus_configured))


def running_on(
    node: NodeState,
    jobs: Mapping[str, Job],
    now_ns: int,
    options: CostOptions,
    care: JobCare | None = None,
) -> list[Running]:
    """The jobs on ``node``. One whose job record was not read is left out."""
    found = [jobs[number] for number in node.jobs if number in jobs]
    told = sum(one.gpus_per_node for one in found)
    silent = sum(1 for one in found if not one.gpus_per_node)
    # Who did not ask by the node shares what the others leave.
    rest = max(0.0, float(node.gpus_allocated) - told) or max(0.0, gpus_of(node) - told)
    made = []
    for one in found:
        gpus = float(one.gpus_per_node) or rest / silent
        every = checkpoint_hours(one.comment, options)
        elapsed = one.elapsed_seconds / HOUR_SECONDS
        made.append(
            Running(
                gpus=gpus,
                job_gpus=gpus * max(1, len(one.nodes)),
                left_hours=left_hours(one, now_ns),
                unsaved_hours=min(elapsed, every / 2),
                checkpoint_hours=every,
                signalled=_signalled(one, care),
            )
        )
    return made


def left_hours(job: Job, now_ns: int) -> float:
    """Hours until the job's limit; without one it is taken to run on as long as it has run."""
    if job.end_time_ns:
        return max(0.0, (job.end_time_ns - now_ns) / _NS_PER_HOUR)
    return job.elapsed_seconds / HOUR_SECONDS


def checkpoint_hours(comment: str, options: CostOptions) -> float:
    """How often a job saves its work, by its own word or the site's; infinite for never.

    >>> checkpoint_hours("run 7 tocsin=checkpoint:30m", CostOptions())
    0.5
    """
    match = _CHECKPOINT.search(comment)
    if match is None:
        return options.checkpoint_hours
    if match[3]:
        return math.inf
    hours = int(match[1]) / (60.0 if match[2] == "m" else 1.0)
    return max(hours, 1.0 / 60.0)


def _signalled(job: Job, care: JobCare | None) -> bool:
    if care is None or care.signal == "never":
        return False
    return care.signal == "always" or bool(asks(job.comment)[1])


def market(nodes: Mapping[str, NodeState], jobs: Mapping[str, Job]) -> Market:
    """How wanted the GPUs of each partition are, in one pass over nodes and jobs."""
    use: dict[str, list[float]] = {}
    for node in nodes.values():
        if not node.registered or node.drain:
            continue
        gpus = gpus_of(node)
        wanted = float(node.gpus_allocated) if node.gpus_configured else float(node.busy)
        if "PLANNED" in node.flags or node.base == "allocated":
            wanted = gpus
        for partition in node.partitions:
            part = use.setdefault(partition, [0.0, 0.0])
            part[0] += min(wanted, gpus)
            part[1] += gpus
    sizes: dict[str, list[float]] = {}
    for job in jobs.values():
        where = next((nodes[name] for name in job.nodes if name in nodes), None)
        if where is None:
            continue
        per_node = float(job.gpus_per_node) or gpus_of(where)
        size = sizes.setdefault(job.partition, [0.0, 0.0])
        # A node meets a job of many nodes more often than one of few.
        size[0] += len(job.nodes) * per_node * len(job.nodes)
        size[1] += len(job.nodes)
    return Market(
        {name: part / whole for name, (part, whole) in use.items()},
        {name: total / count for name, (total, count) in sizes.items()},
    )


def weigh_node(
    node: NodeState,
    probability: float,
    horizon_seconds: float,
    jobs: Mapping[str, Job],
    wanted: Market,
    options: CostOptions,
    care: JobCare,
    now_ns: int,
) -> Weighed:
    """A drain of ``node`` on the scales, from what Slurm shows."""
    gpus = gpus_of(node)
    pressure = max((wanted.pressure.get(name, 0.0) for name in node.partitions), default=0.0)
    sizes = [wanted.job_gpus[name] for name in node.partitions if name in wanted.job_gpus]
    return weigh(
        probability,
        max(horizon_seconds, 1.0) / HOUR_SECONDS,
        gpus,
        running_on(node, jobs, now_ns, options, care),
        max(sizes, default=gpus),
        max(options.pressure_min, min(1.0, pressure)),
        options,
    )


def until_free_hours(node: NodeState | None, jobs: Mapping[str, Job], now_ns: int) -> float:
    """Hours until the last job on ``node`` ends: 0 for an idle one, infinite where not known."""
    if node is None or not (node.busy or node.jobs):
        return 0.0
    known = [jobs[number] for number in node.jobs if number in jobs]
    if not known:
        return math.inf
    return max(left_hours(job, now_ns) for job in known)
