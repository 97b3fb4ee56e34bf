"""Jobs that hold GPUs and do nothing with them: found, and told to people as one alert.

Nothing is concluded from what was not read. A job counts as idle only while each GPU of its nodes
was read lately and does nothing; a pause in the readings begins the count anew, as does a restart
of the head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog

from collectors.slurm.nodes import NodeState
from collectors.slurm.reader import Job
from daemon.alerts.active import Alert, names
from daemon.clock import NANOSECONDS
from daemon.intake import Intake
from daemon.jobs.held import Held, held
from daemon.jobs.options import JobOptions
from daemon.latest import Latest, NodeNow
from daemon.slurm_desk import SlurmDesk

_LOG = structlog.get_logger("tocsin.jobs")

LOOK_SECONDS = 60.0
# A reading older than that says nothing of now.
FRESH_NS = 180 * NANOSECONDS
# Jobs in the text of the alert; the rest is a count.
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Idle:
    """A job whose GPUs do nothing, since when, and when that was last seen."""

    held: Held
    since_ns: int
    seen_ns: int

    def hours(self, now_ns: int) -> float:
        """For how long."""
        return (now_ns - self.since_ns) / (3600 * NANOSECONDS)


class IdleJobs:
    """``alerts`` as often as wanted; ``found`` from any thread."""

    def __init__(self, options: JobOptions) -> None:
        self._options = options
        self._looked_ns = 0
        self._alerts: list[Alert] = []
        self.found: Mapping[str, Idle] = {}

    async def alerts(self, intake: Intake, desk: SlurmDesk, now_ns: int) -> list[Alert]:
        """What people are told of idle jobs now. Whatever goes wrong here stops no judgement."""
        try:
            return await intake.in_turn(
                self.look, list(desk.jobs.values()), desk.nodes, intake.latest, now_ns
            )
        except Exception as error:
            _LOG.exception("idle_jobs_not_looked_for", why=str(error))
            return []

    def look(
        self, jobs: Iterable[Job], nodes: Mapping[str, NodeState], latest: Latest, now_ns: int
    ) -> list[Alert]:
        """The alert of idle jobs, looked for anew once a minute. In the watch's thread alone."""
        if 0 <= now_ns - self._looked_ns < LOOK_SECONDS * NANOSECONDS:
            return self._alerts
        self._looked_ns = now_ns
        fresh: dict[str, Idle] = {}
        for key, one in held(jobs, nodes).items():
            does = uses(one, latest, now_ns, self._options.idle_ratio)
            before = self.found.get(key)
            if does is None and before is not None and now_ns - before.seen_ns < 2 * FRESH_NS:
                fresh[key] = before  # not read just now: as it was
            elif does is False:
                goes_on = before is not None and now_ns - before.seen_ns < 2 * FRESH_NS
                began_ns = before.since_ns if goes_on and before is not None else now_ns
                fresh[key] = Idle(one, began_ns, now_ns)
        self.found = fresh
        self._alerts = idle_alerts(fresh.values(), self._options, now_ns)
        return self._alerts


def uses(one: Held, latest: Latest, now_ns: int, idle_ratio: float) -> bool | None:
    """Whether any GPU of the job's nodes does something; None where it is not known."""
    known = True
    for name, count in one.gpus.items():
        busiest = _busiest(latest.nodes.get(name), max(1, count), now_ns)
        if busiest is not None and busiest > idle_ratio:
            return True
        known = known and busiest is not None
    return False if known else None


def _busiest(node: NodeNow | None, count: int, now_ns: int) -> float | None:
    """The highest utilisation on a node, if at least ``count`` GPUs were read lately and all of
    those that were read tell it.
    """
    if node is None:
        return None
    fresh = [one for one in list(node.gpus.values()) if now_ns - one.time_ns < FRESH_NS]
    told = [one.value("utilization_ratio") for one in fresh]
    read = [one for one in told if one is not None]
    if not read or len(read) < count or len(read) < len(told):
        return max(read) if read and max(read) > 0.5 else None
    return max(read)


def idle_alerts(idle: Iterable[Idle], options: JobOptions, now_ns: int) -> list[Alert]:
    """One alert for all jobs that have idled for long enough."""
    long = [
        one
        for one in idle
        if options.idle_hours
        and one.hours(now_ns) >= options.idle_hours
        and one.held.job.partition not in options.idle_partitions
    ]
    if not long:
        return []
    long.sort(key=lambda one: (-one.held.total * one.hours(now_ns), one.held.job.key))
    nodes = tuple(sorted({name for one in long for name in one.held.gpus}))
    total = sum(one.held.total for one in long)
    count = f"{len(long)} jobs hold" if len(long) > 1 else f"job {long[0].held.job.key} holds"
    lines = [_line(one, now_ns) for one in long[:_SHOWN]]
    if len(long) > _SHOWN:
        lines.append(f"and {len(long) - _SHOWN} more: tocsin jobs --idle")
    return [
        Alert(
            key="jobs/idle",
            severity=options.idle_severity,
            title=f"{count} {total} GPUs that do nothing",
            text="\n".join(lines),
            node="",
            time_ns=min(one.since_ns for one in long),
            state="idle",
            nodes=nodes,
            code="gpus_idle",
            jobs=tuple((one.held.job.key, one.held.job.user) for one in long[:1000]),
        )
    ]


def _line(one: Idle, now_ns: int) -> str:
    job, hours = one.held.job, one.hours(now_ns)
    gpus = f"{one.held.total} GPUs" if one.held.total else "GPUs"
    return (
        f"job {job.key} of {job.user} ({job.partition or 'no partition'}): {gpus} on "
        f"{names(tuple(sorted(one.held.gpus)))} idle for {hours:.1f} h"
    )
