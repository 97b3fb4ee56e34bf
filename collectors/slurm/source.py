"""Source ``slurm``: node states, who holds them, and what changed, as slurmctld tells it.

Runs on the head only. One cycle is at most two requests to slurmctld (nodes, jobs), whatever
the cluster's size. What it read last stays in ``latest`` for policy, so that nobody asks twice.
Transitions are seen against the state of the cycle before, which is kept on disk: a restart
neither loses one nor tells one again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field

from collectors.command import Runner
from collectors.options import Options as SourceOptions
from collectors.sample import Batch, Context, Metric, Problem, Sample, Source, clip, sample
from collectors.slurm.faults import SlurmTrouble
from collectors.slurm.nodes import SECOND_NS, Nodes, NodeState, parse_nodes, with_jobs
from collectors.slurm.reader import Job, SlurmReader, Tools, jobs_by_node

NAME = "slurm"


def _flag(name: str, help_text: str) -> Metric:
    return Metric("slurm_node", name, "state", help_text, 0, 1)


METRICS: tuple[Metric, ...] = (
    _flag("idle", "1 when no job holds the node"),
    _flag("mixed", "1 when jobs hold part of it"),
    _flag("allocated", "1 when jobs hold all of it"),
    _flag("down", "1 when its base state is DOWN"),
    _flag("drain", "1 when somebody drained it"),
    _flag("fail", "1 when its flag FAIL or its state ERROR is set"),
    _flag("not_responding", "1 when slurmctld gets no answer from its slurmd"),
    _flag("registered", "1 when slurmd has registered, answers and is powered"),
    _flag("maintenance", "1 when it stands in a maintenance reservation"),
    _flag("reserved", "1 when it stands in any reservation"),
    _flag("completing", "1 when a job is being ended on it"),
    _flag("planned", "1 when the scheduler holds it for a job to come"),
    _flag("reboot", "1 when a reboot is requested or under way"),
    _flag("powered_down", "1 when power saving has it off, or on its way"),
    _flag("invalid_registration", "1 when it registered with less than configured"),
    Metric("slurm_node", "jobs", "gauge", "jobs that hold the node", 0, 100_000),
    Metric("slurm_node", "gpus_configured", "gauge", "GPUs by its Gres", 0, 1_048_576),
    Metric("slurm_node", "gpus_allocated", "gauge", "GPUs that jobs hold", 0, 1_048_576),
    Metric("slurm_node", "cpus", "gauge", "CPUs of the node", 0, 1_000_000),
    Metric("slurm_node", "cpus_allocated", "gauge", "CPUs that jobs hold", 0, 1_000_000),
    Metric("slurm_node", "boot_time_seconds", "state", "when it booted, UTC", 0, 2**33),
    Metric("slurm_node", "reason_time_seconds", "state", "when its reason was set, UTC", 0, 2**33),
    Metric("slurm_event", "severity", "state", "0 info, 1 warning, 2 error", 0, 3),
    Metric("slurm_event", "text", "text", "what changed, in words"),
    Metric("slurm_event", "before", "text", "the state before"),
    Metric("slurm_event", "after", "text", "the state after"),
    Metric("slurm_event", "reason", "text", "the reason that Slurm shows"),
    Metric("slurm_event", "user", "text", "who set the reason"),
    Metric("slurm_event", "jobs", "text", "ids of the jobs that hold the node"),
)

# Transitions written of one cycle; a slurmctld restart can change every node at once.
EVENT_LIMIT = 20_000


class Options(SourceOptions):
    """``conf`` and ``binaries`` are needed only where Slurm is not in its usual place.

    ``adapter``: how the head writes. ``auto`` takes Slurm's own commands where they are here, else
    pyslurm where it is installed, else slurmrestd where ``rest_url`` (``http://host:6820``) names
    one. ``pyslurm_folder`` holds a pyslurm that is not installed beside tocsin.
    """

    period_seconds: float = Field(default=15.0, gt=0, le=3_600)
    deadline_seconds: float = Field(default=12.0, gt=0, le=600)
    conf: Path | None = None
    binaries: Path | None = None
    jobs: bool = True
    adapter: Literal["auto", "cli", "rest", "pyslurm"] = "auto"
    # Holds pyslurm where it is not installed beside tocsin.
    pyslurm_folder: Path | None = None
    rest_url: str = Field(default="", pattern=r"^(https?://[^/?#@ ]+)?$")
    rest_user: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,64}$")
    # Holds a JWT of ``scontrol token``; read anew at each request, so that it may be renewed.
    rest_token_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What one cycle read. ``time_ns`` is when it was asked for."""

    time_ns: int = 0
    nodes: Nodes = field(default_factory=dict)
    jobs: Mapping[str, Job] = field(default_factory=dict)


class Reads(Protocol):
    """How the source reads: ``collectors.slurm.reader.SlurmReader``, or what stands in for it."""

    reads_total: int

    def nodes(
        self, names: Iterable[str] | None = None, deadline_seconds: float = 10.0
    ) -> tuple[Nodes, list[Problem]]:
        """All nodes, or those of ``names`` that exist. Raises SlurmTrouble."""
        ...

    def jobs(self, deadline_seconds: float = 10.0) -> dict[str, Job]:
        """The jobs that hold nodes, by id. Raises SlurmTrouble."""
        ...


class SlurmSource:
    """See the module. ``latest`` is None until a first cycle has gone well."""

    name = NAME

    def __init__(
        self,
        options: Options,
        context: Context,
        runner: Runner | None = None,
        reader: Reads | None = None,
    ) -> None:
        self.period_seconds = options.period_seconds
        self.deadline_seconds = options.deadline_seconds
        self.latest: Reading | None = None
        self._jobs = options.jobs
        self.reader: Reads = reader or SlurmReader(
            Tools(options.conf, options.binaries), runner or Runner()
        )
        self._memory = context.state_dir / "slurm-nodes.json"
        self._known: dict[str, dict[str, Any]] | None = None

    def collect(self, now_ns: int) -> Batch:
        """Nodes, then jobs. Jobs that cannot be read are a problem, not a failed cycle."""
        nodes, problems = self.reader.nodes(deadline_seconds=self.deadline_seconds * 0.7)
        jobs: dict[str, Job] = {}
        if self._jobs:
            try:
                jobs = self.reader.jobs(self.deadline_seconds * 0.28)
                nodes = with_jobs(nodes, jobs_by_node(jobs.values()))
            except SlurmTrouble as error:
                problems.append(Problem(f"jobs: {error}"))
        self.latest = Reading(now_ns, nodes, jobs)
        before = self._remembered()
        samples = [node_sample(node, now_ns) for node in nodes.values()]
        samples.extend(transitions(before, nodes, now_ns, problems))
        self._remember(nodes)
        return Batch(NAME, tuple(samples), tuple(problems))

    def close(self) -> None:
        """Nothing is held open."""

    def _remembered(self) -> Mapping[str, Mapping[str, Any]]:
        if self._known is None:
            try:
                known = json.loads(self._memory.read_bytes())
                self._known = known if isinstance(known, dict) else {}
            except (OSError, ValueError):
                self._known = {}
        return self._known

    def _remember(self, nodes: Nodes) -> None:
        known = {name: _memory_of(node) for name, node in nodes.items()}
        if known == self._known:
            return
        self._known = known
        new = self._memory.with_suffix(".new")
        try:
            new.write_text(json.dumps(known))
            new.replace(self._memory)
        except OSError:
            # A full disk costs at most a transition told twice after a restart.
            return


def make(options: Options, context: Context) -> Source:
    """The source; ``SlurmSource.latest`` and ``.reader`` serve policy as well."""
    return SlurmSource(options, context)


def _memory_of(node: NodeState) -> dict[str, Any]:
    return {"state": node.words, "reason": node.reason, "boot": node.boot_time_ns}


def node_sample(node: NodeState, time_ns: int) -> Sample:
    """One ``slurm_node`` point."""
    flags = node.flags
    truth = {
        "idle": node.base == "idle",
        "mixed": node.base == "mixed",
        "allocated": node.base == "allocated",
        "down": node.down,
        "drain": node.drain,
        "fail": node.failed,
        "not_responding": not node.responding,
        "registered": node.registered,
        "maintenance": node.maintenance,
        "reserved": "RESERVED" in flags,
        "completing": "COMPLETING" in flags,
        "planned": "PLANNED" in flags,
        "reboot": node.rebooting,
        "powered_down": not node.powered,
        "invalid_registration": "INVALID_REG" in flags,
    }
    fields: dict[str, float | str] = {name: float(value) for name, value in truth.items()}
    fields["jobs"] = float(len(node.jobs))
    fields["gpus_configured"] = float(node.gpus_configured)
    fields["gpus_allocated"] = float(node.gpus_allocated)
    fields["cpus"] = float(min(node.cpus, 1_000_000))
    fields["cpus_allocated"] = float(min(node.cpus_allocated, 1_000_000))
    if node.boot_time_ns:
        fields["boot_time_seconds"] = node.boot_time_ns / SECOND_NS
    if node.reason_time_ns and node.reason:
        fields["reason_time_seconds"] = node.reason_time_ns / SECOND_NS
    return sample("slurm_node", time_ns, fields, node=node.name)


def transitions(
    before: Mapping[str, Mapping[str, Any]], nodes: Nodes, time_ns: int, problems: list[Problem]
) -> list[Sample]:
    """A ``slurm_event`` for each change that people ask about later; none for a node first met."""
    events: list[Sample] = []
    left = 0
    for name, node in nodes.items():
        old = before.get(name)
        if old is None:
            continue
        for code, severity, words in _changes(old, node):
            if len(events) >= EVENT_LIMIT:
                left += 1
                continue
            events.append(_event(node, str(old.get("state", "")), code, severity, words, time_ns))
    if left:
        problems.append(Problem(f"{left} more transitions in one cycle were not written"))
    return events


def _changes(old: Mapping[str, Any], node: NodeState) -> Iterator[tuple[str, float, str]]:
    was = frozenset(str(old.get("state", "")).split("+"))
    now = frozenset(node.words.split("+"))
    for word, code, severity, words in (
        ("DRAIN", "drain", 1.0, "was drained"),
        ("DOWN", "down", 2.0, "went down"),
        ("FAIL", "fail", 2.0, "was set to FAIL"),
        ("NOT_RESPONDING", "not_responding", 1.0, "does not answer slurmctld"),
        ("INVALID_REG", "invalid_registration", 2.0, "registered with less than configured"),
        ("MAINTENANCE", "maintenance", 0.0, "is in a maintenance reservation"),
        ("REBOOT_ISSUED", "reboot", 0.0, "is being rebooted through Slurm"),
        ("POWERED_DOWN", "powered_down", 0.0, "was powered down"),
    ):
        if word in now and word not in was:
            yield code, severity, words
        elif word in was and word not in now:
            yield f"{code}_end", 0.0, f"no longer: {words}"
    if node.boot_time_ns > int(old.get("boot") or 0) + SECOND_NS and old.get("boot"):
        yield "booted", 0.0, "booted"
    reason = str(old.get("reason", ""))
    if reason and node.reason and node.reason != reason:
        yield "reason", 0.0, "has another reason"


def _event(
    node: NodeState, before: str, code: str, severity: float, words: str, time_ns: int
) -> Sample:
    fields: dict[str, float | str] = {
        "severity": severity,
        "text": clip(f"{node.name} {words}" + (f": {node.reason}" if node.reason else "")),
        "before": before,
        "after": node.words,
    }
    if node.reason:
        fields["reason"] = clip(node.reason)
    if node.reason_user:
        fields["user"] = clip(node.reason_user)
    if node.jobs:
        fields["jobs"] = clip(",".join(node.jobs))
    return sample("slurm_event", time_ns, fields, node=node.name, kind="state", code=code)


def parse(text: str | bytes, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """``tocsin parse slurm-nodes``: a point a node, and an event for each reason shown."""
    del node  # every record names its own
    nodes, problems = parse_nodes(text)
    samples = [node_sample(state, now_ns) for state in nodes.values()]
    samples.extend(
        _event(state, "", "reason", 0.0, state.words, now_ns)
        for state in nodes.values()
        if state.reason
    )
    return samples, problems
