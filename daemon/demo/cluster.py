"""The simulated cluster: the fleet's physics and a Slurm in memory, kept in step.

The fleet reads which nodes are drained from Slurm; Slurm learns from the fleet which jobs run,
which nodes answer and when they booted. What the fleet reads, its agents would have read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from collectors.sample import Sample
from collectors.slurm.nodes import NodeState
from collectors.slurm.reader import Job
from daemon.demo.plot import Act
from daemon.slurm.simulated import SimulatedSlurm
from models.simulate import CLASSES, Fleet
from models.simulate.kernel_text import xid

SECOND_NS = 1_000_000_000
PREFIX = "gpu-"
CPUS_PER_NODE = 128

# What people had drained before the demo began: (share of the fleet, reason).
FOREIGN = ((0.13, "swap PSU 2, ticket 4711"), (0.86, "BIOS update"))
# Application errors of the story; tocsin must never drain for them.
NOISE_CODES = (13, 31, 43)

# slurm.conf(5), SlurmdTimeout: after so long without an answer slurmctld sets a node DOWN.
SLURMD_TIMEOUT_SECONDS = 300.0
NOT_RESPONDING = "Not responding"
# Faults strike between two readings: the kernel tells of a lost GPU before NVML does.
BETWEEN_READINGS_NS = 7 * SECOND_NS
# A job on a lost GPU fails once its next collective times out.
JOB_DIES_AFTER_SECONDS = 600.0
# Repairs come soon, or a short demo would never see a node return.
LONGEST_REPAIR_SECONDS = 5400.0


def rack_size(nodes: int) -> int:
    """Nodes in a rack: eight, in larger fleets more, so that there are at most 48 racks."""
    return max(8, -(-nodes // 48))


class Cluster:
    """``nodes`` nodes of ``gpus`` GPUs from ``start_ns`` on. Not for use from two threads.

    ``acts`` count from ``story_ns``; before it there is only calm.
    """

    def __init__(
        self, nodes: int, gpus: int, seed: int, start_ns: int, story_ns: int, acts: Iterator[Act]
    ) -> None:
        self.fleet = Fleet(
            nodes, gpus, seed=seed, start_ns=start_ns, prefix=PREFIX, background=False
        )
        self.story_ns = story_ns
        self.slurm = SimulatedSlurm(self._at_first(), now_ns=lambda: self.fleet.now_ns)
        for share, reason in FOREIGN:
            if nodes >= 8:
                name = self.fleet.names[int(share * nodes)]
                self.slurm.set(name, user="root", state="drain", reason=reason)
        self._acts = acts
        self._next = next(acts, None)
        self._noise = 0
        self._cast: dict[int, int] = {}
        self._down_since_ns: dict[str, int] = {}

    def step(self, now_ns: int) -> list[Sample]:
        """Moves on to ``now_ns``: the story, the fleet, then Slurm. Returns what was read."""
        said: list[Sample] = []
        while self._next is not None and self._due_ns(self._next) <= now_ns:
            said += self._play(self._next, now_ns)
            self._next = next(self._acts, None)
        drained = [node.name for node in self.slurm.nodes().values() if node.drain]
        self.fleet.set_drained(drained)
        self._end_jobs(now_ns)
        samples = self.fleet.tick(now_ns)
        for name in self.fleet.names:
            self._tell_slurm(name, now_ns)
        # The head reads transitions from Slurm itself.
        return said + [one for one in samples if one.measurement != "slurm_event"]

    def returned(self) -> list[str]:
        """Nodes that were mended since the last call: an operator would give them back."""
        names = sorted(self.fleet.mended - self.fleet.down)
        self.fleet.mended -= set(names)
        return names

    # The story --------------------------------------------------------------------------

    def _due_ns(self, act: Act) -> int:
        return self.story_ns + int(act.at_seconds * SECOND_NS)

    def _play(self, act: Act, now_ns: int) -> list[Sample]:
        names = [self.fleet.names[index] for index in act.nodes]
        if act.what == "silence":
            until_ns = now_ns + int(act.lead_seconds * SECOND_NS)
            self.fleet.deaf_until_ns[list(act.nodes)] = until_ns
        elif names[0] in self.fleet.down:
            return []
        elif act.what == "noise":
            self._noise += 1
            code = NOISE_CODES[self._noise % len(NOISE_CODES)]
            address = self.fleet.hardware.address(act.gpu)
            return [xid(names[0], address, code, now_ns, 4711, "python3")]
        else:
            fault = self.fleet.sicken(
                self._busy_near(act, now_ns),
                act.gpu,
                act.what,
                lead_seconds=act.lead_seconds,
                at_ns=now_ns - BETWEEN_READINGS_NS,
                strength=act.strength,
            )
            fault.repair_seconds = min(fault.repair_seconds, LONGEST_REPAIR_SECONDS)
            fault.style = 0.6  # NVML says that the GPU is lost; the other face is an exporter's
        return []

    def _busy_near(self, act: Act, now_ns: int) -> str:
        """The node of the act or, if it would be idle at the strike, the next one that works.

        A second act on the same place finds the node that the first one found.
        """
        sick = {fault.node for fault in self.fleet.faults}
        if self._cast.get(act.nodes[0]) in sick:
            return self.fleet.names[self._cast[act.nodes[0]]]
        strike_ns = now_ns + int(act.lead_seconds * SECOND_NS)
        taken = self.fleet.drained | sick
        chosen = act.nodes[0]
        for step in range(self.fleet.nodes):
            index = (act.nodes[0] + step) % self.fleet.nodes
            name = self.fleet.names[index]
            whole = self.fleet.gpus_allocated(name) == self.fleet.gpus
            lasting = all(job.end_ns > strike_ns for job in self.fleet.jobs_on(name))
            if whole and lasting and index not in taken and name not in self.fleet.down:
                chosen = index
                break
        self._cast[act.nodes[0]] = chosen
        return self.fleet.names[chosen]

    def _end_jobs(self, now_ns: int) -> None:
        """Jobs on a struck node fail after a while, as they do."""
        limit_ns = int(JOB_DIES_AFTER_SECONDS * SECOND_NS)
        dead = {
            fault.node
            for fault in self.fleet.faults
            if fault.struck
            and CLASSES[fault.name].stops_jobs
            and now_ns - fault.onset_ns >= limit_ns
        }
        if dead:
            self.fleet.jobs.kill(dead)

    # Slurm ------------------------------------------------------------------------------

    def running(self) -> dict[str, Job]:
        """The jobs that run, as squeue would tell of them."""
        now_ns, names = self.fleet.now_ns, self.fleet.names
        found = {}
        for job in list(self.fleet.jobs.running.values()):
            number = str(job.number)
            found[number] = Job(
                number, number, "RUNNING", job.user, tuple(names[node] for node in job.nodes),
                end_time_ns=job.end_ns,
                elapsed_seconds=max(0.0, (now_ns - job.start_ns) / SECOND_NS),
                gpus_per_node=len(job.gpus) // len(job.nodes),
                partition="train",
            )  # fmt: skip
        return found

    def _at_first(self) -> list[NodeState]:
        fleet = self.fleet
        rack = rack_size(fleet.nodes)
        return [
            NodeState(
                name,
                base="idle",
                partitions=("train",),
                gpus_configured=fleet.gpus,
                boot_time_ns=int(fleet.state.boot_seconds[i] * SECOND_NS),
                slurmd_start_time_ns=int(fleet.state.boot_seconds[i] * SECOND_NS),
                features=(f"rack{i // rack + 1:02d}",),
                cpus=CPUS_PER_NODE,
                version="24.11.5",
            )
            for i, name in enumerate(fleet.names)
        ]

    def _tell_slurm(self, name: str, now_ns: int) -> None:
        held = self.fleet.gpus_allocated(name)
        jobs = tuple(str(job.number) for job in self.fleet.jobs_on(name))
        boot_ns = int(self.fleet.state.boot_seconds[self.fleet.index[name]] * SECOND_NS)
        down = name in self.fleet.down
        since_ns = self._down_since_ns.setdefault(name, now_ns) if down else 0
        if not down:
            self._down_since_ns.pop(name, None)
        gone = down and now_ns - since_ns >= SLURMD_TIMEOUT_SECONDS * SECOND_NS

        def change(node: NodeState) -> NodeState:
            base = "idle" if not held else "mixed" if held < self.fleet.gpus else "allocated"
            reason, user, reason_ns = node.reason, node.reason_user, node.reason_time_ns
            flags = node.flags | {"NOT_RESPONDING"} if down else node.flags - {"NOT_RESPONDING"}
            if gone:
                base = "down"
                if not reason:
                    reason, user, reason_ns = NOT_RESPONDING, "slurm", now_ns
            elif not down and reason == NOT_RESPONDING:
                reason, user, reason_ns = "", "", 0  # slurm.conf(5), ReturnToService=1
            return replace(
                node,
                base=base,
                flags=flags,
                reason=reason,
                reason_user=user,
                reason_time_ns=reason_ns,
                gpus_allocated=held,
                cpus_allocated=CPUS_PER_NODE * held // self.fleet.gpus,
                jobs=jobs,
                boot_time_ns=boot_ns,
            )

        self.slurm.change(name, change)
